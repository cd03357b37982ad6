"""What the READMEs show runs as printed, and what they name exists."""

import contextlib
import importlib
import io
import re
import shlex
import textwrap
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from run_notebooks import NOTEBOOKS

from workbench.fusion import PerTensor
from workbench.timeline import sweep
from workbench.traces import gradients, load_run

ROOT = NOTEBOOKS.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
OF_DATA = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
TEXTS = README, OF_DATA, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| (\d\d-[a-z-]+) \| ([^?]+\?)", README, re.M)
PICTURES = re.findall(r"!\[([^]]*)\]\(([^)]+)\)", README)
TABLES = {  # of columns and their meaning -> module
    name: ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ("base", "timeline", "whatif", "validation", "notebooks")
    for path in (ROOT / "workbench" / room).glob("*.py")
    for name in re.findall(
        r"^([A-Z][A-Z_]+) = (?:\w+ \| )?\{", path.read_text(encoding="utf-8"), re.M
    )
    if name not in ("FIELDS", "CAPTIONS", "BASELINES")
}


def executed_block(text: str, marker: str, given: dict) -> tuple[str, dict]:
    """Execute the one block of Python that contains a marker; return it and all its names."""
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", text, re.M | re.S)
    (code,) = [block for block in blocks if marker in block]
    names = dict(given)
    exec(compile(textwrap.dedent(code), "README.md", "exec"), names)
    return code, names


@pytest.fixture
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_example_is_short_and_prints_what_the_readme_says(at_root):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code, _ = executed_block(README, "predict(", {})
    lines = [line for line in code.splitlines() if line]
    assert len([line for line in lines if not line.startswith(("from ", "import "))]) <= 10
    said = re.findall(r"# prints (.*)", code)
    assert said and printed.getvalue().splitlines() == said


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
    executed_block(README, "torch.profiler", given)
    sizes = gradients(load_run("myrun"))["nbytes"].tolist()
    assert sorted(sizes) == sorted(4 * p.numel() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.all
def test_the_readme_of_data_hands_work_to_a_cluster(at_root):
    _, names = executed_block(README, "predict(", {})
    names |= {"PerTensor": PerTensor, "sweep": sweep}
    _, names = executed_block(OF_DATA, "LocalCluster(", names)
    here = load_run("data/runs/resnet50-cpu-2")
    pd.testing.assert_frame_equal(names["run"].events, here.events)
    assert len(names["table"]) == 2 * 4096
    alone = sweep(names["scenario"], n_workers=[8, 64], fusion=names["policies"])
    found = names["table"].query("n_workers in (8, 64)")
    assert found["scaling_factor"].tolist() == alone["scaling_factor"].tolist()


def test_the_readme_opens_a_run_with_parameters_that_the_notebook_has():
    (command,) = re.findall(r"^ +(\.venv/bin/papermill .*)$", README, re.M)
    _, path, _, *options = shlex.split(command)
    notebook = nbformat.read(ROOT / path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    assert options[::3] == ["-p"] * (len(options) // 3)
    assert all(re.search(rf"^{name} = ", cell.source, re.M) for name in options[1::3])


def test_the_readme_lists_every_notebook_with_its_question():
    assert [name for name, _ in LISTED] == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    for name, question in LISTED:
        first = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells[0].source
        assert first.splitlines()[0] == f"# {question}"


def test_every_file_that_is_linked_exists():
    for folder, text in zip((ROOT, ROOT / "data", ROOT), TEXTS, strict=True):
        links = re.findall(r"\]\((?!https?:)([^)#]+)[)#]", text)
        assert [link for link in links if not (folder / link).exists()] == []


@pytest.mark.slow
def test_the_pictures_have_a_text_and_are_those_that_the_notebooks_write(executed):
    assert PICTURES and all(len(text.split()) >= 10 for text, _ in PICTURES)
    for _, name in PICTURES:
        figure = Path(name).stem
        saves = f'fig, \\"{figure}\\"'  # in JSON
        (source,) = [p.stem for p in NOTEBOOKS.glob("*.ipynb") if saves in p.read_text()]
        written = imread(executed(source).figures / f"{figure}.png")
        same = np.array_equal(written, imread(ROOT / name))
        assert same, f"cp notebooks/figures/{figure}.png notebooks/ after make figures"


def test_every_make_target_that_is_named_exists():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", "\n".join(TEXTS), re.M))
    assert {"lab", "test"} <= named <= set(targets)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_listed_as_it_is_defined(name):
    (section,) = re.findall(rf"^### {name}$(.*?)(?=^#|\Z)", OF_DATA, re.M | re.S)
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", section, re.M)
    said = {column: meaning.replace("`<NA>`", "<NA>") for column, meaning in rows[1:]}
    assert said == getattr(importlib.import_module(TABLES[name]), name)


def test_no_other_table_is_listed():
    assert set(re.findall(r"^### ([A-Z_]+)$", OF_DATA, re.M)) == set(TABLES)
