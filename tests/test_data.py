"""The files in data/: small, with their sources, equal to what they were tabulated from."""

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
from conftest import published

from workbench.base.tables import GRADIENTS, MEASUREMENTS, check

DATA = Path(__file__).parents[1] / "data"
RUNS = ["resnet50-cpu-1", "resnet50-cpu-2", "transformer-cpu-1", "transformer-cpu-2"]
HOROVOD = "horovod-cpu-2"


def source(name):
    return published(name)


def shipped(name):
    return pd.read_csv(DATA / name, comment="#")


def test_data_stay_under_8_mb():
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 8e6


def test_tables_begin_with_their_source_and_licence():
    for path in DATA.rglob("*.csv"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# source: "), path
        if path.parent.name in ("models", "published"):
            assert re.search(r"^# licences?: ", text, re.MULTILINE), path


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


def test_models_equal_the_library_tables_in_reverse():
    tensors = source("model_tensors_torch.csv")
    tensors = tensors.sort_values("index_registration_order", ascending=False, kind="stable")
    given = dict(list(tensors.groupby("model")))
    own = {m: t for m, t in shipped("models/gradients.csv").groupby("model") if m in given}
    assert len(own) == 12
    for model, table in own.items():
        assert table["name"].tolist() == given[model]["name"].tolist()
        assert table["nbytes"].tolist() == given[model]["bytes_fp32"].tolist()


@pytest.mark.parametrize(("model", "backward_s"), [("resnet50", 0.064807), ("vgg16_bn", 0.111620)])
def test_v100_times_and_sizes_are_those_of_the_models(model, backward_s):
    trace = shipped("published/v100_backward_trace.csv")
    table = trace.query("model == @model")
    assert table["ready_s"].iloc[-1] == pytest.approx(backward_s, abs=1e-6)  # published to the us
    assert (table["ready_s"].diff().dropna() >= 0).all()
    sizes = shipped("models/gradients.csv").query("model == @model")
    assert table["nbytes"].sum() == sizes["nbytes"].sum()
    times = shipped("published/one_worker.csv").set_index("model")["seconds"]
    assert times.to_dict() == {"resnet50": 0.128086, "resnet101": 0.192006, "vgg16_bn": 0.194524}
    assert (trace["one_worker_s"] == trace["model"].map(times)).all()


def test_v100_ready_times_sum_the_published_waits():
    waits = source("netai20_backward_trace.csv").replace({"model": {"vgg16": "vgg16_bn"}})
    own = shipped("published/v100_backward_trace.csv")
    assert own["nbytes"].tolist() == waits["bytes"].tolist()
    for model, table in own.groupby("model"):
        each = np.diff(table["ready_s"], prepend=0.0)
        wait_s = waits.loc[waits["model"] == model, "wait_us"] / 1e6
        np.testing.assert_allclose(each, wait_s, atol=2e-12)


def nccl(file):
    given = source("dexhunter_nccl_allreduce_32gpu.csv").query("file == @file")
    return given["bytes"], 32, 8, given["time_us"] / 1e6


def osu():
    given = source("bcaffe_osu_allreduce.csv")
    return given["bytes"], given["n_nodes"], given["n_nodes"], given["latency_us"] / 1e6


def horovod_sweep():
    given = source("hse_lisa_cpu_allreduce.csv")
    return 4 * given["side"] ** 2, given["n_processes"], np.nan, given["mean_s"]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("nccl_32gpu_100gbit_ring", lambda: nccl("100g/ring-100g-stepexp2.txt")),
        ("nccl_32gpu_100gbit", lambda: nccl("100g/100g-stepexp2-2.txt")),
        ("osu_8node_10gbe", osu),
        ("horovod_lisa_cpu", horovod_sweep),
    ],
)
def test_sweeps_equal_the_published_times(name, published):
    own = check(shipped(f"published/{name}.csv"), MEASUREMENTS, name)
    columns = ["nbytes", "n_workers", "n_nodes", "seconds"]
    for column, given in zip(columns, published(), strict=True):
        given = np.broadcast_to(given, len(own))
        np.testing.assert_allclose(own[column].astype(float), given, rtol=1e-12, err_msg=column)


def test_sweeps_cover_the_workers_that_the_docs_name():
    counts = {"osu_8node_10gbe": dict.fromkeys((2, 4, 8), 266)}
    counts["horovod_lisa_cpu"] = dict.fromkeys(range(1, 33), 20)
    for name, expected in counts.items():
        own = check(shipped(f"published/{name}.csv"), MEASUREMENTS, name)
        assert own.groupby("n_workers").size().to_dict() == expected


