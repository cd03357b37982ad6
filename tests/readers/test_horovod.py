"""A timeline's tensors become messages, copies and waiting; nothing in it goes uncounted."""

import json
import re

import pytest
from conftest import refusal

from workbench.traces import collectives
from workbench.traces.readers import horovod
from workbench.traces.readers.source import Source

US = 1e-6
CUT = '[\n{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "p'


def lane(pid, tensor):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": tensor}}


def begin(pid, name, ts):
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end(pid, ts, **args):
    return {"ph": "E", "ts": ts, "pid": pid} | ({"args": args} if args else {})


def tick(pid, rank, ts):
    return {"ph": "X", "name": str(rank), "ts": ts, "pid": pid, "dur": 0}


def fused(starts, ends, sizes, name="NCCL_ALLREDUCE"):
    """One message of several tensors, as Horovod writes it: begun and ended one by one."""
    tensors = range(1, len(sizes) + 1)
    return [
        *(lane(t, f"grad/{t}") for t in tensors),
        *(begin(t, "ALLREDUCE", 5) for t in tensors),
        *(begin(t, name, ts) for t, ts in zip(tensors, starts, strict=True)),
        *(end(t, ts) for t, ts in zip(tensors, ends, strict=True)),
        *(
            end(t, 90 + t, dtype="float32", shape=f"[{n}]")
            for t, n in zip(tensors, sizes, strict=True)
        ),
    ]


@pytest.fixture
def load(tmp_path):
    """Read events (or text); checks on the way that the ledger counts every event."""

    def load(events, keep="all"):
        path = tmp_path / "timeline.json"
        text = events if isinstance(events, str) else json.dumps(events)
        path.write_text(text)
        source = Source(path)
        source.keep = keep
        assert horovod.recognises(source.head)
        table, info, ledger = horovod.read(source)
        assert sum(row["n_events"] for row in ledger if row["kept"]) == len(table)
        if not isinstance(events, str):
            assert sum(row["n_events"] for row in ledger) == len(events)
        return table, info, ledger

    return load


def whys(ledger):
    return "\n".join(row["why"] for row in ledger)


def comm(table):
    return table[table["kind"] == "comm"]


R07 = [
    lane(1, "grad/w1"),
    begin(1, "NEGOTIATE_ALLREDUCE", 100),
    tick(1, 0, 101),
    tick(1, 1, 180),
    end(1, 181),
    begin(1, "ALLREDUCE", 190),
    begin(1, "NCCL_ALLREDUCE", 200),
    end(1, 300),
    end(1, 305, dtype="float32", shape="[10]"),
]


def test_negotiation_is_host_the_collective_comm_and_the_whole_an_annotation(load):
    table, info, ledger = load(R07)
    took = (table["end_ns"] - table["start_ns"]).to_list()
    rows = list(zip(table["name"], table["kind"], took, strict=True))
    assert rows == [
        ("NEGOTIATE_ALLREDUCE", "host", 81_000),
        ("ALLREDUCE", "annotation", 115_000),
        ("NCCL_ALLREDUCE", "comm", 100_000),
    ]
    assert (info["rank"], info["world_size"], info["backend"]) == (0, 2, "nccl")
    (message,) = comm(table).to_dict("records")
    assert (message["op"], message["nbytes"], message["n_workers"]) == ("all_reduce", 40, 2)
    assert re.search(r"rank 1\b.* 79\.0 us", whys(ledger))  # the late rank


def test_times_stand_on_the_start_in_the_file_and_its_list_may_stay_open(load):
    begun = {"start_time_since_epoch_in_micros": 1625036743402403}
    header = {"name": "process_name", "ph": "M", "pid": 0, "args": begun}
    table, info, ledger = load("[\n" + ",\n".join(map(json.dumps, [header, *R07])) + ",\n")
    assert info["base_ns"] == 1625036743402403000
    assert table["start_ns"].min() == 1625036743402403000 + 100_000
    assert len(table) == 3 and not any(row.get("warn") for row in ledger)


def test_tensors_begun_and_ended_one_by_one_are_one_message(load):
    table, _, ledger = load(fused([10, 11, 13], [80, 82, 83], [100, 20, 3]))
    (message,) = comm(table).to_dict("records")
    assert (message["start_ns"], message["end_ns"]) == (13_000, 80_000)
    assert message["nbytes"] == 4 * 123
    assert [row["n_events"] for row in ledger if "fused message:" in row["why"]] == [2]


