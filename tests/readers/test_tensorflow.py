"""A device's lanes repeat one another in TensorFlow's traces: each kernel is kept once."""

import json

import pytest

from workbench.base.intervals import measure, union
from workbench.traces.readers import tensorflow
from workbench.traces.readers.source import Source

HOST, ALL, ONE, COPIES, COPY_STREAM, OTHER_GPU = range(1, 7)
LANES = {
    0: "Allocators",
    HOST: "/job:localhost/replica:0/task:0/gpu:0 Compute",
    ALL: "/gpu:0/stream:all Compute",
    ONE: "/gpu:0/stream:12 Compute",
    COPIES: "/gpu:0/memcpy Compute",
    COPY_STREAM: "/gpu:0/stream:13 Compute",
    OTHER_GPU: "/gpu:1/stream:12 Compute",
}


def op(pid, name, ts, dur, node="node"):
    event = {"ph": "X", "cat": "Op", "name": name, "pid": pid, "tid": 0, "ts": ts, "dur": dur}
    return event | {"args": {"name": node, "op": name}}


@pytest.fixture
def load(tmp_path):
    """Read events under the lanes' names; checks that the ledger counts every event."""

    def load(*events, lanes=LANES, keep="all"):
        named = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            for pid, name in lanes.items()
        ]
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": [*named, *events]}))
        source = Source(path)
        source.keep = keep
        assert tensorflow.recognises(source.head)
        table, info, ledger = tensorflow.read(source)
        assert sum(row["n_events"] for row in ledger) == len(named) + len(events)
        assert sum(row["n_events"] for row in ledger if row["kept"]) == len(table)
        return table, info, ledger

    return load


def rows(table):
    return [tuple(row) for row in table[["name", "kind", "stream"]].astype(object).to_numpy()]


def test_a_kernel_in_two_lanes_is_one_kernel_on_its_stream(load):
    table, _, ledger = load(op(ALL, "MatMul", 10, 5), op(ONE, "MatMul", 10, 5))
    assert rows(table) == [("MatMul", "compute", 12)]
    assert [r["what"] for r in ledger if "repetition" in r["why"]] == ["/gpu:0/stream:all Compute"]


def test_two_kernels_of_one_moment_stay_two(load):
    table, _, _ = load(*(op(pid, "Add", 10, 1) for pid in (ALL, ALL, ONE, ONE)))
    assert rows(table) == [("Add", "compute", 12)] * 2


def test_a_kernel_without_a_lane_of_its_stream_is_kept(load):
    table, _, _ = load(*(op(pid, "Add", 10, 1) for pid in (ALL, ALL, ONE)))
    assert len(table) == 2 and (table["kind"] == "compute").all()


def test_copies_are_memory_also_when_named_by_an_operator(load):
    copies = [("MEMCPYHtoD", 10), ("MatMul", 20)]
    table, _, _ = load(*(op(pid, n, ts, 2) for pid in (COPIES, COPY_STREAM) for n, ts in copies))
    assert rows(table) == [("MEMCPYHtoD", "memory", 13), ("MatMul", "memory", 13)]


def test_the_same_stream_of_two_gpus_is_two_streams(load):
    table, _, ledger = load(op(ONE, "Add", 10, 1), op(OTHER_GPU, "Add", 10, 1))
    assert table["stream"].tolist() == [12, 1012]
    assert any("2 GPUs" in row["why"] for row in ledger)


def test_lanes_of_newer_versions_are_the_same(load):
    lanes = {
        1: "/device:GPU:0/stream:all Compute",
        2: "/gpu:0/context#0/stream#7:Kernel Compute",
        3: "/gpu:0/context#0/stream#8:MemcpyHtoD Compute",
        4: "/device:GPU:0/memcpy Compute",
    }
    events = [op(pid, "Conv2D", 10, 5) for pid in (1, 2)] + [op(p, "Cast", 20, 5) for p in (3, 4)]
    table, _, _ = load(*events, lanes=lanes)
    assert rows(table) == [("Conv2D", "compute", 7), ("Cast", "memory", 8)]


def test_operators_are_host_where_kernels_are_recorded(load):
    table, _, _ = load(op(HOST, "MatMul", 8, 1), op(ONE, "MatMul", 10, 5))
    assert rows(table) == [("MatMul", "host", -1), ("MatMul", "compute", 12)]


