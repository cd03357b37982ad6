"""MXNet's profiler, ByteScheduler and BytePS: messages, copies and operators by their lanes."""

import json
import re
from collections import Counter

import pytest

from workbench.traces.readers import mxnet
from workbench.traces.readers.source import Source


def lane(pid, name):
    return {"ph": "M", "args": {"name": name}, "pid": pid, "name": "process_name"}


def pair(pid, name, start, stop, **fields):
    event = {"name": name, "pid": pid} | fields
    return [event | {"ph": "B", "ts": start}, event | {"ph": "E", "ts": stop}]


def stage(name, tid, ts, dur):
    pid = "Comm.byteps.gradient_0"
    return {"ph": "X", "args": {"name": pid}, "pid": pid, "name": name, "ts": ts, "dur": dur} | {
        "tid": tid
    }


@pytest.fixture
def load(tmp_path):
    """Read events; checks on the way that the ledger counts every event."""

    def load(events, keep="all"):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(events))
        source = Source(path)
        source.keep = keep
        assert mxnet.recognises(source.head)
        table, info, ledger = mxnet.read(source)
        listed = events["traceEvents"] if isinstance(events, dict) else events
        assert sum(row["n_events"] for row in ledger) == len(listed)
        assert sum(row["n_events"] for row in ledger if row["kept"]) == len(table)
        return table, info, ledger

    return load


def meanings(table):
    return [tuple(row) for row in table[["name", "kind", "op"]].astype(object).to_numpy()]


def test_a_scheduler_s_queue_is_host_and_its_communication_comm(load):
    events = [lane(0, "fc_weight"), *pair(0, "PUSH_PULLQUEUE", 10, 40)]
    events += pair(0, "PUSH_PULLCOMMUNICATION", 40, 90) + pair(0, "ALLREDUCECOMMUNICATION", 95, 99)
    table, info, _ = load(events)
    assert meanings(table) == [
        ("PUSH_PULLQUEUE", "host", ""),
        ("PUSH_PULLCOMMUNICATION", "comm", "push_pull"),
        ("ALLREDUCECOMMUNICATION", "comm", "all_reduce"),
    ]
    assert (table["end_ns"] - table["start_ns"]).tolist() == [30_000, 50_000, 4_000]
    assert info["rank"] is None and table["nbytes"].isna().all()


def test_ends_find_their_beginnings_by_name_where_intervals_overlap(load):
    init, pull = pair(0, "INITCOMMUNICATION", 10, 30), pair(0, "PULLCOMMUNICATION", 20, 90)
    table, _, _ = load([init[0], pull[0], init[1], pull[1]])
    assert (table["end_ns"] - table["start_ns"]).tolist() == [20_000, 70_000]


def test_a_partition_has_a_lane_of_its_own(load):
    events = pair(0, "PUSHCOMMUNICATION", 1, 9) + pair(1, "PUSHCOMMUNICATION", 2, 8)
    assert load(events)[0]["thread"].tolist() == [0, 1]


def test_stages_of_byteps_are_told_apart(load):
    name = "Comm.byteps.gradient_0"
    kinds = {"REDUCE": "comm", "COPYD2H": "memory", "PCIE_REDUCE": "host", "PUSH": "comm"}
    kinds |= {"COORDINATE_PUSH": "host", "PULL": "comm", "COPYH2D": "memory", "BROADCAST": "comm"}
    events = [stage(f"{name}.{s}", "26148864", 10 * i, 5) for i, s in enumerate(kinds)]
    total = stage(name, "total", 0, 90)
    table, _, _ = load({"displayTimeUnit": "ms", "traceEvents": [total, *events]})
    assert table["kind"].tolist() == ["annotation", *kinds.values()]
    assert table.loc[table["kind"] == "comm", "op"].tolist() == [
        "reduce",
        "push",
        "pull",
        "broadcast",
    ]