@pytest.mark.parametrize("starts, ends", [([10, 10], [80, 80]), ([10, 40], [40, 40])])
def test_tensors_that_overlap_or_touch_are_one_message_or_copy(load, starts, ends):
    assert comm(load(fused(starts, ends, [1, 2]))[0])["nbytes"].tolist() == [12]
    table, _, _ = load(fused(starts, ends, [1, 2], name="MEMCPY_IN_FUSION_BUFFER"))
    assert (table["kind"] == "memory").sum() == 1


def test_iterations_are_counted_when_all_tensors_take_turns(load):
    def turn(at):
        rows = fused([10, 11], [80, 82], [1, 2])
        return [
            e | {"ts": e["ts"] + at} if "ts" in e else e for e in rows if at == 0 or e["ph"] != "M"
        ]

    table, _, _ = load(turn(0) + turn(1000) + turn(2000))
    assert comm(table)["iteration"].tolist() == [0, 1, 2]
    table, _, ledger = load(fused([10, 11], [80, 82], [1, 2]))
    assert comm(table)["iteration"].tolist() == [0]


def test_tensors_one_after_the_other_are_messages_of_their_own(load):
    events = fused([10, 40], [40, 60], [1, 2])
    ends_first = next(i for i, e in enumerate(events) if e["ph"] == "E" and e["ts"] == 40)
    begins_second = next(i for i, e in enumerate(events) if e["ph"] == "B" and e["ts"] == 40)
    events.insert(begins_second, events.pop(ends_first))
    table, _, _ = load(events)
    assert comm(table)["nbytes"].tolist() == [4, 8]


def test_bytes_of_a_fused_message_are_unknown_when_one_tensor_is(load):
    events = fused([10, 11], [80, 82], [1, 2])
    del events[-1]["args"]
    assert comm(load(events)[0])["nbytes"].isna().tolist() == [True]


HIERARCHICAL = [
    begin(1, "ALLREDUCE", 0),
    begin(1, "NCCL_REDUCESCATTER", 10),
    end(1, 20),
    begin(1, "MPI_ALLREDUCE", 20),
    end(1, 50),
    begin(1, "NCCL_ALLGATHER", 50),
    end(1, 60),
    end(1, 70, dtype="float16", shape="[4, 2]"),
]


def test_the_share_of_a_hierarchical_collective_is_not_invented(load):
    table, _, ledger = load(HIERARCHICAL)
    assert comm(table)["op"].tolist() == ["reduce_scatter", "all_reduce", "all_gather"]
    assert comm(table)["nbytes"].isna().all()
    assert "hierarchical" in whys(ledger)


def test_an_operation_without_parts_is_the_message_and_waiting_is_host(load):
    mark = {"ph": "i", "name": "CYCLE_START", "ts": 3, "s": "g"}
    events = [begin(1, "NEGOTIATE_BROADCAST", 0), end(1, 1), begin(1, "BROADCAST", 2)]
    events += [end(1, 9, dtype="int64", shape="[]"), mark, begin(2, "ALLREDUCE", 0)]
    table, _, ledger = load([*events, begin(2, "WAIT_FOR_DATA", 1), end(2, 5), end(2, 9)])
    message = comm(table).to_dict("records")[0]
    assert (message["op"], message["name"], message["nbytes"]) == ("broadcast", "BROADCAST", 8)
    assert table.loc[table["name"] == "WAIT_FOR_DATA", "kind"].tolist() == ["host"]
    assert "instant: takes no time" in whys(ledger)


def test_what_never_ends_costs_its_own_interval_only(load):
    table, _, ledger = load([*R07, begin(1, "NEGOTIATE_ALLREDUCE", 400)])
    (row,) = [row for row in ledger if "unfinished" in row["why"]]
    assert (len(table), row["n_events"], row["kept"], row["warn"]) == (3, 1, False, True)
    table, _, _ = load([*R07[:4], *R07[5:], *R07[1:]])
    assert comm(table)["nbytes"].tolist() == [40, 40]
    assert (table["name"] == "NEGOTIATE_ALLREDUCE").sum() == 1