def test_googlenet_runs_hold_the_published_layers():
    given = source("bcaffe_googlenet_layer_trace.csv").query("file == 'tmp8ocomm' and `pass` == 0")
    own = shipped("published/googlenet_k80_trace.csv").query("run == 'tmp8ocomm'")
    layers = given.assign(layer=given["param_id"] // 2).groupby("layer")
    assert own["nbytes"].tolist() == (4 * layers["numel"].sum())[::-1].tolist()
    np.testing.assert_allclose(own["comm_s"], layers["comm_us"].sum()[::-1] / 1e6)
    each = layers["layer_backward_us"].first()[::-1] / 1e6
    np.testing.assert_allclose(np.diff(own["ready_s"], prepend=0.0), each, atol=2e-9)


@pytest.mark.parametrize(
    ("name", "file", "rows", "columns"),
    [
        ("googlenet_k80_speed", "bcaffe_real_speed", None, {"images_per_s": "images_per_s"}),
        ("ddl_benchmarks", "ddl_benchmarks_throughput",
         "method in ('BSP-A2A', 'WFBP-A2A', 'MG-WFBP')",
         {"samples_per_s": "samples_per_s", "n_workers": "n_gpus"}),
        ("batchai_resnet50", "batchai_horovod_throughput", "model == 'resnet50'",
         {"images_per_s": "images_per_s"}),
    ],
)  # fmt: skip
def test_speeds_are_the_published_ones(name, file, rows, columns):
    given, own = source(f"{file}.csv"), shipped(f"published/{name}.csv")
    given = given.query(rows) if rows else given
    for mine, theirs in columns.items():
        assert own[mine].tolist() == given[theirs].tolist()


@pytest.mark.parametrize("name", ["imagenet", "bert", "cifar10"])
def test_placements_are_the_published_ones(name):
    own = shipped(f"published/pollux_{name}.csv")
    placed = source(f"pollux_{name}_placements.csv").dropna()
    given = [*placed["step_time"], *source(f"pollux_{name}_scalability.csv")["step_time"].dropna()]
    np.testing.assert_allclose(own["step_s"], given, rtol=1e-4)
    digits = [list(map(int, str(place))) for place in placed["placement"]]
    assert own["n_nodes"][: len(placed)].tolist() == list(map(len, digits))
    assert own["n_workers"][: len(placed)].tolist() == list(map(sum, digits))


def test_links_contention_and_fusion_are_the_published_ones():
    given = source("alpha_beta_tables.csv")
    for link in shipped("published/alpha_beta_links.csv").itertuples():
        same = np.isclose(given["beta"], link.beta, rtol=1e-5)
        same &= given["n_workers"] == str(link.n_workers)
        alphas = pd.to_numeric(given["alpha"][same], errors="coerce")
        assert np.isclose(alphas, link.alpha, rtol=1e-5).any()
    given = source("dl_scheduling_allreduce_contention.csv")["avg_latency"] / 1e6
    own = shipped("published/allreduce_contention.csv")["seconds"]
    np.testing.assert_allclose(own, given, atol=1e-6)
    given = source("huyutuo_horovod_runs.csv").query("model == 'resnet50'")
    own = shipped("published/horovod_fusion_runs.csv")["seconds"]
    for seconds, setting in zip(own, ["fusion on", "fusion off", "single GPU"], strict=True):
        same = given[given["setting"].str.startswith(setting)]
        assert seconds == pytest.approx(same["batch_ms"].iloc[0] / 1e3)


def test_own_sweep_covers_1_kib_to_64_mib():
    table = check(shipped("runs/gloo-sweep/all_reduce.csv"), MEASUREMENTS, "own sweep")
    assert table["nbytes"].tolist() == [2**k for k in range(10, 27)]
    assert set(table["n_workers"]) == {2} and set(table["n_nodes"]) == {1}


@pytest.mark.parametrize("name", [*RUNS, HOROVOD])
def test_runs_hold_a_trace_and_hook_times_per_rank(name):
    folder = DATA / "runs" / name
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert run["kind"].startswith("CPU run, no GPU")
    assert run["backend"] == ("gloo" if run["world_size"] == 2 else "none")
    assert (run["n_nodes"], run["world_size"]) == (1, int(name[-1]))
    if name == HOROVOD:  # writes one timeline, and has no hooks
        return
    ranks = range(run["world_size"])
    wanted = {f"rank{r}.json.gz" for r in ranks} | {f"gradients_rank{r}.csv" for r in ranks}
    assert {path.name for path in folder.iterdir()} == wanted | {"run.json"}
    for rank in ranks:
        times = check(shipped(f"runs/{name}/gradients_rank{rank}.csv"), GRADIENTS, name)
        each = times.groupby("iteration")
        assert (each.size() == run["n_gradients"]).all()
        assert (each["ready_s"].diff().dropna() >= 0).all()
        assert (each["nbytes"].sum() == run["gradient_bytes"]).all()


def test_the_horovod_timeline_reduces_every_gradient_in_fused_messages():
    folder = DATA / "runs" / HOROVOD
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    events = json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))
    ends = [event for event in events if event["ph"] == "E" and "args" in event]
    times = Counter(event["pid"] for event in ends)
    assert len(times) == run["n_gradients"] == 161
    assert set(times.values()) == {run["n_iterations"]}
    shapes = [json.loads(event["args"]["shape"]) for event in ends]
    assert sum(4 * prod(shape) for shape in shapes) == run["n_iterations"] * run["gradient_bytes"]
    # Horovod writes the beginnings of one message's tensors next to each other.
    names = [event.get("name") for event in events]
    messages = [len([*same]) for name, same in groupby(names) if name == "GLOO_ALLREDUCE"]
    assert sum(messages) == run["n_iterations"] * run["n_gradients"]
    copied = [name for name, _ in groupby(names) if name == "MEMCPY_IN_FUSION_BUFFER"]
    assert len(copied) == sum(n_tensors > 1 for n_tensors in messages) > 0
    assert (run["fusion_threshold_bytes"], run["cycle_s"]) == (128 * 2**20, 0.001)


def test_traces_hold_neither_host_nor_user_nor_path():
    for path in DATA.rglob("*.json.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        found = re.search(r'"(host_name|hostname|traceName|user)"|/home/|/root/|/tmp/', text)
        assert not found, path
        assert f'"{os.uname().nodename}"' not in text
