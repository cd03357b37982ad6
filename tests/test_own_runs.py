"""Notebooks 03 to 06 argue about a run of one's own, or say why not and go on with the shipped."""

import json
import re

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from run_notebooks import NOTEBOOKS, execute
from test_notebooks import edited
from test_notebooks import said as all_said

from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, FixedBuffer
from workbench.timeline import predict, scenario_of
from workbench.traces import load_run, read_measurements
from workbench.whatif import headroom

pytestmark = pytest.mark.slow
HTML = "html.parser"
NAMES = ("03-deriving-osf", "04-does-it-predict", "05-what-would-help", "06-paper-figures")
DERIVING, PREDICTING, HELPING, FIGURES = (NOTEBOOKS / f"{name}.ipynb" for name in NAMES)


@pytest.fixture
def run(shared):
    return shared / "traces" / "kineto" / "old-format-resnet50"


@pytest.fixture
def sweep(shared):
    return shared / "traces" / "nccl_tests" / "nccl_N10_G8.log"


def said(done) -> str:
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("data", {}).get("text/plain", "") for output in outputs)


def test_the_recursion_is_derived_on_the_run_that_is_named(run, sweep, tmp_path):
    figures = tmp_path / "figures"
    execute(DERIVING, tmp_path, parameters={"RUN": run, "SWEEP": sweep, "FIGURES": figures})
    cost = fit_all_reduce(read_measurements(sweep)).model
    expected = predict(scenario_of(load_run(run), cost, 16, DDPBuckets())).timeline
    drawn = pd.read_csv(figures / "osf-step.csv")
    assert drawn["end_s"].to_numpy() == pytest.approx(expected["end_s"].to_numpy())
    inputs = json.loads((figures / "osf-step.receipt.json").read_text())["inputs"]
    assert {name.rpartition("/")[2] for name in inputs} == {
        "worker0.1623143089861.pt.trace.json.gz",
        "nccl_N10_G8.log",
    }


def test_advice_is_for_the_run_that_is_named(run, sweep, tmp_path):
    figures = tmp_path / "figures"
    given = {"RUN": run, "SWEEP": sweep, "BUFFER_MIB": 64, "FIGURES": figures}
    done = execute(HELPING, tmp_path, parameters=given)
    cost = fit_all_reduce(read_measurements(sweep), min_bytes=2**20).model
    table = headroom(scenario_of(load_run(run), cost, 32, FixedBuffer(64 * 2**20)))
    assert f"{table['scaling_factor'].iloc[0]:.4f}" in said(done)
    ablated = pd.read_csv(figures / "ablation.csv")
    assert ablated["model"].unique().tolist() == ["old-format-resnet50", "VGG-16-BN"]


def test_the_ablation_knows_every_optimisation_of_the_package():
    source = "".join(cell.source for cell in nbformat.read(HELPING, as_version=4).cells)
    assert "whatif.catalogue(" in source  # which test_whatif compares with the package
    assert "whatif.compare(naive[0], all_of_them)" in source


def test_a_forecast_stands_beside_iteration_times_of_ones_own(run, sweep, tmp_path):
    (tmp_path / "mine.csv").write_text("# ours\nn_workers,iteration_s\n1,0.17\n8,0.19\n")
    given = {"RUN": run, "SWEEP": sweep, "MEASURED": "mine.csv", "FIGURES": tmp_path / "figures"}
    done = execute(PREDICTING, tmp_path, parameters=given)
    cost = fit_all_reduce(read_measurements(sweep)).model
    scenario = scenario_of(load_run(run), cost, 8, DDPBuckets())
    exposed_s = predict(scenario).exposed_comm_s  # ready times shrink with T1, exposed stays about
    row = said(done).split("predicted_s")[1].splitlines()[2].split()
    assert float(row[3]) == pytest.approx(0.17 + exposed_s, rel=0.002)


