"""What is shipped in data/: small, with its sources, equal to what it was tabulated from."""

import gzip
import json
import os
import re
from collections import Counter
from itertools import groupby
from math import prod
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.base.tables import GRADIENTS, MEASUREMENTS, check

DATA = Path(__file__).parents[1] / "data"
PUBLISHED = Path(__file__).parents[2] / "shared" / "published"
RUNS = ["resnet50-cpu-1", "resnet50-cpu-2", "transformer-cpu-1", "transformer-cpu-2"]
HOROVOD = "horovod-cpu-2"
SWEEPS = {
    "nccl_32gpu_100gbit_ring.csv": "100g/ring-100g-stepexp2.txt",
    "nccl_32gpu_100gbit.csv": "100g/100g-stepexp2-2.txt",
}


def source(name):
    if not (PUBLISHED / name).exists():
        pytest.skip(f"{name}: the table this was tabulated from is not beside the repository")
    return pd.read_csv(PUBLISHED / name, comment="#")


def shipped(name):
    return pd.read_csv(DATA / name, comment="#")


def test_data_stay_under_8_mb():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 8e6


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.csv")), ids=lambda path: path.name)
def test_tables_begin_with_their_source(path):
    assert path.read_text(encoding="utf-8").startswith("# source: ")


@pytest.mark.parametrize("folder", ["models", "published"])
def test_tabulated_numbers_name_a_licence(folder):
    for path in (DATA / folder).glob("*.csv"):
        assert re.search(r"^# licences?: ", path.read_text(encoding="utf-8"), re.MULTILINE), path