def test_without_kernels_the_computing_of_a_gpu_is_unknown(load):
    table, _, ledger = load(op(HOST, "MatMul", 8, 1))
    assert table["kind"].tolist() == ["host"]
    assert [row.get("warn") for row in ledger if "no kernel was recorded" in row["why"]] == [True]


def test_operators_compute_in_a_run_without_a_gpu(load):
    lanes = {1: "/job:localhost/replica:0/task:0/cpu:0 Compute"}
    table, _, _ = load(op(1, "MatMul", 8, 1), lanes=lanes)
    assert rows(table) == [("MatMul", "compute", -1)]


def test_collectives_and_tensors_received_communicate(load):
    lanes = {1: "/job:worker/replica:0/task:3/device:CPU:0 Compute"}
    received = op(1, "RecvTensor", 1, 2, node="RecvTensor")
    reduced = op(1, "HorovodAllreduce", 5, 2)
    table, info, _ = load(received, reduced, lanes=lanes)
    assert table["kind"].tolist() == ["comm", "comm"]
    assert table["op"].tolist() == ["send_recv", "all_reduce"]
    assert info["rank"] == 3 and table["rank"].tolist() == [3, 3]


def test_a_kernel_of_nccl_communicates(load):
    table, _, _ = load(op(ONE, "ncclAllReduceRingLLKernel_sum_f32", 1, 2))
    assert (table["kind"].iloc[0], table["op"].iloc[0]) == ("comm", "all_reduce")


def test_arrows_and_counters_are_counted(load):
    arrow = {"ph": "s", "cat": "DataFlow", "name": "x", "pid": HOST, "tid": 0, "ts": 1, "id": 0}
    counter = {"ph": "C", "name": "cpu", "pid": 0, "tid": 0, "ts": 1, "args": {"cpu": 4}}
    table, _, ledger = load(op(ONE, "Add", 1, 1), arrow, counter)
    assert len(table) == 1
    assert {"ph s", "ph C"} <= {row["what"] for row in ledger if not row["kept"]}


def test_only_kernels_leaves_the_device(load):
    table, _, _ = load(op(HOST, "Add", 0, 1), op(ONE, "Add", 1, 1), keep="kernels")
    assert rows(table) == [("Add", "compute", 12)]


def test_a_file_without_an_operator_is_refused(load):
    with pytest.raises(ValueError, match=r"trace\.json: expected operators .* found 7 ph M"):
        load()


# Rows of the lanes of single streams, of those that repeat them, and of the host; copies and sets.
RECORDED = {
    "timeline_02_step_0.json": (45, 45, 81, 7),
    "timeline_03_merged_5_runs.json": (221, 221, 405, 31),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_traces_keep_each_kernel_once(shared, name):
    source = Source(shared / "traces" / "tf_timeline" / name)
    assert tensorflow.recognises(source.head)
    table, _, ledger = tensorflow.read(source)
    n_streams, n_repeated, n_host, n_memory = RECORDED[name]
    device = table["stream"] >= 0
    assert (device.sum(), (~device).sum()) == (n_streams, n_host)
    assert (table["kind"] == "memory").sum() == n_memory
    assert sum(row["n_events"] for row in ledger if "repetition" in row["why"]) == n_repeated
    assert not any(row.get("warn") for row in ledger)


@pytest.mark.parametrize("name", RECORDED)
def test_kernels_take_as_long_as_in_the_lane_of_all_streams(shared, name):
    """The lane that is left out says the same: its union, straight from the JSON."""
    source = Source(shared / "traces" / "tf_timeline" / name)
    events = json.loads(source.path.read_text())["traceEvents"]
    every = next(e["pid"] for e in events if e.get("args", {}).get("name") == LANES[ALL])
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == every]
    busy_us = len({us for start, end in spans for us in range(start, end)})
    kernels = tensorflow.read(source)[0].query("kind == 'compute'")
    origin = kernels["start_ns"].min()
    start, end = ((kernels[c] - origin).to_numpy() / 1000 for c in ("start_ns", "end_ns"))
    assert measure(*union(start, end)) == pytest.approx(busy_us)


def test_no_other_file_is_taken_for_one(shared):
    traces = shared / "traces"
    others = [*(traces / "kineto").rglob("*"), *(traces / "horovod").iterdir()]
    others += [*(traces / "mxnet").iterdir(), *(shared / "cases").iterdir()]
    files = [p for p in others if p.is_file()]
    assert len(files) > 40
    assert [p.name for p in files if tensorflow.recognises(Source(p).head)] == []
