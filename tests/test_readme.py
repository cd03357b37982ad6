"""What the READMEs show runs as printed, and what they name exists."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from run_notebooks import execute

from workbench import validation, whatif
from workbench.base import tables
from workbench.explore.explorer import Explorer
from workbench.explore.static import Static
from workbench.notebooks import rebuilding
from workbench.timeline import explain, scaling, sweep
from workbench.traces import gradients, load_run
from workbench.traces.readers.columns import quantities
from workbench.validation import claims, gain, published, study
from workbench.whatif import elasticities as sensitivity
from workbench.whatif import one_at_a_time as factors
from workbench.whatif import optimum, uncertainty

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OF_DATA = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
MADE = (tables, explain, scaling, optimum, whatif, sensitivity, uncertainty, factors, validation,
        gain, claims, published, study, rebuilding)  # fmt: skip
TABLES = {
    name: value
    for module in MADE
    for name, value in vars(module).items()
    if re.fullmatch("[A-Z][A-Z_]+", name) and isinstance(value, dict)
    if name not in ("FRAMEWORKS", "VARIED", "CAPTIONS", "OURS", "BASELINES")
}


def block(beginning: str) -> str:
    """The Python of the README that begins so."""
    found = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
    (code,) = [code for code in found if code.startswith(beginning)]
    return code


def example() -> str:
    return block("from dataclasses import")


def commands(beginning: str) -> list[str]:
    """Lines of the README's shell commands that begin so, each joined with those it goes on in."""
    indented = re.sub(r" \\\n +", " ", README)
    return re.findall(rf"^    ({re.escape(beginning)}.*)$", indented, re.M)


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


@pytest.mark.slow
def test_a_run_recorded_as_the_readme_says_has_gradients_with_sizes(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimiser = torch.optim.SGD(model.parameters())

    def train(batch):
        model(batch).sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    given = {"loader": [torch.ones(4, 8)] * 12, "train": train}
    exec(compile(block("from torch.profiler import"), "README.md", "exec"), given)
    sizes = gradients(load_run("myrun"))["nbytes"].tolist()
    assert sorted(sizes) == sorted(4 * p.numel() for p in model.parameters())


@pytest.mark.slow
def test_the_readme_hands_work_to_a_cluster(at_root):
    given = {}
    exec(compile(example(), "README.md", "exec"), given)
    exec(compile(block("from dask.distributed"), "README.md", "exec"), given)
    here = load_run("data/runs/resnet50-cpu-2")
    pd.testing.assert_frame_equal(given["run"].events, here.events)
    assert len(given["table"]) == 2 * 4096
    alone = sweep(given["here"], n_workers=[8, 64], fusion=given["policies"])
    found = given["table"].query("n_workers in (8, 64)")
    assert found["scaling_factor"].tolist() == alone["scaling_factor"].tolist()


def test_every_way_to_record_is_five_lines_or_fewer():
    lines = block("from torch.profiler import").splitlines()
    assert len([line for line in lines if line and not line.startswith(("from ", "    "))]) <= 5
    for tool in ("horovodrun", "nsys"):
        assert 1 <= len(commands(tool)) <= 5


def test_the_readme_opens_a_run_with_parameters_that_the_notebook_has():
    (command,) = commands(".venv/bin/papermill")
    _, path, _, *options = shlex.split(command)
    notebook = nbformat.read(ROOT / path, as_version=4)
    tagged = [c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    assert options[::3] == ["-p"] * (len(options) // 3)
    for name in options[1::3]:
        assert re.search(rf"\b{name}\b.* = ", tagged[0]), name


@pytest.mark.parametrize("name", re.findall(r"^\| (\d\d-[a-z-]+) \|", README, re.M))
def test_a_notebook_asks_the_question_that_the_readme_says(name):
    (said,) = re.findall(rf"^\| {name} \| ([^?]+\?)", README, re.M)
    first = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells[0].source
    assert first.splitlines()[0] == f"# {said}"


def test_the_readme_lists_every_notebook():
    listed = re.findall(r"^\| (\d\d-[a-z-]+) \|", README, re.M)
    assert listed == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


def test_every_file_the_readme_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)[)#]", README)
    assert {"LICENSE", "CITATION.cff"} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_picture_has_a_text_for_those_who_do_not_see_it():
    pictures = re.findall(r"!\[([^]]*)\]\(([^)]+)\)", README)
    assert pictures
    assert [path for text, path in pictures if len(text.split()) < 10] == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["00-start-here", "04-does-it-predict", "05-what-would-help"])
def test_the_pictures_are_those_that_the_notebooks_write(notebook, tmp_path):
    path = ROOT / "notebooks" / f"{notebook}.ipynb"
    execute(path, parameters={"FIGURES": tmp_path})
    shown = [Path(name) for name in re.findall(r"\]\((notebooks/[^)]+\.png)\)", README)]
    written = {each.name: tmp_path / each.name for each in shown if (tmp_path / each.name).exists()}
    assert written, "the notebook writes one of them"
    for name, picture in written.items():
        same = np.array_equal(imread(picture), imread(ROOT / "notebooks" / name))
        assert same, f"cp notebooks/figures/{name} notebooks/ after make figures"


def test_the_readme_says_how_every_picture_comes_here():
    (command,) = re.findall(r"`cp (notebooks/figures/[^`]+) notebooks/`", README)
    shown = re.findall(r"\]\(notebooks/([^)]+\.png)\)", README)
    assert [Path(name).name for name in command.split()] == shown


def test_every_make_target_the_readme_names_exists():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"(?:`|    )make ([a-z-]+)", README))
    assert {"lab", "test"} <= named <= set(targets)


def test_the_columns_that_the_readme_names_are_known():
    (said,) = re.findall(r"^Columns of a CSV.*?^$", README, re.M | re.S)
    columns = re.findall(r"`([^`]+)`", said)
    assert len(columns) == 10 and {"nbytes", "seconds", "world_size"} <= set(columns)
    assert [name for name in columns if not quantities([name])] == []


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_listed_as_it_is_defined(name):
    (section,) = re.findall(rf"^### {name}$(.*?)(?=^#|\Z)", OF_DATA, re.M | re.S)
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", section, re.M)
    said = {column: meaning.replace("`<NA>`", "<NA>") for column, meaning in rows[1:]}
    assert said == TABLES[name]


def test_what_the_readme_says_of_widgets_and_explanations_exists(at_root):
    told = set(re.findall(r"explorer\.(\w+)\(\)", README)) | {"state", "restore", "reset"}
    assert {"code", "static"} <= told
    assert all(callable(getattr(Explorer, name)) for name in told)
    assert callable(Static.save)
    (line,) = re.findall(r"`(print\(\*predict\(here\)[^`]+)`", README)
    printed, given = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(compile(example(), "README.md", "exec"), given)
        exec(line, given)
    assert "message 0, " in printed.getvalue()


def test_every_notebook_has_the_parameters_that_the_readme_says_of_all():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        (source,) = [c.source for c in cells if "parameters" in c.metadata.get("tags", ())]
        for name in ("RUN", "SWEEP", "VENUE", "FIGURES"):
            assert re.search(rf"^{name} = ", source, re.M), f"{path.stem}: {name}"
