"""Notebooks 03 to 05 argue about a run of one's own, or say why not and go on with the shipped."""

import json

import nbformat
import pandas as pd
import pytest
from run_notebooks import NOTEBOOKS, execute

from workbench import whatif
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, FixedBuffer
from workbench.optimum import headroom
from workbench.recorded import scenario_of
from workbench.remedies import optimising, workloads
from workbench.timeline import predict
from workbench.traces import load_run, read_measurements

pytestmark = pytest.mark.slow
DERIVING, PREDICTING, HELPING = (
    NOTEBOOKS / f"{name}.ipynb"
    for name in ("03-deriving-osf", "04-does-it-predict", "05-what-would-help")
)


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
    assert ablated["model"].unique().tolist() == ["old-format-resnet50", "vgg16_bn"]


def test_the_ablation_knows_every_optimisation_of_the_package():
    source = "".join(cell.source for cell in nbformat.read(HELPING, as_version=4).cells)
    known = set(whatif.__all__) & (set(vars(optimising)) | set(vars(workloads)))
    assert len(known) >= 13
    missing = {name for name in known if f"whatif.{name}(" not in source}
    assert missing == {"Together"}  # several at once


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
    for receipt in (tmp_path / "figures").glob("*.receipt.json"):
        assert any(
            "v100_backward_trace" in name for name in json.loads(receipt.read_text())["inputs"]
        )