@pytest.mark.parametrize("path", [DERIVING, HELPING], ids=lambda path: path.stem)
def test_without_sizes_it_says_so_and_goes_on_with_the_shipped_trace(path, shared, tmp_path):
    run = shared / "traces" / "kineto" / "torchrec-4rank-half-hidden"
    done = execute(path, tmp_path, parameters={"RUN": run, "FIGURES": tmp_path / "figures"})
    assert "19 of 19 gradients have no size. Record with torch.profiler" in said(done)
    receipts = [
        path
        for path in (tmp_path / "figures").glob("*.receipt.json")
        if not path.name.startswith("study")  # which is of no run of one's own
    ]
    assert receipts
    for receipt in receipts:
        assert any(
            "v100_backward_trace" in name for name in json.loads(receipt.read_text())["inputs"]
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_of_parameters_edited_by_hand_counts_as_papermill_does(name, run, sweep, tmp_path):
    (tmp_path / "mine.csv").write_text("n_workers,iteration_s\n1,0.17\n8,0.19\n")
    own = {"RUN": run, "SWEEP": sweep}
    own |= {"MEASURED": tmp_path / "mine.csv"} if name == PREDICTING.stem else {}
    lines = {key: repr(str(value)) for key, value in own.items()}  # a text, or a Path
    lines |= {
        "SWEEP": f"Path({str(sweep)!r})",
        "VENUE": "'ieee'",
        "FIGURES": f"{str(tmp_path / 'hand')!r}",
    }
    nbformat.write(edited(NOTEBOOKS / f"{name}.ipynb", **lines), tmp_path / "edited.ipynb")
    by_hand = execute(tmp_path / "edited.ipynb", cwd=tmp_path)
    given = own | {"VENUE": "ieee", "FIGURES": tmp_path / "papermill"}
    by_papermill = execute(NOTEBOOKS / f"{name}.ipynb", cwd=tmp_path, parameters=given)
    assert all_said(by_hand) == all_said(by_papermill)
    for path in (tmp_path / "papermill").glob("*.csv"):
        assert path.read_bytes() == (tmp_path / "hand" / path.name).read_bytes(), path.name
    assert "NaN" not in all_said(by_hand)
    pages = [output.get("data", {}) for cell in by_hand.cells for output in cell.get("outputs", [])]
    assert not any("...</td>" in page.get("text/html", "") for page in pages), "a cell is cut"


def ratios(done) -> list[float]:
    """Every ratio to what was found by hand, or by a closed form: rows of series, then columns."""
    found = []
    for cell in done.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            text, table = data.get("text/plain", ""), BeautifulSoup(data.get("text/html", ""), HTML)
            if "by hand" in text or "by_hand" in text or "closed form" in text:
                found += re.findall(r"^ratio +(\S+)$", text, re.M)
                found += [row[at] for at, row in columns(table) if row[at] != "both 0"]
    return [float(each) for each in found]


def columns(page):
    """Place of the column named ratio, and each row."""
    for table in page.find_all("table"):
        names = [cell.text for cell in table.find("thead").find("tr").find_all("th")]
        for row in table.find("tbody").find_all("tr") if "ratio" in names else []:
            yield names.index("ratio"), [cell.text for cell in row.find_all(["th", "td"])]


@pytest.mark.parametrize("name", ["old-format-resnet50", "rccl-generic-names", "amd-mi250"])
@pytest.mark.parametrize("path", [DERIVING, HELPING], ids=lambda path: path.stem)
def test_what_is_worked_out_by_hand_holds_for_any_run(path, name, shared, sweep, tmp_path):
    given = {"RUN": shared / "traces" / "kineto" / name, "SWEEP": sweep, "FIGURES": tmp_path}
    found = ratios(execute(path, cwd=tmp_path, parameters=given))
    assert len(found) >= 5
    bound = [0] if path == DERIVING else [1]  # the optimum lies above its bound, or on it
    exact = [each for at, each in enumerate(found) if path == DERIVING or at not in bound]
    assert exact == pytest.approx([1] * len(exact), rel=1e-4)
    assert path == DERIVING or found[1] >= 1


def test_advice_on_a_log_of_large_messages_says_what_is_extrapolated(run, sweep, tmp_path):
    done = execute(HELPING, cwd=tmp_path, parameters={"RUN": run, "SWEEP": sweep,
                                                      "FIGURES": tmp_path})  # fmt: skip
    text = all_said(done)
    told = "messages below 32 MiB: price extrapolated"
    assert (
        f"# PyTorch DDP: keep the default: no round setting gains more than 1.00%; {told}" in text
    )
    assert told in (tmp_path / "fusion-loss.svg").read_text()
    assert "no knee between 16 and 1,024" in text
