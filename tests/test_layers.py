"""Who may import whom: rooms on floors, no circle, doors that list what they offer."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent
FLOORS = {
    "base": 1,
    "traces": 2, "costs": 2, "fusion": 2,
    "fits": 3, "timeline": 3,
    "whatif": 4,
    "validation": 5, "capture": 5,
    "figures": 6,
    "explore": 7, "notebooks": 7,
}  # fmt: skip
HEAVY = {  # package -> rooms or modules that may import it
    "arro3": {"traces.cache"},
    "statsmodels": {"fits.estimates"},
    "seaborn": {"figures.timelines"},
    "matplotlib": {"figures", "explore.pictures"},
    "ipywidgets": {"explore"},
    "torch": {"capture"},
    **dict.fromkeys(
        ("nbformat", "nbclient", "jupyter_client", "papermill", "nbconvert", "latex2mathml",
         "jinja2", "bs4"), {"notebooks"}),
}  # fmt: skip
BASE = "workbench.base."  # what workbench itself hands on


FILES = {".".join(f.relative_to(PACKAGE.parent).with_suffix("").parts): f.read_text()
         for f in sorted(PACKAGE.rglob("*.py"))}  # fmt: skip
FORMATS = {m for m, text in FILES.items() if m.startswith("workbench.traces.readers.")
           if re.search(r"^def read\(", text, re.M)}  # fmt: skip


def imports(module: str, text: str) -> Iterator[str]:
    """Yield the absolute name of all that a module imports, inside functions too."""
    here = module.split(".")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            base = ".".join(above + ([node.module] if node.module else []))
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__"):
                yield "an import at run time"


def breaches(module: str, text: str) -> list[str]:
    """Return every forbidden import as `module: name, why`."""
    names = [None, *imports(module, text)]
    return [f"{module}: {name}, {why}" for name in names if (why := _why_not(module, name))]


def _why_not(module: str, name: str | None) -> str:
    if module == "workbench.__init__":
        return "" if name is None or name.startswith(BASE) else "workbench hands on base only"
    room = module.split(".")[1]
    if room not in FLOORS:
        return "is not a room"
    if name is None:
        return ""
    if name == "an import at run time":
        return "which no test can see"
    if name.split(".")[0] != "workbench":
        allowed = HEAVY.get(name.split(".")[0], {room})
        return "" if {room, module.removeprefix("workbench.")} & allowed else "not its home"
    used = (name.split(".") + [""])[1]
    if used == room:
        reads = any(f"{name}.".startswith(f"{each}.") for each in FORMATS)
        return "a format does not know another" if reads and module in FORMATS else ""
    return "" if FLOORS.get(used, 9) < FLOORS[room] else "not on a lower floor"


def used_by(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return module -> the modules of the package that it imports, doors included."""
    graph = {}
    for module, text in texts.items():
        names = set(imports(module, text))
        names |= {name.rpartition(".")[0] for name in names if name not in texts}
        graph[module] = {m for m in texts if m in names or m.removesuffix(".__init__") in names}
    return graph


def test_the_docstring_draws_the_floors_that_are_enforced():
    drawn, floor = {}, 0
    for number, room in re.findall(r"^    (\d|) +(\w+)  +\S", workbench.__doc__, re.M):
        floor = int(number or floor)
        drawn[room] = floor
    assert drawn == FLOORS


def test_the_package_is_twelve_rooms():
    inside = {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "__pycache__"}
    assert inside == set(FLOORS) and len(FLOORS) == 12


def test_every_module_imports_only_what_it_may():
    assert [breach for module in FILES for breach in breaches(module, FILES[module])] == []


def test_no_module_imports_itself_by_way_of_others():
    order = TopologicalSorter(used_by(FILES)).static_order()
    assert len(list(order)) == len(FILES)
    circle = {"workbench.fits.a": "from .b import x", "workbench.fits.b": "from . import a"}
    with pytest.raises(CycleError):
        list(TopologicalSorter(used_by(circle)).static_order())


@pytest.mark.parametrize("room", sorted(set(FLOORS) - {"base"}))
def test_a_door_lists_exactly_what_it_imports(room):
    tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
    imported = [a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names]
    (listed,) = (ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign))
    assert sorted(listed) == sorted(imported)
    assert ast.get_docstring(tree)


def defined(text: str) -> Iterator[str]:
    """Yield the public names that the top of a module defines."""
    for node in ast.parse(text).body:
        names = [getattr(node, "name", "")] if hasattr(node, "body") else []
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        yield from (name for name in names if name and not name.startswith("_"))


def test_a_public_name_means_one_thing():
    found: dict[str, list[str]] = {}
    for module, text in FILES.items():
        for name in defined(text):
            found.setdefault(name, []).append(module)
    twice = {name: where for name, where in found.items() if len(where) > 1}
    assert set(twice) <= {"read", "recognises"}, twice


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("__init__", "from .traces import load_run"),
        ("__init__", "import math"),
        ("base.units", "from ..traces import Run"),
        ("base.units", "import workbench.traces"),
        ("base.units", "def late():\n    from ..traces import Run"),
        ("traces.run", "if TYPE_CHECKING:\n    from ..figures import save"),
        ("traces.readers.plain", "from .kineto import read\ndef read(): ..."),
        ("traces.readers.plain", "from . import kineto\ndef read(): ..."),
        ("traces.run", "from ..costs import Ring"),
        ("timeline.scenario", "from ..fits import Fit"),
        ("traces.run", "import statsmodels.api"),
        ("timeline.queues", "def tensor():\n    import torch"),
        ("timeline.queues", "import importlib\nimportlib.import_module('torch')"),
        ("timeline.queues", "__import__('torch')"),
        ("timeline.queues", "from .. import helpers"),
        ("timeline.queues", "import workbench"),
        ("helpers", ""),
    ],
)
def test_a_forbidden_import_is_a_breach(module, text):
    (breach,) = breaches(f"workbench.{module}", text)
    assert breach.startswith(f"workbench.{module}:")


@pytest.mark.parametrize(
    ("room", "absent"),
    [("traces", set(HEAVY)), ("fits", {"workbench.traces", "matplotlib", "torch", "ipywidgets"})],
)
def test_loading_a_room_brings_in_nothing_it_does_not_need(room, absent):
    code = f"import sys, workbench.{room}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"workbench.{room}" in run.stdout.split()
    assert absent.isdisjoint(run.stdout.split())
