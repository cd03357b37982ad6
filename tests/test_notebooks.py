"""Every notebook runs from another folder, on other people's files too, and stays readable."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient.exceptions import CellExecutionError
from run_notebooks import NOTEBOOKS, execute
from test_lanes import HTML, two_steps

from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets
from workbench.recorded import scenario_of
from workbench.timeline import predict
from workbench.traces import load_run, read_measurements

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
START, TIME, PRICE = (PATHS[at] for at in range(3))
ALWAYS = {".pdf", ".svg", ".png", ".csv", ".json"}


def cells(path: Path, kind: str) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def code_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip()]


def outputs(done) -> list:
    return [output for cell in done.cells for output in cell.get("outputs", [])]


def complaints(done) -> str:
    """All that was written to stderr, warnings first of all."""
    return "".join(output["text"] for output in outputs(done) if output.get("name") == "stderr")


def said(done) -> str:
    """All that is shown as text."""
    return "\n".join(output.get("data", {}).get("text/plain", "") for output in outputs(done))


def test_there_are_notebooks():
    assert PATHS and PATHS[0].name == "00-start-here.ipynb"


@pytest.mark.slow
@EACH
def test_it_runs_from_another_folder_and_saves_its_figures(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    figures = {"FIGURES": tmp_path / "figures"}
    done = execute(path, cwd=tmp_path / "elsewhere", timeout=120, parameters=figures)
    assert complaints(done) == ""
    assert "NaN" not in said(done) and "Empty DataFrame" not in said(done)
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} >= ALWAYS
    assert not list((tmp_path / "elsewhere").iterdir()), "a notebook leaves nothing where it runs"


@pytest.mark.slow
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(tmp_path):
    with pytest.raises(CellExecutionError, match="unknown parameter RUNS; did you mean RUN") as e:
        execute(START, cwd=tmp_path, parameters={"RUNS": "here"})
    assert "It has RUN, SWEEP, BACKWARD" in str(e.value)


@pytest.mark.slow
def test_papermill_runs_the_first_notebook_on_a_run_without_sizes_and_a_log(shared, tmp_path):
    run = shared / "traces" / "kineto" / "torchrec-4rank-half-hidden"
    sweep = shared / "traces" / "nccl_tests" / "nccl_N10_G8.log"
    named = {"RUN": run, "SWEEP": sweep, "FIGURES": tmp_path / "figures"}
    options = [text for name, value in named.items() for text in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", str(START), "out.ipynb", *options]
    subprocess.run([*command, "--no-progress-bar"], cwd=tmp_path, check=True, capture_output=True)
    done = nbformat.read(tmp_path / "out.ipynb", 4)
    assert "19 of 19 gradients have no size. Record with torch.profiler" in said(done)
    receipt = json.loads((tmp_path / "figures" / "scaling.receipt.json").read_text())
    assert "nccl_N10_G8.log" in str(receipt["inputs"])
    assert "published gradients" in receipt["caption"] and "up to 80 workers" in receipt["caption"]
    assert "published gradients" in (tmp_path / "figures" / "scaling.svg").read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"out.ipynb", "figures"}


@pytest.mark.slow
def test_the_forecast_is_about_the_gradients_of_the_run_that_is_named(shared, tmp_path):
    run = shared / "traces" / "kineto" / "old-format-resnet50"
    done = execute(START, parameters={"RUN": run, "FIGURES": tmp_path})
    assert "parameters of resnet50, which has as many" in said(done)
    sweep = NOTEBOOKS.parent / "data" / "published" / "nccl_32gpu_100gbit_ring.csv"
    fit = fit_all_reduce(read_measurements(sweep), min_bytes=2**20)
    expected = predict(scenario_of(load_run(run), fit.model, 64, DDPBuckets())).scaling_factor
    found = pd.read_csv(tmp_path / "scaling.csv").set_index(["fusion", "n_workers"])
    assert found.loc[("DDP buckets", 64), "scaling_factor"] == pytest.approx(expected)
    assert "the run's own gradients" in (tmp_path / "scaling.caption.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrec-4rank-straggler", "rccl-generic-names"])
def test_where_the_time_goes_takes_a_run_of_gpus_by_its_path_alone(name, shared, tmp_path):
    run = shared / "traces" / "kineto" / name
    done = execute(TIME, parameters={"RUN": run, "FIGURES": tmp_path}, timeout=120)
    assert f"run: {name}" in said(done)
    assert "name their log in SWEEP" in said(done)
    assert "NaN" not in said(done) and "Empty DataFrame" not in said(done)
    assert (tmp_path / "run-timeline.pdf").exists()


@pytest.mark.slow
def test_the_price_is_that_of_the_collective_that_was_timed(shared, tmp_path):
    sweep = shared / "traces" / "nccl_tests" / "nccl_alltoall.log"
    execute(PRICE, parameters={"SWEEP": sweep, "FIGURES": tmp_path}, timeout=120)
    receipt = json.loads((tmp_path / "price-of-a-link.receipt.json").read_text())
    assert receipt["parameters"]["op"] == "all_to_all"


@pytest.mark.slow
def test_names_that_hold_html_and_script_are_shown_as_text(write_trace, tmp_path):
    run = write_trace(two_steps(HTML), f"{HTML.replace('/', '')}.json")
    done = execute(TIME, parameters={"RUN": run, "FIGURES": tmp_path / "figures"})
    pages = [output.get("data", {}).get("text/html", "") for output in outputs(done)]
    states = done.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    shown = pages + [str(state["state"].get("value", "")) for state in states]
    assert any("&lt;script" in text for text in pages), "the run's own name"
    assert any("&lt;script" in text for text in shown[len(pages) :]), "the kernels' names"
    assert not [text for text in shown if re.search(r"<(script|img)\b(?! src=.data)", text)]


@EACH
def test_its_parameters_stand_in_one_cell_and_are_settled_in_the_next(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    (at,) = [i for i, cell in enumerate(code) if "parameters" in cell.metadata.get("tags", ())]
    lines = code[at].source.splitlines()
    assert lines[-1] == "DEFAULTS = defaults(globals())"
    assert all(re.match(r"[\w, ]+ = |[ )\]}]", line) for line in lines), "a name a line"
    assert any(line.startswith("FIGURES = None") for line in lines)
    settled = f'RECIPE = settle("{path.stem}", DEFAULTS, globals())'
    assert code[at + 1].source.splitlines()[0] == settled


@EACH
def test_it_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata


@EACH
def test_it_opens_with_a_question_its_answer_and_how_to_put_in_a_run_of_ones_own(path):
    first = cells(path, "markdown")[0]
    assert re.match(r"# .+\?$", first.splitlines()[0]), "the title is a question"
    assert "Answer" in first and "*Inputs*" in first and "*Outputs*" in first
    assert re.search(r"\byour own\b", first, re.I)


@EACH
def test_it_stays_within_the_limits_of_length(path):
    code = cells(path, "code")
    assert len(code) + len(cells(path, "markdown")) <= 40
    assert max(len(source.splitlines()) for source in code) <= 10
    assert sum(len(code_lines(source)) for source in code) <= 120


@EACH
def test_it_argues_more_than_it_computes(path):
    n_words = sum(len(source.split()) for source in cells(path, "markdown"))
    n_lines = sum(len(code_lines(source)) for source in cells(path, "code"))
    assert n_words >= 5 * n_lines


@EACH
def test_it_defines_no_function_or_class_and_catches_no_error(path):
    for source in cells(path, "code"):
        assert not re.search(r"^\s*(def|class|async def|try|except)\b", source, re.M), source


def test_no_two_notebooks_save_a_figure_under_one_name():
    saved = r'\b(?:save|keep)\(fig, "([\w-]+)"'
    names = [
        name for path in PATHS for code in cells(path, "code") for name in re.findall(saved, code)
    ]
    assert len(names) >= 18 and len(names) == len(set(names)), sorted(names)
