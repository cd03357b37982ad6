"""Who may import whom: the order in workbench's docstring, and one module a heavy package."""

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
ORDER = (
    "units tables checks progress intervals readers files clocks cache ranks traces iterations "
    "lanes crosscheck costs nccl fitting fits grouping policies fusion settings schedules timeline "
    "recorded evidence scaling sharded optimum remedies whatif sensitivity draws uncertainty "
    "pollux validation gain published study factors claims parameters notebooks drawing figures "
    "widgets explore pages capture"
).split()
HEAVY = {
    "arro3": {"cache"},
    "statsmodels": {"fitting.estimates"},
    "seaborn": {"drawing.timelines"},
    "matplotlib": {"drawing", "widgets.pictures"},
    "ipywidgets": {"widgets", "explore"},
    "torch": {"capture"},
    "nbformat": {"notebooks", "pages"},
    "nbclient": {"notebooks", "pages"},
    "jupyter_client": {"notebooks"},
    "papermill": {"notebooks"},
    "nbconvert": {"pages"},
    "latex2mathml": {"pages"},
    "jinja2": {"pages"},
    "bs4": {"pages"},
}


def sources() -> dict[str, str]:
    """Dotted module name -> text, of every file of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path.read_text()
    return found


def imports(module: str, text: str, is_package: bool) -> Iterator[str]:
    """Absolute names of all that a module imports, anywhere in it, also inside functions."""
    here = module.split(".") if is_package else module.split(".")[:-1]
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


def formats(texts: Mapping[str, str]) -> set[str]:
    """The readers that are formats: those with a `read`; the others are what formats share."""
    return {
        module
        for module, text in texts.items()
        if module.startswith("workbench.readers.") and re.search(r"^def read\(", text, re.M)
    }


def breaches(texts: Mapping[str, str], order: list[str] = ORDER) -> list[str]:
    """Every import that the rules forbid, as `module: what it imports, why not`."""
    found = []
    for module, text in texts.items():
        if module != "workbench" and module.split(".")[1] not in order:
            found.append(f"{module}: has no place in the order")
            continue
        is_package = any(other.startswith(f"{module}.") for other in texts)
        for name in imports(module, text, is_package):
            why = _why_not(module, name, order, formats(texts))
            if why:
                found.append(f"{module}: {name}, {why}")
    return found


def _why_not(module: str, name: str, order: list[str], formats: set[str]) -> str:
    if module == "workbench":
        return "workbench itself imports nothing"
    layer, top = module.split(".")[1], name.split(".")[0]
    if top != "workbench":
        if name == "an import at run time":
            return "which no test can see"
        allowed = HEAVY.get(top, {layer})
        here = {layer, module.removeprefix("workbench.")}
        return "" if here & allowed else f"only {' and '.join(sorted(allowed))} may"
    if name == "workbench" or name.split(".")[1] not in order:
        return "has no place in the order"
    used = name.split(".")[1]
    if layer == used:  # parts of one package; none imports itself by way of others, see below
        reads = any(name == each or name.startswith(f"{each}.") for each in formats)
        return "a format is no other reader's business" if reads else ""
    return "" if order.index(used) < order.index(layer) else "not above it"


def test_the_docstring_gives_the_order_that_is_enforced():
    assert re.findall(r"^    (\w+)  +\S", workbench.__doc__, re.M) == ORDER


def test_every_module_imports_only_what_it_may():
    assert breaches(sources()) == []


def used_by(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> the modules of the package that it imports."""
    graph = {}
    for module, text in texts.items():
        is_package = any(other.startswith(f"{module}.") for other in texts)
        names = set(imports(module, text, is_package))
        names |= {name.rpartition(".")[0] for name in names}
        graph[module] = names & (set(texts) - {module})
    return graph


def test_no_module_imports_itself_by_way_of_others():
    assert len(list(TopologicalSorter(used_by(sources())).static_order())) == len(sources())


def test_a_circle_of_imports_is_found():
    circle = {"workbench.fitting.a": "from .b import x", "workbench.fitting.b": "from . import a"}
    with pytest.raises(CycleError):
        list(TopologicalSorter(used_by(circle)).static_order())


def test_every_layer_that_has_a_file_is_seen():
    files = {path.stem for path in PACKAGE.rglob("*.py")} - {"__init__"}
    seen = {module.rpartition(".")[2] for module in sources() if "." in module}
    assert files <= seen
    assert {module.split(".")[1] for module in sources() if "." in module} == set(ORDER)


ALLOWED = {
    "workbench": '"""Nothing."""',
    "workbench.units": "import math",
    "workbench.readers": "",
    "workbench.readers.kineto": "from . import shared\nfrom ..units import MS\ndef read(): ...",
    "workbench.readers.plain": "import pandas\ndef read(): ...",
    "workbench.readers.shared": "from .. import units",
    "workbench.traces": "from workbench import units\nfrom .readers import kineto, plain",
    "workbench.fitting": "",
    "workbench.fitting.estimates": "import statsmodels.api as sm",
    "workbench.fitting.card": "from .estimates import infer",
    "workbench.drawing": "",
    "workbench.drawing.timelines": "import seaborn\nfrom matplotlib import pyplot",
    "workbench.explore": "import ipywidgets\nfrom . import figures",
    "workbench.capture": "def record():\n    import torch\n    from .traces import load_run",
}


def test_what_the_rules_allow_is_no_breach():
    assert breaches(ALLOWED) == []


@pytest.mark.parametrize(
    ("module", "text", "why"),
    [
        ("workbench", "from .units import MS", "imports nothing"),
        ("workbench", "import math", "imports nothing"),
        ("workbench.units", "from . import traces", "not above it"),
        ("workbench.units", "from .traces import Run", "not above it"),
        ("workbench.units", "import workbench.traces", "not above it"),
        ("workbench.units", "def late():\n    from .traces import Run", "not above it"),
        ("workbench.traces", "if TYPE_CHECKING:\n    from .figures import save", "not above it"),
        ("workbench.readers.plain", "from ..traces import Run", "not above it"),
        ("workbench.readers.plain", "from .. import figures", "not above it"),
        ("workbench.readers.plain", "from .kineto import read\ndef read(): ...", "business"),
        ("workbench.readers.plain", "from . import kineto", "business"),
        ("workbench.readers.shared", "import workbench.readers.kineto", "business"),
        ("workbench.traces", "import statsmodels.api", "only fitting.estimates may"),
        ("workbench.explore", "from seaborn import lineplot", "only drawing.timelines may"),
        ("workbench.fits", "import matplotlib.pyplot as plt", "only drawing and widgets.pictures"),
        ("workbench.figures", "from ipywidgets import Button", "only explore and widgets"),
        ("workbench.timeline", "def tensor():\n    import torch", "only capture may"),
        ("workbench.timeline", "import importlib\nimportlib.import_module('torch')", "no test"),
        ("workbench.timeline", "__import__('torch')", "no test"),
        ("workbench.helpers", "", "no place in the order"),
        ("workbench.timeline", "from . import helpers", "no place in the order"),
        ("workbench.timeline", "import workbench", "no place in the order"),
    ],
)
def test_a_forbidden_import_is_a_breach(module, text, why):
    (breach,) = breaches(ALLOWED | {module: text})
    assert breach.startswith(f"{module}:")
    assert why in breach


def test_loading_traces_brings_in_no_heavy_package():
    code = "import sys, workbench.traces; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "workbench" in loaded
    assert loaded.isdisjoint(HEAVY)
