"""JSON lines of NCCL profiler plug-ins: what each line is for, and times to the nanosecond."""

import json

import pandas as pd
import pytest
from conftest import refusal

from workbench.traces.readers import nccl_profiler
from workbench.traces.readers.source import Source

BEGAN = 9270729858767  # us since boot: as a float64 it would be a ns off
LIFE = {"type": "ProfilerLifecycle", "commId": 99, "details": {"nranks": 4}}


def event(kind, start, stop, *, rank=0, record="event", **fields):
    moments = {"start": {"ts": BEGAN + start, "pid": 5, "tid": 6}}
    moments["stop"] = {"ts": BEGAN + stop, "pid": 5, "tid": 6}
    return {"recordType": record, "type": kind, "rank": rank, "commId": 99, **moments} | fields


def launch(start, number, **fields):
    return event("ncclProfileKernelLaunch", start, start + 5, extCorrId=number, **fields)


def message(start, func="AllReduce", count=1000, address="a", **fields):
    details = {"func": func, "count": count, "dtype": "ncclFloat32"}
    kind = "ncclProfileP2p" if func in ("Send", "Recv") else "ncclProfileColl"
    return event(kind, start, start + 1, eventAddr=address, details=details, **fields)


def kernel(start, stop, number, name="_Z9ncclDevKernel_AllReduce_Sum_f32_RING_LL24x"):
    fields = {"name": name, "stream": "0x3d", "extCorrId": number}
    return event("KERNEL", start, stop, record="cuptiActivity", rank=None, **fields)


def channel(start, stop, parent="a", timers=None, rank=0):
    begun, ended = timers or (None, None)
    state = {"recordType": "state", "name": "KernelChStop", "eventAddr": "c", "pTimer": ended}
    fields = {"parentObj": parent, "eventAddr": "c", "details": {"pTimer": begun}}
    return [state, event("ncclProfileKernelCh", start, stop, rank=rank, **fields)]


@pytest.fixture
def read(tmp_path):
    """Read lines (dicts, or text as it stands); on the way the ledger must add up."""

    def _read(*lines, keep="all"):
        path = tmp_path / "profile.jsonl"
        lines = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(lines))
        source = Source(path)
        source.keep = keep
        table, info, ledger = nccl_profiler.read(source)
        counts = pd.DataFrame(ledger)
        assert counts.loc[counts["kept"], "n_events"].sum() == len(table)
        assert counts["n_events"].sum() == len(lines)
        return table, info, counts

    return _read


def comm(table):
    return table[table["kind"] == "comm"]


def test_a_kernel_carries_the_message_queued_after_its_launch(read):
    lines = [LIFE, launch(10, 1, rank=2), message(16, rank=2), kernel(14, 90, 1)]
    row = comm(read(*lines)[0]).iloc[0]
    columns = ["rank", "op", "nbytes", "n_workers", "group", "stream"]
    assert row[columns].tolist() == [2, "all_reduce", 4000, 4, "99", 61]
    assert (row["start_ns"], row["end_ns"]) == ((BEGAN + 14) * 1000, (BEGAN + 90) * 1000)


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([message(16), message(17, count=500), kernel(14, 90, 1)], [("all_reduce", 6000)]),
        (
            [
                message(16),
                launch(30, 2),
                message(36, count=7),
                kernel(14, 90, 1),
                kernel(90, 95, 2),
            ],
            [("all_reduce", 4000), ("all_reduce", 28)],
        ),
        (  # NCCL counts the part of one worker
            [message(16, "AllGather"), kernel(14, 90, 1, "ncclDevKernel_AllGather_RING_LL")],
            [("all_gather", 4 * 4000)],
        ),
        ([message(16, "Send"), kernel(14, 90, 1, "ncclDevKernel_SendRecv")], [("send_recv", None)]),
    ],
)
def test_messages_go_to_the_launch_before_them(read, lines, expected):
    rows = comm(read(LIFE, launch(10, 1), *lines)[0])
    found = list(zip(rows["op"], rows["nbytes"], strict=True))
    assert [(op, nbytes if op != "send_recv" else None) for op, nbytes in found] == expected


def test_the_launch_on_the_host_shares_the_kernels_number_and_may_be_left_out(read):
    lines = [LIFE, launch(10, 8), message(16), kernel(14, 90, 8)]
    table, _, _ = read(*lines)
    assert table.groupby("correlation")["kind"].agg(list).loc[0] == ["host", "comm"]
    assert read(*lines, keep="kernels")[0]["kind"].tolist() == ["comm"]


def test_other_kernels_are_compute_and_times_exact_to_the_nanosecond(read):
    text = json.dumps(kernel(0, 0, 1)).replace(str(BEGAN), f"{BEGAN}.123")
    table, _, _ = read(LIFE, text, kernel(3, 4, 2, name="gemm"))
    assert table["kind"].tolist() == ["comm", "compute"]
    assert table["start_ns"].tolist() == [BEGAN * 1000 + 123, (BEGAN + 3) * 1000]