@pytest.mark.parametrize("ts", [None, "soon", True, 1e400, 10**30, [1]])
def test_a_time_that_is_no_number_is_counted(load, ts):
    broken = [begin(2, "ALLREDUCE", ts), end(2, 9)]
    text = json.dumps([*R07, *broken])
    table, _, ledger = load(text)
    assert len(table) == 3
    assert sum(row["n_events"] for row in ledger) == len(R07) + 2


def test_only_kernels_leaves_messages_and_copies(load):
    table, _, ledger = load(R07, keep="kernels")
    assert table["kind"].tolist() == ["comm"]
    assert "only kernels were asked for" in whys(ledger)


@pytest.mark.parametrize(
    "text, shown",
    [("[", "first cycle"), ("[\n", "first cycle"), ("  [ \n", "first cycle"), (CUT, "is cut")],
)
def test_a_timeline_without_events_is_refused_as_ended_early_or_cut(tmp_path, text, shown):
    path = tmp_path / "t.json"
    path.write_text(text)
    assert horovod.recognises(Source(path).head)
    refusal(lambda: horovod.read(Source(path)), "t.json", shown)


def test_phases_split_each_tensors_time(tmp_path):
    path = tmp_path / "t.json"
    inside = [begin(1, "QUEUE", 191), end(1, 195), begin(1, "MEMCPY_IN_FUSION_BUFFER", 196)]
    path.write_text(json.dumps([*R07[:6], *inside, end(1, 199), *R07[6:]]))
    (row,) = horovod.tensor_phases(path).to_dict("records")
    us = {key: row.pop(key) / US for key in list(row) if key.endswith("_s")}
    assert list(row.items()) == [
        *(("tensor", "grad/w1"), ("op", "all_reduce"), ("nbytes", 40)),
        *(("n_workers", 2), ("last_rank", 1)),
    ]
    expected = {"late_s": 79, "negotiate_s": 81, "queue_s": 4, "memcpy_s": 3}
    assert us == pytest.approx(expected | {"collective_s": 100, "all_reduce_s": 115})
    path.write_text(json.dumps(HIERARCHICAL))  # not negotiated
    (row,) = horovod.tensor_phases(path).to_dict("records")
    assert (row["tensor"], row["nbytes"], row["queue_s"]) == ("1", 16, 0)
    assert row["collective_s"] == pytest.approx(50 * US)


def test_messages_of_a_timeline_are_collectives(load):
    table, _, _ = load(fused([10, 11], [80, 82], [1, 2]))
    seconds = {"start_s": table["start_ns"] / 1e9, "end_s": table["end_ns"] / 1e9}
    (message,) = collectives(table.assign(**seconds)).to_dict("records")
    assert message["nbytes"] == 12
    assert message["transfer_s"] == pytest.approx(69 * US)


# The last all-reduce of each recorded file, by hand: its bytes, us in it, and ranks ready before.
RECORDED = {
    "15gpu-nccl.json": (2**30, 227_792, 15),
    "10g-16-h.json": (2**30, 1_616_784, 8),
    "100g-nccl-fast.json": (2**29, 220_688, 32),
    "10g-nccl-fast.json": (2**29, 221_523, 32),
    "100g-mpi-slow.json": (2**29, 1_140_933, 32),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_timelines_are_read_whole(shared, load, name):
    path = shared / "traces" / "horovod" / name
    table, info, ledger = load(json.loads(path.read_text()))
    nbytes, us, n_workers = RECORDED[name]
    last = horovod.tensor_phases(path).iloc[-1]
    assert (last["nbytes"], last["n_workers"]) == (nbytes, n_workers)
    assert last["all_reduce_s"] == pytest.approx(us * US)
    assert info["world_size"] == n_workers
    assert not any(row.get("warn") for row in ledger)


def test_no_other_file_is_taken_for_a_timeline(shared):
    assert not horovod.recognises(b"") and not horovod.recognises(b"[]")
    others = [*(shared / "traces" / "kineto").rglob("*"), *(shared / "cases").iterdir()]
    files = [p for p in others if p.is_file() and "horovod" not in p.name]
    assert len(files) > 40
    assert [p.name for p in files if horovod.recognises(Source(p).head)] == []
