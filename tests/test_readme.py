"""The README's example runs as printed, and what it names exists."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from workbench.readers.columns import named

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    return code


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_example_is_ten_lines_or_fewer():
    lines = [line for line in example().splitlines() if line and not line.startswith("#")]
    imports = [line for line in lines if line.startswith(("from ", "import "))]
    assert len(lines) - len(imports) <= 10


def test_the_example_prints_what_the_readme_says(at_root):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example(), "README.md", "exec"), {})
    said = re.findall(r"# > (.*)", example())
    assert said
    assert printed.getvalue().split() == " ".join(said).split()


def test_every_file_the_readme_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert "LICENSE" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_the_readme_names_exists():
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"`?make ([a-z]+)", README.replace("Python 3.11 or newer and make", "")))
    assert {"lab", "test"} <= named <= set(targets)


def test_the_columns_that_the_readme_names_are_known():
    (said,) = re.findall(r"^Columns of a CSV.*?^$", README, re.M | re.S)
    columns = re.findall(r"`([^`]+)`", said)
    assert len(columns) == 10 and {"nbytes", "seconds", "world_size"} <= set(columns)
    assert [name for name in columns if not named([name])] == []