# Trainable parameters and tensors as published for torchvision, transformers and timm.
@pytest.mark.parametrize(
    ("model", "n_gradients", "n_parameters"),
    [
        ("alexnet", 16, 61_100_840),
        ("vgg16", 32, 138_357_544),
        ("vgg16_bn", 58, 138_365_992),
        ("resnet18", 62, 11_689_512),
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("resnet152", 467, 60_192_808),
        ("inception_v3", 292, 27_161_264),
        ("bert_base", 206, 110_106_428),
        ("bert_large", 398, 336_226_108),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_their_published_size(model, n_gradients, n_parameters):
    table = shipped("models/gradients.csv").query("model == @model")
    assert (len(table), table["nbytes"].sum()) == (n_gradients, 4 * n_parameters)


def test_model_sizes_equal_the_library_tables_in_reverse():
    tensors = source("model_tensors_torch.csv")
    table = shipped("models/gradients.csv")
    compared = 0
    for model, own in table.groupby("model"):
        given = tensors[tensors["model"] == model].sort_values(
            "index_registration_order", ascending=False
        )
        if len(given):
            compared += 1
            assert own["name"].tolist() == given["name"].tolist()
            assert own["nbytes"].tolist() == given["bytes_fp32"].tolist()
    assert compared == 12


def test_v100_ready_times_sum_the_published_waits():
    waits = source("netai20_backward_trace.csv").replace({"model": {"vgg16": "vgg16_bn"}})
    own = shipped("published/v100_backward_trace.csv")
    assert own["nbytes"].tolist() == waits["bytes"].tolist()
    for model, table in own.groupby("model"):
        each = np.diff(table["ready_s"], prepend=0.0)
        np.testing.assert_allclose(
            each, waits[waits["model"] == model]["wait_us"] / 1e6, atol=2e-12
        )


@pytest.mark.parametrize(("model", "backward_s"), [("resnet50", 0.064807), ("vgg16_bn", 0.111620)])
def test_v100_backward_times_and_sizes_fit_the_models(model, backward_s):
    table = shipped("published/v100_backward_trace.csv").query("model == @model")
    assert table["ready_s"].iloc[-1] == pytest.approx(backward_s, abs=1e-6)  # published to the us
    assert (table["ready_s"].diff().dropna() >= 0).all()
    sizes = shipped("models/gradients.csv").query("model == @model")
    assert table["nbytes"].sum() == sizes["nbytes"].sum()


def test_one_worker_times_are_those_beside_the_trace():
    times = shipped("published/one_worker.csv").set_index("model")["seconds"]
    assert times.to_dict() == {"resnet50": 0.128086, "resnet101": 0.192006, "vgg16_bn": 0.194524}
    trace = shipped("published/v100_backward_trace.csv")
    assert (trace["one_worker_s"] == trace["model"].map(times)).all()


@pytest.mark.parametrize(("name", "file"), SWEEPS.items())
def test_nccl_sweeps_equal_the_published_times(name, file):
    own = check(shipped(f"published/{name}"), MEASUREMENTS, name)
    given = source("dexhunter_nccl_allreduce_32gpu.csv").query("file == @file")
    assert own["nbytes"].tolist() == given["bytes"].tolist()
    np.testing.assert_allclose(own["seconds"], given["time_us"] / 1e6, rtol=1e-12)
    assert set(own["n_workers"]) == {32} and set(own["n_nodes"]) == {8}


def test_osu_sweep_equals_the_published_latencies():
    own = check(shipped("published/osu_8node_10gbe.csv"), MEASUREMENTS, "OSU")
    given = source("bcaffe_osu_allreduce.csv")
    assert own["nbytes"].tolist() == given["bytes"].tolist()
    assert own["n_workers"].tolist() == own["n_nodes"].tolist() == given["n_nodes"].tolist()
    np.testing.assert_allclose(own["seconds"], given["latency_us"] / 1e6, rtol=1e-12)


def test_horovod_sweep_equals_the_published_means_and_claims_no_nodes():
    own = check(shipped("published/horovod_lisa_cpu.csv"), MEASUREMENTS, "Horovod")
    given = source("hse_lisa_cpu_allreduce.csv")
    assert own["nbytes"].tolist() == (4 * given["side"] ** 2).tolist()
    assert own["n_workers"].tolist() == given["n_processes"].tolist()
    assert own["n_nodes"].isna().all()
    np.testing.assert_allclose(own["seconds"], given["mean_s"], rtol=1e-12)


def test_sweeps_cover_the_workers_that_the_docs_name():
    osu, horovod = (
        shipped(f"published/{name}.csv") for name in ("osu_8node_10gbe", "horovod_lisa_cpu")
    )
    assert osu.groupby("n_workers").size().to_dict() == {2: 266, 4: 266, 8: 266}
    assert horovod.groupby("n_workers").size().to_dict() == dict.fromkeys(range(1, 33), 20)


def test_googlenet_runs_hold_the_published_layers():
    given = source("bcaffe_googlenet_layer_trace.csv").query("file == 'tmp8ocomm' and `pass` == 0")
    own = shipped("published/googlenet_k80_trace.csv").query("run == 'tmp8ocomm'")
    layers = given.assign(layer=given["param_id"] // 2).groupby("layer")
    assert own["nbytes"].tolist() == (4 * layers["numel"].sum())[::-1].tolist()
    np.testing.assert_allclose(own["comm_s"], layers["comm_us"].sum()[::-1] / 1e6)
    each = layers["layer_backward_us"].first()[::-1] / 1e6
    np.testing.assert_allclose(np.diff(own["ready_s"], prepend=0.0), each, atol=2e-9)


def test_googlenet_and_ddl_speeds_are_the_published_ones():
    given = source("bcaffe_real_speed.csv")["images_per_s"].tolist()
    assert shipped("published/googlenet_k80_speed.csv")["images_per_s"].tolist() == given
    given = source("ddl_benchmarks_throughput.csv")
    given = given[given["method"].isin(["BSP-A2A", "WFBP-A2A", "MG-WFBP"])]
    own = shipped("published/ddl_benchmarks.csv")
    assert own["samples_per_s"].tolist() == given["samples_per_s"].tolist()
    assert own["n_workers"].tolist() == given["n_gpus"].tolist()


@pytest.mark.parametrize("name", ["imagenet", "bert", "cifar10"])
def test_placements_are_the_published_ones(name):
    own = shipped(f"published/pollux_{name}.csv")
    placed = source(f"pollux_{name}_placements.csv").dropna()
    given = [*placed["step_time"], *source(f"pollux_{name}_scalability.csv")["step_time"].dropna()]
    np.testing.assert_allclose(own["step_s"], given, rtol=1e-4)
    digits = [list(map(int, str(place))) for place in placed["placement"]]
    assert own["n_nodes"][: len(placed)].tolist() == list(map(len, digits))
    assert own["n_workers"][: len(placed)].tolist() == list(map(sum, digits))


def test_links_gpus_and_contention_are_the_published_ones():
    links = shipped("published/alpha_beta_links.csv")
    given = source("alpha_beta_tables.csv")
    for link in links.itertuples():
        same = np.isclose(given["beta"], link.beta, rtol=1e-5) & (
            given["n_workers"] == str(link.n_workers)
        )
        alphas = pd.to_numeric(given["alpha"][same], errors="coerce")
        assert np.isclose(alphas, link.alpha, rtol=1e-5).any()
    given = source("batchai_horovod_throughput.csv").query("model == 'resnet50'")
    assert (
        shipped("published/batchai_resnet50.csv")["images_per_s"].tolist()
        == given["images_per_s"].tolist()
    )
    given = source("dl_scheduling_allreduce_contention.csv")["avg_latency"] / 1e6
    np.testing.assert_allclose(
        shipped("published/allreduce_contention.csv")["seconds"], given, atol=1e-6
    )


def test_fusion_runs_are_the_published_ones():
    given = source("huyutuo_horovod_runs.csv").query("model == 'resnet50'")
    own = shipped("published/horovod_fusion_runs.csv")
    for seconds, setting in zip(
        own["seconds"], ["fusion on", "fusion off", "single GPU"], strict=True
    ):
        same = given[given["setting"].str.startswith(setting)]
        assert seconds == pytest.approx(same["batch_ms"].iloc[0] / 1e3)


def test_own_sweep_covers_1_kib_to_64_mib():
    table = check(shipped("runs/gloo-sweep/all_reduce.csv"), MEASUREMENTS, "own sweep")
    assert table["nbytes"].tolist() == [2**k for k in range(10, 27)]
    assert set(table["n_workers"]) == {2} and set(table["n_nodes"]) == {1}


@pytest.mark.parametrize("name", [*RUNS, HOROVOD])
def test_runs_say_that_they_are_cpu_runs(name):
    run = json.loads((DATA / "runs" / name / "run.json").read_text(encoding="utf-8"))
    assert run["kind"].startswith("CPU run, no GPU")
    assert run["backend"] == ("gloo" if run["world_size"] == 2 else "none")
    assert run["n_nodes"] == 1
    assert run["world_size"] == int(name[-1])


@pytest.mark.parametrize("name", RUNS)
def test_runs_hold_a_trace_and_hook_times_a_rank(name):
    folder = DATA / "runs" / name
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    ranks = range(run["world_size"])
    wanted = {f"rank{r}.json.gz" for r in ranks} | {f"gradients_rank{r}.csv" for r in ranks}
    assert {path.name for path in folder.iterdir()} == wanted | {"run.json"}
    for rank in ranks:
        times = check(shipped(f"runs/{name}/gradients_rank{rank}.csv"), GRADIENTS, name)
        each = times.groupby("iteration")
        assert (each.size() == run["n_gradients"]).all()
        assert (each["ready_s"].diff().dropna() >= 0).all()
        assert (each["nbytes"].sum() == run["gradient_bytes"]).all()


@pytest.fixture(scope="module")
def horovod():
    """run.json of the run under Horovod, and the events of its timeline."""
    folder = DATA / "runs" / HOROVOD
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return run, json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))


def test_horovod_timeline_reduces_every_gradient_in_every_iteration(horovod):
    run, events = horovod
    ends = [event for event in events if event["ph"] == "E" and "args" in event]
    times = Counter(event["pid"] for event in ends)
    assert len(times) == run["n_gradients"] == 161
    assert set(times.values()) == {run["n_iterations"]}
    shapes = [json.loads(event["args"]["shape"]) for event in ends]
    assert sum(4 * prod(shape) for shape in shapes) == run["n_iterations"] * run["gradient_bytes"]


def test_horovod_run_holds_fused_messages_and_says_its_settings(horovod):
    run, events = horovod
    # Horovod writes the beginnings of one message's tensors next to each other.
    names = [event.get("name") for event in events]
    messages = [len([*same]) for name, same in groupby(names) if name == "GLOO_ALLREDUCE"]
    assert sum(messages) == run["n_iterations"] * run["n_gradients"]
    copied = [name for name, _ in groupby(names) if name == "MEMCPY_IN_FUSION_BUFFER"]
    assert len(copied) == sum(n_tensors > 1 for n_tensors in messages) > 0
    assert (run["fusion_threshold_bytes"], run["cycle_s"]) == (128 * 2**20, 0.001)


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.json.gz")), ids=lambda p: p.parent.name)
def test_traces_hold_neither_host_nor_user_nor_path(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    assert not re.search(r'"(host_name|hostname|traceName|user)"|/home/|/root/|/tmp/', text)
    assert f'"{os.uname().nodename}"' not in text