def test_without_kernels_the_gpus_timers_of_the_channels_tell(read):
    # The GPU's clock is 1 s behind; the thread that looks saw the second start soonest, 2 us late.
    lag = 10**9
    near = (BEGAN * 1000 + 20_000 - lag, BEGAN * 1000 + 80_000 - lag)
    far = (BEGAN * 1000 + 21_000 - lag, BEGAN * 1000 + 85_500 - lag)
    lines = [LIFE, message(16), *channel(40, 120, timers=near), *channel(23, 130, timers=far)]
    table, _, _ = read(*lines)
    row = comm(table).iloc[0]
    assert row["end_ns"] - row["start_ns"] == 85_500 - 20_000
    assert row["start_ns"] == BEGAN * 1000 + 22_000


def test_without_timers_what_the_host_saw_of_the_channels_tells(read):
    table, _, _ = read(LIFE, message(16), *channel(40, 120), *channel(35, 110))
    row = comm(table).iloc[0]
    assert (row["start_ns"], row["end_ns"]) == ((BEGAN + 35) * 1000, (BEGAN + 120) * 1000)


def test_a_message_whose_rank_is_missing_is_kept(read):
    timers = (BEGAN * 1000, BEGAN * 1000 + 50_000)
    table, _, _ = read(LIFE, message(16, rank=None), *channel(40, 120, timers=timers, rank=1))
    assert comm(table)["rank"].isna().tolist() == [True]


def test_an_address_used_again_is_the_later_message(read):
    lines = [LIFE, message(1, count=1), *channel(2, 5), message(10, count=9), *channel(12, 15)]
    table, _, _ = read(*lines)
    assert comm(table)["nbytes"].tolist() == [4, 36]
    assert (comm(table)["end_ns"] // 1000 - BEGAN).tolist() == [5, 15]


def test_messages_that_only_the_host_timed_and_durations_without_starts_are_refused(read):
    refusal(lambda: read(LIFE, message(16), launch(3, 1)), "profile.jsonl", "ncclProfileKernelCh")
    inspector = {"header": {"rank": 0}, "coll_perf": {"coll_exec_time_us": 5}}
    assert nccl_profiler.recognises(json.dumps(inspector).encode())
    refusal(lambda: read(inspector), "profile.jsonl", "without starts")


def test_a_cut_last_line_is_said_and_costs_itself_only(read):
    cut = json.dumps(kernel(20, 30, 2))[:50]
    table, _, ledger = read(LIFE, kernel(1, 2, 1), cut)
    assert len(table) == 1
    assert "cut: its last line, 3" in ledger.loc[ledger["warn"].eq(True), "why"].item()


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        "[" * 100_000,
        '{"recordType": "event", "rank": 99999999999999999999}',
        '{"recordType": "event", "commId": [1]}',
        '{"type": "KERNEL", "start": {"ts": NaN}}',
        '{"type": 5}',
    ],
)
def test_a_broken_line_is_counted_by_its_number(read, line):
    _, _, ledger = read(LIFE, line, kernel(1, 2, 1))
    row = ledger[ledger["warn"].eq(True)].iloc[0]
    assert (row["n_events"], row["why"]) == (1, "not a JSON record of a profiler: line 2")


def test_intervals_without_usable_times_are_counted(read):
    far = json.dumps(kernel(0, 0, 3)).replace(str(BEGAN), "1e300")
    backwards, timeless = kernel(9, 3, 1), {"recordType": "event", "type": "ncclProfileGroup"}
    _, _, ledger = read(LIFE, kernel(1, 2, 1), backwards, timeless, far)
    why = "no usable start and stop"
    assert ledger.loc[ledger["why"] == why, "n_events"].sum() == 3


@pytest.mark.parametrize(
    "part, nbytes, kernel_ns",
    [
        # details.count x 4 bytes (x 2 messages a kernel); stop less start of the KERNEL of rank 0
        ("2762285", 2**27, 625_500),
        ("2798216", 2**28, 1_213_500),
    ],
)
def test_a_real_profile_of_four_ranks(shared, part, nbytes, kernel_ns):
    (path,) = (shared / "traces/nccl_profiler").glob(f"*{part}*")
    table, info, ledger = nccl_profiler.read(Source(path))
    rows = comm(table).sort_values("rank")
    assert rows["rank"].tolist() == info["ranks"] == [0, 1, 2, 3]
    assert set(rows["nbytes"]) == {nbytes}
    assert (rows["end_ns"] - rows["start_ns"]).iloc[0] == kernel_ns
    assert sum(row["n_events"] for row in ledger) == len(path.read_text().splitlines())


def test_channels_last_as_long_as_the_kernels_of_a_real_profile(shared, tmp_path):
    (path,) = (shared / "traces/nccl_profiler").glob("*2762285*")
    lines = path.read_text().splitlines()
    other = tmp_path / "no-kernels.jsonl"
    other.write_text("\n".join(line for line in lines if "cuptiActivity" not in line))
    by_kernel, by_channel = (
        comm(nccl_profiler.read(Source(p))[0]).sort_values("rank") for p in (path, other)
    )
    spans = [(t["end_ns"] - t["start_ns"]).to_numpy() for t in (by_kernel, by_channel)]
    assert spans[1] == pytest.approx(spans[0], abs=5_000)  # a kernel begins and ends around them


def test_no_other_kind_of_file_is_claimed(shared):
    files = [f for folder in ("traces", "cases") for f in (shared / folder).rglob("*")]
    files = [f for f in files if f.is_file() and nccl_profiler.recognises(Source(f).head)]
    assert {f.parent.name for f in files} == {"nccl_profiler"}
    assert len(files) == 2
