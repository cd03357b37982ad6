"""The wheel holds every module, template and style, and works without a checkout."""

import os
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_the_wheel_is_the_whole_package_and_says_what_needs_a_checkout(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel)
    found = {name for name in files.namelist() if name.startswith("workbench/")}
    shipped = [path for path in (ROOT / "workbench").rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT).as_posix() for path in shipped if path.suffix != ".pyc"}
    assert found == expected
    assert {f"workbench/notebooks/{name}" for name in ("page.css", "page.html.j2")} < found
    files.extractall(tmp_path / "site")
    pages = subprocess.run(
        [sys.executable, "-m", "workbench.notebooks"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert pages.returncode == 1 and pages.stdout == ""
    assert pages.stderr.startswith("notebooks: expected") and pages.stderr.count("\n") == 1
