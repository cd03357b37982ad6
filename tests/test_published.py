"""All public runs at once: the tables are those shipped, the curves follow from the cells."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Link, Ring
from workbench.fusion import PerTensor
from workbench.timeline import predict
from workbench.validation.gain import BASELINES
from workbench.validation.published import (
    CAPTIONS,
    CURVES,
    caption,
    cited,
    compared,
    forecast_curves,
    gained,
    models,
    predicted,
    published,
    scaling_curves,
    scenarios,
)

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def found():
    return published(DATA)


@pytest.fixture(scope="module")
def cells(found):
    return predicted(*found)


def test_recorded_models_keep_their_times_and_others_are_ready_evenly(found):
    _, gradients = found
    v100 = gradients["resnet50"]
    assert (len(v100), v100["one_worker_s"].iloc[0]) == (161, 0.128086)
    assert v100["ready_s"].diff().nunique() > 100
    bert = gradients["bert_base"]
    np.testing.assert_allclose(np.diff(bert["ready_s"]), 2 / 3 / len(bert))


def test_every_source_is_predicted(cells):
    assert set(cells["dataset"]) == {"B-Caffe", "ddl-benchmarks", "huyutuo", "BatchAI", "Pollux"}
    assert np.isfinite(cells[["measured", "predicted"]]).all(axis=None)


def test_the_whole_iteration_is_compared_and_only_of_osf(cells):
    told = compared(cells)
    assert set(told["quantity"]) == {"scaling factor", "s an iteration"}
    assert "Pollux" not in set(told["method"])
    assert "BERT-Base, Pollux" in set(told["source"])
    assert len(told) == 9 + 34 + 2 + 18 + 288 + 180 + 329


def test_gains_are_over_every_constant_buffer_and_recorded_model(found):
    gains = gained(*found)
    assert set(gains["baseline"]) == set(BASELINES)
    assert set(gains["model"]) == {"ResNet-50", "VGG-16-BN", "GoogLeNet"}
    assert (gains["gain"] > -1e-9).all()


def test_scenarios_scale_ready_times_with_the_iteration(found):
    tables, gradients = found
    made = scenarios(tables, gradients, 8, Ring(Link(1e-5, 1e-9)), PerTensor())
    assert list(made) == list(models(tables, gradients)) == ["ResNet-50", "VGG-16-BN", "BERT-Base"]
    assert made["ResNet-50"].backward_s == gradients["resnet50"]["ready_s"].max()
    bert = made["BERT-Base"]  # ddl-benchmarks: 64 samples at 212.8 a second
    assert bert.one_worker_s == pytest.approx(64 / 212.8)
    assert bert.backward_s == pytest.approx(2 / 3 * 64 / 212.8)


def test_a_forecast_has_the_predicted_factors_and_nothing_measured(found):
    made = scenarios(*found, 8, Ring(Link(1e-5, 1e-9)), PerTensor())
    table = forecast_curves(made, [1, 8])
    assert list(table) == list(CURVES)
    assert table["measured"].isna().all()
    at_8 = table.set_index(["model", "n_workers"])["predicted"]["VGG-16-BN", 8]
    assert at_8 == pytest.approx(predict(made["VGG-16-BN"]).scaling_factor)


def test_curves_of_pollux_take_t1_as_measured_and_the_largest_batch(found, cells):
    tables, _ = found
    table = scaling_curves(cells, tables)
    assert list(table) == list(CURVES)
    bert = table[(table["panel"] == "Pollux, from 4 nodes") & (table["model"] == "BERT-Base")]
    rows = tables["pollux_bert"].query("batch == 12")
    one = rows.query("n_workers == 1")["step_s"].iloc[0]
    many = rows.query("n_nodes == 16 and n_workers == 64")["step_s"].iloc[0]
    assert bert.set_index("n_workers")["measured"][64] == pytest.approx(one / many)


def test_curves_by_device_all_have_one_model(found, cells):
    table = scaling_curves(cells, found[0])
    gpus = table[table["panel"] == "BatchAI, by GPU"]
    assert set(gpus["curve"]) == {"K80", "P40", "V100"}
    assert set(gpus["model"]) == {"ResNet-50"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100_backward_trace", "github.com/netx-repo/training-bottleneck at f81b140"),
        ("batchai_resnet50", "github.com/msalvaris/BatchAIHorovodBenchmark at 0d23f48"),
        ("pollux_bert", "github.com/petuum/adaptdl at c793c70"),
        ("gradients", "torchvision 0.29.1"),
    ],
)
def test_a_source_is_cited_with_its_commit_or_its_own_words(name, expected):
    assert expected in cited(DATA, name)


def test_several_sources_of_one_table_are_each_cited_and_none_twice():
    told = cited(DATA, "alpha_beta_links", "ddl_benchmarks", "alpha_beta_links")
    assert told.count("github.com/HKBU-HPML/MG-WFBP at 5b8ad54") == 1
    assert "github.com/lzhangbv/dear_pytorch at 43138d8" in told
    assert "results" not in told


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_caption_names_the_paper_and_a_source_for_every_table(name):
    told = caption(DATA, name, own=["runs/mine.json.gz"])
    assert "10.1145/3485447.3511981" in told and "reconstructed" in told
    assert "Own: mine.json.gz." in told
    for table in CAPTIONS[name][1]:
        assert cited(DATA, table).removeprefix("Sources: ").rstrip(".") in told


def test_an_unknown_caption_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="buffer-size.*got 'mona-lisa'"):
        caption(DATA, "mona-lisa")


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"v100_backward_trace\.csv"):
        published(tmp_path)


def test_nothing_given_is_changed(found):
    tables, gradients = found
    before = {name: table.copy() for name, table in tables.items()}
    scenarios(tables, gradients, 4, Ring(Link(1e-5, 1e-9)), PerTensor())
    for name, table in before.items():
        pd.testing.assert_frame_equal(tables[name], table)
