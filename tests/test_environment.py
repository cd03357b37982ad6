"""pyproject.toml, constraints.txt and environment.yml agree on the dependencies."""

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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()
PARTS = {"dependencies": PROJECT["dependencies"]} | PROJECT["optional-dependencies"]


def ranges(requirements: list[str]) -> dict[str, SpecifierSet]:
    """Return PyPI name -> range; `make test` has no use for markers or URLs."""
    parsed = [Requirement(text) for text in requirements]
    assert all(each.marker is None and each.url is None for each in parsed)
    return {canonicalize_name(each.name): each.specifier for each in parsed}


def conda_ranges(dependencies: list) -> dict[str, SpecifierSet]:
    """Return PyPI name -> range of conda's specifications, each of which has to parse."""
    specs = {s.name.normalized: s for s in map(MatchSpec, dependencies)}
    return {CONDA_NAMES.get(n, n): SpecifierSet(str(s.version or "")) for n, s in specs.items()}


def test_environment_yml_has_the_names_and_ranges_of_pyproject():
    *specs, this = CONDA["dependencies"]
    assert this == {"pip": ["-e ."]} and CONDA["channels"] == ["conda-forge", "nodefaults"]
    found = conda_ranges(specs)
    assert found.pop("pip") == SpecifierSet()
    assert found.pop("python") == SpecifierSet(PROJECT["requires-python"])
    assert found == ranges(PROJECT["dependencies"] + PARTS["lab"])


def test_a_drifted_conda_range_is_seen():
    assert conda_ranges(["pandas >=3.0,<4"]) == ranges(["pandas>=3.0,<4"])
    assert conda_ranges(["pandas >=2.0,<4"]) != ranges(["pandas>=3.0,<4"])
    assert conda_ranges(["pytorch"]) != ranges(["torch>=2.6"])


def test_constraints_are_exact_pins_that_any_index_can_serve():
    for line in CONSTRAINTS:  # no URL, option, marker or local version such as torch's +cpu
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][a-z0-9.]*", line), line


@pytest.mark.parametrize("part", PARTS)
def test_every_dependency_is_pinned_within_its_range(part):
    pins = dict(line.split("==") for line in CONSTRAINTS)
    for name, allowed in ranges(PARTS[part]).items():
        assert pins[name] in allowed, f"{name}=={pins[name]} is not {allowed}"
