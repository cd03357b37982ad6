"""Predictions beside published measurements: the aims reached, and what calibrates them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Affine, Link, Ring
from workbench.fusion import MergedGradients, OneMessage, PerTensor
from workbench.timeline import Scenario, predict
from workbench.validation.cells import (
    VALIDATION,
    evenly_ready,
    logged_links,
    stretched,
    summary,
    validate_bcaffe,
    validate_contention,
    validate_ddl,
    validate_gpus,
    validate_horovod,
)

PUBLISHED = Path(__file__).parents[1] / "data" / "published"


def published(name):
    return pd.read_csv(PUBLISHED / name, comment="#")


@pytest.fixture(scope="module")
def v100():
    trace = published("v100_backward_trace.csv").query("model == 'resnet50'")
    return trace.assign(name=trace["index"].astype(str))[["name", "nbytes", "ready_s"]]


@pytest.fixture(scope="module")
def ddl(v100):
    sizes = pd.read_csv(PUBLISHED.parent / "models" / "gradients.csv", comment="#")
    bert = {
        name: evenly_ready(sizes[sizes["model"] == model], 1.0)
        for name, model in {"BERT-Base": "bert_base", "BERT-Large": "bert_large"}.items()
    }
    planned = published("alpha_beta_links.csv")
    planned["network"] = planned["network"].replace({"56Gb IB": "100GbE", "100Gb IB": "100GbE"})
    return published("ddl_benchmarks.csv"), {"ResNet-50": v100} | bert, planned


@pytest.fixture(scope="module")
def bcaffe():
    trace, speed = published("googlenet_k80_trace.csv"), published("googlenet_k80_speed.csv")
    return validate_bcaffe(trace, speed)


def test_googlenet_wfbp_is_within_10_percent_of_the_published_factors(bcaffe):
    wfbp = bcaffe[bcaffe["method"] == "WFBP"].set_index("n_workers")
    assert wfbp["measured"].round(3).to_dict() == {2: 0.916, 4: 0.917, 8: 0.770}
    assert wfbp["error"].abs().max() < 0.10


def test_googlenet_wfbp_is_the_recursion_on_the_logged_times(bcaffe):
    # 0.787 and 0.769, of two runs on 8 nodes; 0.999 of the one on 2
    wfbp = bcaffe[bcaffe["method"] == "WFBP"].set_index("n_workers")["predicted"]
    assert wfbp[8] == pytest.approx((0.787 + 0.769) / 2, abs=1e-3)
    assert wfbp[2] == pytest.approx(0.999, abs=1e-3)


def test_nine_cells_of_googlenet_are_within_the_error_of_the_paper(bcaffe):
    assert len(bcaffe) == 9
    assert bcaffe["error"].abs().mean() < 0.084


def test_one_message_after_backward_needs_no_recursion(bcaffe):
    trace = published("googlenet_k80_trace.csv").query("n_workers == 2")
    link = logged_links(trace).iloc[0]
    seconds = link["alpha"] + link["beta"] * trace["nbytes"].sum()
    one_worker_s = 64 / 163.36
    after = bcaffe.query("n_workers == 2 and method == 'SyncEASGD'")["predicted"].item()
    assert after == pytest.approx(one_worker_s / (one_worker_s + seconds), rel=1e-12)


def test_no_speed_of_several_workers_moves_a_prediction_of_googlenet(bcaffe):
    speed = published("googlenet_k80_speed.csv")
    speed.loc[speed["n_workers"] > 1, "images_per_s"] *= 0.5
    again = validate_bcaffe(published("googlenet_k80_trace.csv"), speed)
    assert again["predicted"].tolist() == bcaffe["predicted"].tolist()


def test_wfbp_and_merged_gradients_are_within_the_error_of_the_paper(ddl):
    table = validate_ddl(*ddl)
    assert table.groupby("n_workers").size().to_dict() == {8: 12, 16: 12, 32: 10}
    assert table["error"].abs().mean() < 0.084


def test_the_row_that_sets_the_latency_is_not_counted(ddl):
    table = validate_ddl(*ddl)
    assert table.query("model == 'ResNet-50' and n_workers == 32 and method == 'WFBP'").empty


def test_only_calibrating_rows_move_a_prediction_of_ddl(ddl):
    throughput, gradients, planned = ddl
    table = validate_ddl(*ddl)
    other = throughput.copy()
    used = (other["method"] == "BSP") | (
        (other["method"] == "WFBP") & (other["model"] == "ResNet-50") & (other["n_workers"] == 32)
    )
    other.loc[~used, "samples_per_s"] *= 1.3
    again = validate_ddl(other, gradients, planned)
    assert again["predicted"].tolist() == table["predicted"].tolist()


def test_a_synthetic_cluster_is_predicted_exactly(v100):
    """Throughputs made by the model itself give back the model, whatever its hop."""
    planned = pd.DataFrame({"network": "net", "n_workers": [8, 16, 32]})
    planned = planned.assign(alpha=5e-4, beta=1e-9)
    own, rows = stretched(v100, 0.2), []
    for n in (8, 16, 32):
        cost = Ring(Link(2e-5, 9e-10))
        merged = MergedGradients(Affine(Link(5e-4, 1e-9)), n)
        policies = {"BSP": OneMessage(), "WFBP": PerTensor(), "MG-WFBP": merged}
        for method, policy in policies.items():
            tn = predict(Scenario(own, 0.3, 0.2, n, cost, policy)).iteration_s
            rows.append(("ResNet-50", 30, "net", method, 100.0, n, 30 * n / tn))
    columns = "model batch network method one_worker_samples_per_s n_workers samples_per_s".split()
    table = validate_ddl(pd.DataFrame(rows, columns=columns), {"ResNet-50": v100}, planned)
    assert len(table) == 5
    assert table["error"].abs().max() < 1e-6


def test_an_absent_calibrating_row_is_named(ddl):
    throughput, gradients, planned = ddl
    lacking = throughput[throughput["method"] != "BSP"]
    with pytest.raises(ValueError, match="row of model ResNet-50, n_workers 32, method BSP"):
        validate_ddl(lacking, gradients, planned)
    with pytest.raises(ValueError, match="planned: expected a row of network 10GbE, n_workers 8"):
        validate_ddl(throughput, gradients, planned[planned["n_workers"] != 8])


def test_a_missing_column_is_named(ddl, v100):
    trace, speed = published("googlenet_k80_trace.csv"), published("googlenet_k80_speed.csv")
    with pytest.raises(ValueError, match="trace: missing column comm_s"):
        validate_bcaffe(trace.drop(columns="comm_s"), speed)
    with pytest.raises(ValueError, match="speed: missing column batch"):
        validate_bcaffe(trace, speed.drop(columns="batch"))
    with pytest.raises(ValueError, match="throughput: missing column method"):
        validate_ddl(ddl[0].drop(columns="method"), *ddl[1:])
    with pytest.raises(ValueError, match="runs: missing column messages"):
        validate_horovod(published("horovod_fusion_runs.csv").drop(columns="messages"), v100)


def test_a_measured_time_that_no_price_gives_is_told(v100):
    runs = published("horovod_fusion_runs.csv")
    runs["seconds"] *= np.where(runs["setting"] == "fusion on", 1e6, 1.0)
    with pytest.raises(ValueError, match="beta: no price up to 1e-06 s gives the measured time"):
        validate_horovod(runs, v100)


def test_fusion_on_and_off_differ_by_what_was_measured(v100):
    table = validate_horovod(published("horovod_fusion_runs.csv"), v100).set_index(
        ["method", "quantity"]
    )
    gap = table.loc[("off - on", "s an iteration")]
    assert gap["measured"] == pytest.approx(0.053)
    assert abs(gap["error"]) < 0.20
    assert table.loc[("fusion off", "messages an iteration"), "predicted"] == 161
    assert 4 <= table.loc[("fusion on", "messages an iteration"), "predicted"] <= 5


def test_the_run_without_fusion_does_not_set_its_own_gap(v100):
    runs = published("horovod_fusion_runs.csv")
    changed = runs.assign(seconds=runs["seconds"].mask(runs["setting"] == "fusion off", 1.0))
    both = [validate_horovod(each, v100)["predicted"].iloc[0] for each in (runs, changed)]
    assert both[0] == both[1]


def test_faster_gpus_scale_worse_over_the_same_network(v100):
    table = validate_gpus(published("batchai_resnet50.csv"), v100)
    factors = table.pivot_table(index=["case", "n_workers"], columns="method", values="predicted")
    assert (factors["k80"] > factors["p40"]).all() and (factors["p40"] > factors["v100"]).all()
    assert table.loc[table["method"] == "v100", "error"].abs().mean() < 0.084


def test_messages_that_share_a_link_are_predicted_to_share_it_evenly():
    table = validate_contention(published("allreduce_contention.csv"))
    alone = published("allreduce_contention.csv").query("n_jobs == 1")["seconds"].to_numpy()
    predicted = table["predicted"].to_numpy().reshape(3, 15)
    np.testing.assert_allclose(predicted, alone[:, None] * np.arange(2, 17))


def test_every_cell_off_by_more_than_the_paper_has_its_reason(ddl, bcaffe):
    table = pd.concat([bcaffe, validate_ddl(*ddl)])
    off = table["error"].abs() > 0.084
    assert (table["note"] != "").tolist() == off.tolist()
    assert 0 < off.sum() < len(table) / 4


def test_summary_counts_and_averages_absolute_errors():
    row = dict.fromkeys(VALIDATION, "x")
    table = pd.DataFrame([row | {"error": e} for e in (0.1, -0.2, 0.3)])
    found = summary(table).iloc[0]
    assert found["cells"] == 3
    assert (found["mean_absolute"], found["largest"]) == pytest.approx((0.2, 0.3))
    assert found["mean_error"] == pytest.approx(0.2 / 3)


def test_gradients_without_a_trace_get_ready_evenly():
    sizes = pd.DataFrame({"name": ["a", "b", "c", "d"], "nbytes": [4, 8, 8, 4]})
    assert evenly_ready(sizes, 2.0)["ready_s"].tolist() == [0.5, 1.0, 1.5, 2.0]