def test_requests_at_a_server_are_messages(load):
    key = 27000832
    events = pair(key, "push-9", 1569331999234742, 1569331999234778, tid=key)
    table, _, _ = load(events + pair(key, "pull-9", 1569331999234878, 1569331999234900, tid=key))
    assert table["op"].tolist() == ["push", "pull"]
    assert table["start_ns"].iloc[0] == 1569331999234742000


def profile(*events):
    lanes = [lane(0, "cpu/0"), lane(1, "gpu/0"), lane(2, "cpu pinned/"), lane(3, "MXNET_C_API")]
    return {"traceEvents": [*lanes, *events], "displayTimeUnit": "ms"}


def operator(pid, name, start=0, stop=9, tid=5):
    return pair(pid, name, start, stop, tid=tid, cat="operator")


def test_operators_on_a_gpu_compute_and_those_on_the_cpu_beside_it_are_host(load):
    events = profile(*operator(1, "Convolution"), *operator(0, "ImageRecordIter"))
    assert load(events)[0]["kind"].tolist() == ["compute", "host"]


def test_operators_on_the_cpu_compute_in_a_run_without_a_gpu(load):
    """Lanes of GPUs are named even where there are none."""
    events = profile(*operator(0, "Convolution"), *operator(3, "MXNDArraySyncCopyToCPU"))
    assert load(events)[0]["kind"].tolist() == ["compute", "host"]


def test_stores_communicate_copies_copy_and_waiting_is_no_work(load):
    names = ["KVStoreDistDefaultPush", "CopyGPU2CPU", "WaitForVar", "KVStoreReduce"]
    table, _, _ = load(profile(*(e for name in names for e in operator(1, name))))
    assert [(kind, op) for _, kind, op in meanings(table)] == [
        ("comm", "push"),
        ("memory", ""),
        ("host", ""),
        ("comm", "reduce"),
    ]


@pytest.mark.parametrize(
    "wrong, why",
    [
        (pair(0, "PUSHCOMMUNICATION", 1, 9)[1:], "an end without a beginning"),
        (pair(0, "PUSHCOMMUNICATION", 9, 1), "ends before it begins"),
    ],
)
def test_an_end_without_or_before_its_beginning_is_counted(load, wrong, why):
    table, _, ledger = load(pair(0, "PUSHCOMMUNICATION", 10, 11) + wrong)
    assert len(table) == 1
    assert [r["n_events"] for r in ledger if r["why"] == why] == [1]


def test_only_kernels_leaves_messages(load):
    events = pair(0, "PUSHQUEUE", 1, 9) + pair(0, "PUSHCOMMUNICATION", 9, 12)
    assert load(events, keep="kernels")[0]["kind"].tolist() == ["comm"]


def test_a_file_without_an_interval_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps([pair(0, "PUSHCOMMUNICATION", 1, 9)[0]]))
    with pytest.raises(ValueError, match=r"t\.json: expected intervals .* found 1 .* unfinished"):
        mxnet.read(Source(path))


def test_the_recorded_worker_is_read_whole(shared):
    """Of 986 pairs, counted in the text, those of communication are comm; the list never closes."""
    source = Source(shared / "traces" / "mxnet" / "timeline_worker.json")
    text = source.path.read_text()
    begun = Counter(re.findall(r'"ph": "B"[^}]*"name": "(\w+)"', text))
    assert mxnet.recognises(source.head)
    table, _, ledger = mxnet.read(source)
    assert table["name"].value_counts().to_dict() == begun
    assert (table["kind"] == "comm").sum() == sum(
        n for name, n in begun.items() if name.endswith("COMMUNICATION")
    )
    assert sum(row["n_events"] for row in ledger) == text.count('"ph"')
    assert not any(row.get("warn") for row in ledger)


def test_no_other_file_is_taken_for_one(shared):
    traces = shared / "traces"
    others = [*(traces / "kineto").rglob("*"), *(traces / "horovod").iterdir()]
    others += [*(traces / "tf_timeline").iterdir(), *(shared / "cases").iterdir()]
    files = [p for p in others if p.is_file()]
    assert len(files) > 40
    assert [p.name for p in files if mxnet.recognises(Source(p).head)] == []
