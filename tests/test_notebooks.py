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
from papermill.translators import PythonTranslator
from run_notebooks import NOTEBOOKS, execute
from test_lanes import HTML, two_steps

from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets
from workbench.notebooks import rebuild
from workbench.timeline import predict, scenario_of
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
    return "\n".join(map(output_text, outputs(done)))


def output_text(output) -> str:
    return output.get("text", "") + output.get("data", {}).get("text/plain", "")


def edited(path: Path, **lines: str) -> nbformat.NotebookNode:
    """The notebook after what README advises: lines of its cell of parameters written anew."""
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    for name, value in lines.items():
        before = re.findall(rf"^{name} = .*$", cell.source, re.M)
        cell.source = cell.source.replace(before[0], f"{name} = {value}")
        assert len(before) == 1, name
    return notebook


def told(folder: Path, name: str) -> dict:
    """What a saved figure's files say, but for what may differ from run to run."""
    receipt = json.loads((folder / f"{name}.receipt.json").read_text())
    return {key: receipt[key] for key in ("recipe", "inputs", "parameters", "caption", "alt")}


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
    tables = [output.get("data", {}).get("text/html", "") for output in outputs(done)]
    assert not re.findall(r"[^>]*[^>.]\.\.\.</td>", "".join(tables)), "a reason that is cut"
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} >= ALWAYS
    assert not list((tmp_path / "elsewhere").iterdir()), "a notebook leaves nothing where it runs"


@pytest.mark.slow
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(tmp_path):
    with pytest.raises(CellExecutionError, match="unknown parameter RUNS; did you mean RUN") as e:
        execute(START, cwd=tmp_path, parameters={"RUNS": "here"})
    assert "It has RUN, SWEEP, SIZES" in str(e.value)


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
    assert "gradients of old-format-resnet50" in (tmp_path / "scaling.caption.txt").read_text()
    assert "below 2 MiB: price extrapolated" in (tmp_path / "scaling.caption.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "figure"),
    [(START, "scaling"), (TIME, "run-timeline"), (PRICE, "price-of-a-link")],
    ids=["00", "01", "02"],
)
def test_a_run_and_timings_count_alike_by_hand_as_text_or_path_and_by_papermill(
    path, figure, shared, tmp_path
):
    run = shared / "traces" / "kineto" / "rccl-generic-names"
    sweep = NOTEBOOKS.parent / "data" / "runs" / "gloo-sweep" / "all_reduce.csv"
    ways = {"text": "{!r}", "path": "Path({!r})"}
    for way, form in ways.items():
        values = {"RUN": run, "SWEEP": sweep, "VENUE": "ieee", "FIGURES": tmp_path / way}
        lines = {k: form.format(str(v)) if k != "VENUE" else repr(v) for k, v in values.items()}
        nbformat.write(edited(path, **lines), tmp_path / "mine.ipynb")
        execute(tmp_path / "mine.ipynb", cwd=tmp_path, timeout=120)
    execute(path, parameters=values | {"FIGURES": tmp_path / "papermill"}, timeout=120)
    found = [told(tmp_path / way, figure) for way in (*ways, "papermill")]
    assert found[0] == found[1] == found[2]
    recipe = found[0]["recipe"]
    assert recipe["parameters"]["VENUE"] == "ieee" and {"RUN", "SWEEP"} <= set(recipe["paths"])
    read = " ".join(found[0]["inputs"])
    assert ("resnet_act" if path == TIME else "all_reduce.csv") in read and "published" not in read
    assert path == PRICE or "rccl-generic-names" in found[0]["caption"]
    csv = [(tmp_path / way / f"{figure}.csv").read_bytes() for way in (*ways, "papermill")]
    assert csv[0] == csv[1] == csv[2]
    again = rebuild(tmp_path / "text" / f"{figure}.receipt.json", RUN=run)
    assert not again["moved"].any(), again.to_string()


@pytest.mark.slow
def test_the_models_sizes_make_the_forecast_of_a_trace_without_sizes_its_own(shared, tmp_path):
    run = shared / "traces" / "kineto" / "ddp-resnet50-2gpu"
    given = {"RUN": run, "SIZES": "resnet50", "FIGURES": tmp_path}
    done = execute(START, parameters=given)
    assert "Scenario: 161 gradients, 97.5 MiB" in said(done)
    assert "gradients of ddp-resnet50-2gpu" in told(tmp_path, "scaling")["caption"]
    table = pd.read_csv(NOTEBOOKS.parent / "data" / "models" / "gradients.csv", comment="#")
    table[table["model"] == "vgg16"].to_csv(tmp_path / "vgg.csv")
    done = execute(START, parameters=given | {"SIZES": tmp_path / "vgg.csv"})
    assert "expected 161 gradients as in the trace, got 32" in said(done)
    done = execute(START, parameters=given | {"SIZES": None})
    assert "161 of 161 gradients have no size" in said(done) and "SIZES in notebook" in said(done)


@pytest.mark.slow
def test_sizes_that_were_not_timed_and_prices_not_determined_are_told(tmp_path):
    sweep = read_measurements(NOTEBOOKS.parent / "data/published/nccl_32gpu_100gbit_ring.csv")
    sweep[sweep["nbytes"] >= 2**25].to_csv(tmp_path / "large.csv", index=False)
    done = execute(START, parameters={"SWEEP": tmp_path / "large.csv", "FIGURES": tmp_path})
    words = "messages below 32 MiB: price extrapolated"
    scenario = next(text for text in map(output_text, outputs(done)) if "Scenario:" in text)
    assert words in scenario and "alpha: not determined by these timings" in scenario
    assert words in told(tmp_path, "scaling")["caption"]
    picture = (tmp_path / "scaling.svg").read_text()
    assert words in picture and "published gradients" in picture
    label = re.search(r"against ([^.]*)\.", told(tmp_path, "scaling")["alt"])[1]
    assert label.startswith("number of workers") and "gradients" not in label


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
def test_it_asks_for_none_and_never_compares_with_what_its_parameters_were(path):
    assert not any("DEFAULTS.values" in source for source in cells(path, "code"))


@EACH
def test_papermill_knows_every_parameter(path):
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    known = {parameter.name for parameter in PythonTranslator.inspect(cell)}
    assert known == set(re.findall(r"^([A-Z_]+)", cell.source, re.M))
    assert {"RUN", "SWEEP", "VENUE", "FIGURES"} <= known


@pytest.mark.parametrize("path", PATHS[:3], ids=[path.stem for path in PATHS[:3]])
def test_its_answer_says_that_it_is_about_what_is_shipped(path):
    answer = re.search(r"\*\*Answer.*?\*\*", cells(path, "markdown")[0], re.S)[0]
    assert re.match(r"\*\*Answer, for (what is|the) shipped", answer)
    assert "stay those" in cells(path, "markdown")[0]


@pytest.mark.parametrize("path", PATHS[:3], ids=[path.stem for path in PATHS[:3]])
def test_every_figure_of_it_is_drawn_for_the_venue(path):
    calls = re.findall(r"\bpaper\(([^)]*)", "\n".join(cells(path, "code")))
    assert calls and all(call.startswith("VENUE") for call in calls)


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
