"""pyproject.toml, constraints.txt and environment.yml say the same of the dependencies."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from rattler import MatchSpec

ROOT = Path(__file__).parents[1]
CONDA_NAMES = {
    "matplotlib-base": "matplotlib",
    "python-isal": "isal",
    "pytorch": "torch",
    "seaborn-base": "seaborn",
}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def ranges(requirements: list[str]) -> dict[str, SpecifierSet]:
    """PyPI name -> range; `make test` has no use for markers or URLs, so there may be none."""
    parsed = [Requirement(text) for text in requirements]
    assert all(each.marker is None and each.url is None for each in parsed)
    return {canonicalize_name(each.name): each.specifier for each in parsed}


def conda_ranges(dependencies: list) -> dict[str, SpecifierSet]:
    """PyPI name -> range of conda's specifications, each of which has to parse."""
    specs = [MatchSpec(text) for text in dependencies if isinstance(text, str)]
    names = [spec.name.normalized for spec in specs]
    return {
        CONDA_NAMES.get(name, name): SpecifierSet(str(spec.version or ""))
        for name, spec in zip(names, specs, strict=True)
    }


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)


def test_environment_yml_has_the_names_and_ranges_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    found = conda_ranges(environment["dependencies"])
    assert found.pop("pip") == SpecifierSet()
    assert found.pop("python") == SpecifierSet(project()["requires-python"])
    extras = project()["optional-dependencies"]
    assert found == ranges(project()["dependencies"] + extras["lab"])


def test_a_drifted_conda_range_is_seen():
    assert conda_ranges(["pandas >=3.0,<4"]) == ranges(["pandas>=3.0,<4"])
    assert conda_ranges(["pandas >=2.0,<4"]) != ranges(["pandas>=3.0,<4"])
    assert conda_ranges(["pytorch"]) != ranges(["torch>=2.6"])


def test_environment_yml_takes_packages_from_conda_forge_alone_and_this_project_from_here():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}


def test_constraints_are_exact_pins_that_any_index_can_serve():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        # No URL, no option, no marker, and no local version such as torch's +cpu.
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][a-z0-9.]*", line), line


@pytest.mark.parametrize("part", ["dependencies", "lab", "cluster", "test"])
def test_every_dependency_is_pinned_within_its_range(part):
    declared = project()["optional-dependencies"] | {"dependencies": project()["dependencies"]}
    for name, allowed in ranges(declared[part]).items():
        assert pins()[name] in allowed, f"{name}=={pins()[name]} is not {allowed}"
