"""One quirk of a profiler at a time, in small traces written here."""

import json

import pandas as pd
import pytest
from conftest import complete, launched, refusal

from workbench.traces.readers import batches, kineto

STEP = complete("user_annotation", "ProfilerStep#7", 100, 1000)
GEMM = complete("kernel", "gemm", 200, 300, tid=7, stream=7, correlation=1)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def decode(events, **header):
    data = events if isinstance(events, bytes) else json.dumps({**header, "traceEvents": events})
    table, info, ledger = kineto.decode([data.encode() if isinstance(data, str) else data], "f")
    return table, info, ledger


def row(table, name):
    return table[table["name"] == name].iloc[0]


def test_times_are_microseconds_on_the_base_whatever_the_display_unit():
    table, _, _ = decode([GEMM], baseTimeNanoseconds=10**18, displayTimeUnit="ns")
    assert table[["start_ns", "end_ns"]].values.tolist() == [[10**18 + 200_000, 10**18 + 500_000]]


def test_a_category_in_any_case_is_one_category():
    cats = ("Kernel", "kernel", "Memcpy")
    table, _, ledger = decode([complete(cat, "gemm", 1, 2, tid="stream 7") for cat in cats])
    assert table["kind"].tolist() == ["compute", "compute", "memory"]
    assert table["stream"].tolist() == [7, 7, 7]
    assert ("category kernel", 2) in [(r["what"], r["n_events"]) for r in ledger]


@pytest.mark.parametrize(
    "ts, dur, start_ns, end_ns",
    [
        ("1669783687929439", "15", 1669783687929439000, 1669783687929454000),
        ("4458676522690.655", "0.2", 4458676522690655, 4458676522690855),
        ('"1669783687929439.125"', '"0.3"', 1669783687929439125, 1669783687929439425),
        ("9458676522690.655", "1.5", 9458676522690655, 9458676522692155),
    ],
)
def test_times_stay_exact_to_the_nanosecond(ts, dur, start_ns, end_ns):
    text = json.dumps({"traceEvents": [GEMM | {"ts": "TS", "dur": "DUR"}]})
    table, _, _ = decode(text.replace('"TS"', ts).replace('"DUR"', dur).encode())
    assert table[["start_ns", "end_ns"]].values.tolist() == [[start_ns, end_ns]]


def test_annotations_on_the_device_and_waiting_for_it_are_no_work():
    events = [complete("gpu_user_annotation", "a", 1, 2), complete("cuda_sync", "b", 1, 2), GEMM]
    table, _, _ = decode(events)
    assert (table["kind"] == "compute").sum() == 1


def test_every_event_is_kept_or_counted_with_a_reason():
    others = [{"ph": ph, "name": "x", "ts": 1} for ph in "sfMiCB"] + [{"name": "no phase"}]
    unfinished = complete("cpu_op", "open", 5, -1)
    negative = complete("kernel", "k", 5, -3)
    unusable = [GEMM | {"ts": "soon"}, {k: v for k, v in GEMM.items() if k != "dur"}]
    events = [STEP, GEMM, *others, unfinished, negative, *unusable]
    table, _, ledger = decode(events)
    assert sum(r["n_events"] for r in ledger) == len(events)
    assert sum(r["n_events"] for r in ledger if r["kept"]) == len(table) == 2
    assert all(r["why"] for r in ledger if not r["kept"])


def test_a_kernel_belongs_to_the_iteration_that_launched_it():
    steps = [complete("user_annotation", f"ProfilerStep#{i}", 100 * i, 100) for i in (1, 2)]
    table, _, _ = decode([*steps, *launched("late", 250, 10, launch_ts=150, correlation=5)])
    assert row(table, "late")["iteration"] == 1


REPEATED = [complete("user_annotation", "ProfilerStep#7", 100 * i, 100) for i in range(3)]
LATER = [complete("kernel", "gemm", 100 * i + 50, 5, stream=7) for i in range(3)]


@pytest.mark.parametrize(
    "events, iterations, said",
    [
        ([STEP, GEMM], [7], "1 device row has no recorded launch"),  # placed by its start
        ([STEP, complete("cpu_op", "gemm", 1, 2), GEMM], [-1, 7], None),
        ([GEMM], [0], "all of it is one iteration"),
        (REPEATED + LATER, [7, 8, 9], "numbers repeat"),
    ],
)
def test_iterations_without_a_launch_or_a_number_of_their_own(events, iterations, said):
    table, _, ledger = decode(events)
    assert table.loc[table["name"] == "gemm", "iteration"].tolist() == iterations
    whys = " ".join(r["why"] for r in ledger)
    assert said in whys if said else "one iteration" not in whys and "repeat" not in whys


MESSAGE = {"Collective name": "allreduce", "In msg nelems": 262144, "Out msg nelems": 262144}
MESSAGE |= {"Group size": 8, "dtype": "Float"}


def message(table):
    found = table[table["kind"] == "comm"].iloc[0]
    return found["op"], *(None if pd.isna(found[c]) else found[c] for c in ("nbytes", "n_workers"))


GENERAL, GATHER = "ncclDevKernel_Generic", "ncclDevKernel_AllGather"
GATHERS = MESSAGE | {"Collective name": "_allgather_base", "In msg nelems": 32768}
SHAPE = {"Input Dims": [[64]], "Input type": ["float"], "External id": 77}
OUTER = complete("cpu_op", "c10d::allreduce_", 10, 30, **SHAPE)
INNER = complete("user_annotation", "nccl:all_reduce", 12, 3, **SHAPE)


@pytest.mark.parametrize(
    "calls, name, args, info, expected",
    [
        ([], GENERAL, MESSAGE, {}, ("all_reduce", 1048576, 8)),
        ([], GATHER, GATHERS, {}, ("all_gather", 1048576, 8)),  # its larger side
        ([INNER], GENERAL, {"External id": 77}, {}, ("all_reduce", 256, None)),
        ([OUTER, INNER], GENERAL, {"External id": 77}, {}, ("all_reduce", 256, None)),
        (
            [],
            ALL_REDUCE,
            {},
            {"pg_config": [{"pg_name": "0", "pg_size": 2}]},
            ("all_reduce", None, 2),
        ),
        (
            [],
            ALL_REDUCE,
            {},
            {"pg_config": [{"pg_name": {"a": 1}, "pg_size": 2}]},
            ("all_reduce", None, 2),
        ),
        ([], GENERAL, {}, {"world_size": 4}, ("unknown", None, None)),
    ],
)
def test_a_message_is_described_by_its_kernel_its_call_or_the_only_group(
    calls, name, args, info, expected
):
    kernel = complete("kernel", name, 300, 9, stream=20, **args)
    found = message(decode([*calls, kernel], distributedInfo=info)[0])
    assert found == expected


def test_else_by_the_call_that_was_open_when_the_host_launched_it():
    shape = {"Input Dims": [[70, 10]], "Input type": ["c10::BFloat16"]}
    call = complete("user_annotation", "nccl:all_to_all", 140, 30, **shape)
    other = complete("user_annotation", "nccl:all_reduce", 200, 30, **shape)
    kernel = launched("ncclKernel_SendRecv_RING_SIMPLE", 300, 9, launch_ts=150, correlation=5)
    table, _, _ = decode([STEP, call, other, *kernel], distributedInfo={"world_size": 4})
    assert message(table)[:2] == ("all_to_all", 1400)


def test_the_bytes_of_a_gradient_come_from_its_shape_and_type():
    def accumulate(shape, dtype):
        args = {"Input Dims": [shape], "Input type": [dtype]}
        return complete("cpu_op", "torch::autograd::AccumulateGrad", 1, 2, **args)

    cases = [([2048, 1000], "float"), ([64], "c10::BFloat16"), ([], "double")]
    table, _, _ = decode([accumulate(*case) for case in cases])
    assert table["nbytes"].tolist() == [8192000, 128, 8]


def test_without_a_gpu_the_main_thread_computes_and_gloo_communicates():
    shape = {"Input Dims": [[256]], "Input type": ["float"]}
    events = [
        STEP,
        complete("cpu_op", "aten::mm", 150, 50),
        complete("cpu_op", "c10d::allreduce_", 210, 5),
        complete("user_annotation", "gloo:all_reduce", 220, 100, tid=9, **shape),
        complete("cpu_op", "aten::copy_", 240, 5, tid=9),
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 2}
    table, _, _ = decode(events, distributedInfo=info)
    kinds = table.set_index(table["name"].astype(str))["kind"].to_dict()
    assert kinds["aten::mm"] == "compute"
    assert kinds["c10d::allreduce_"] == kinds["aten::copy_"] == "host"
    assert message(table)[:2] == ("all_reduce", 1024)
    asked = row(table, "c10d::allreduce_")["correlation"]
    assert asked == row(table, "gloo:all_reduce")["correlation"] >= 0


def test_a_gpu_run_without_kernels_is_not_taken_for_one_of_the_host():
    table, _, ledger = decode(
        [STEP, complete("cpu_op", "aten::mm", 150, 5)], distributedInfo={"backend": "nccl"}
    )
    assert set(table["kind"]) == {"annotation", "host"}
    assert any("no GPU kernel" in r["why"] and r.get("warn") for r in ledger)


@pytest.mark.parametrize("field", [{"name": ["no", "text"]}, {"ts": 1e30}])
def test_an_event_of_the_wrong_shape_costs_only_itself(field):
    table, _, ledger = decode([GEMM, GEMM | field])
    assert len(table) == 1
    assert [r["n_events"] for r in ledger if not r["kept"] and r["why"]] == [1]


@pytest.mark.parametrize("value", [2**64 - 1, 2**80, -(2**70)])
def test_integers_beyond_64_bits_do_no_harm(value):
    event = GEMM | {"args": {"correlation": value, "stream": 7, "Comms Id": value}}
    table, _, _ = decode([STEP, event])
    assert row(table, "gemm")["correlation"] == -1


@pytest.mark.parametrize(
    "text",
    [b'{"nodes": []}', b"[1, 2", b"{", b"[]", b'[{"a": 1}]', b'{"traceEvents": []}', b'{"traceEv'],
)
def test_json_that_is_no_trace_is_refused(text):
    refusal(lambda: kineto.decode([text], "f"), "f", "not a trace")


def test_the_autograd_profiler_told_the_category_by_the_process():
    host = {"ph": "X", "name": "aten::mul", "ts": 633, "dur": 54, "tid": 1, "pid": "CPU functions"}
    kernel = {"ph": "X", "name": "add", "ts": 700, "dur": 13, "tid": 3, "pid": "CUDA functions"}
    table, _, _ = decode([host, kernel])
    assert table[["kind", "stream"]].values.tolist() == [["host", -1], ["compute", 3]]


OPERATOR = complete("cpu_op", "aten::mm", 110, 50)


@pytest.mark.parametrize("events", [[OPERATOR], [STEP, OPERATOR]])
def test_keeping_only_kernels_of_a_run_without_a_gpu_is_refused(events):
    def kernels(events):
        return kineto.decode([json.dumps({"traceEvents": events}).encode()], "f", "kernels")

    refusal(lambda: kernels(events), "f", 'keep="all"')
    halves = in_order(halved(OPERATOR) + halved(GEMM))
    for more in ([GEMM], halves):
        table, _, ledger = kernels([*events, *more])
        assert table["name"].tolist() == ["gemm"]
        assert sum(r["n_events"] for r in ledger) == len(events) + len(more)


def halved(event, **ends_with):
    """An interval as two events (ph B and E) and when they stand in the file."""
    start, end = event["ts"], event["ts"] + event["dur"]
    begin = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
    lane = {"ph": "E", "ts": end, "pid": event["pid"], "tid": event["tid"]}
    return [(start, begin), (end, lane | ends_with)]


def in_order(halves):
    return [event for _, event in sorted(halves, key=lambda half: half[0])]


def sums(ledger):
    return {(row["what"], row["why"]): row["n_events"] for row in ledger if not row["kept"]}


def warned(ledger):
    return {row["what"] for row in ledger if row.get("warn")}


def test_intervals_told_by_two_events_are_those_told_by_one():
    call = complete("cpu_op", "record_param_comms", 12, 4, **{"External id": 3})
    shape = {"Input Dims": [[64, 8]], "Input type": ["float"], "External id": 4}
    gradient = complete("cpu_op", "torch::autograd::AccumulateGrad", 30, 5, **shape)
    whole = [STEP, *launched(ALL_REDUCE, 40, 9, 13, 7, stream=20), call, gradient, GEMM]
    halves = in_order([half for event in whole for half in halved(event)])
    table, info, ledger = decode(halves, baseTimeNanoseconds=1234)
    expected, _, _ = decode(whole, baseTimeNanoseconds=1234)
    by = ["start_ns", "name"]
    tables = [each.sort_values(by, ignore_index=True).astype(str) for each in (table, expected)]
    assert tables[0].values.tolist() == tables[1].values.tolist()
    assert not warned(ledger) and sum(r["n_events"] for r in ledger) == len(halves)


@pytest.mark.parametrize("batch_bytes", [200, 2**19])
@pytest.mark.parametrize("named", [True, False])
def test_ends_find_their_beginnings_among_nested_intervals_of_several_threads(
    monkeypatch, rng, batch_bytes, named
):
    monkeypatch.setattr(batches, "BATCH_BYTES", batch_bytes)  # fewer than an interval may span
    halves, expected = [], []
    for thread in range(3):
        cuts = rng.choice(10**6, 40, replace=False)
        cuts.sort()
        for depth in range(20):  # each inside the one before
            start, end = (int(cuts[at]) / 1000 for at in (depth, -1 - depth))
            one = complete("cpu_op", f"n{depth % 4}", start, end - start, tid=thread)
            begun = {key: value for key, value in one.items() if key != "dur"} | {"ph": "B"}
            name = {"name": one["name"]} if named else {}
            halves.append((start, begun))
            halves.append((end, {"ph": "E", "ts": str(end), "pid": 0, "tid": thread, **name}))
            expected.append((thread, one["name"], int(cuts[depth]), int(cuts[-1 - depth])))
    text = json.dumps({"traceEvents": in_order(halves)}).encode()
    pieces = [text[at : at + 100] for at in range(0, len(text), 100)]
    table, _, ledger = kineto.decode(pieces, "f")
    found = table[["thread", "name", "start_ns", "end_ns"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(expected)
    assert sum(r["n_events"] for r in ledger) == len(halves)


def test_halves_without_the_other_are_counted_with_the_reason():
    one, other = (complete("cpu_op", name, ts, 5) for name, ts in (("a", 500), ("b", 600)))
    (_, begin), (_, end) = halved(one)
    stray = {"ph": "E", "ts": 700, "pid": 0, "tid": 99}
    of_another = {"ph": "E", "ts": 700, "pid": 0, "tid": 1, "name": "never begun"}
    backwards = [event for _, event in halved(other)]
    backwards[1]["ts"] = 599
    timeless = [{**begin, "tid": 5}, {**end, "tid": 5, "ts": [1]}]
    broken = {"ph": "B", "name": "x", "cat": [7], "ts": 1}
    halves = [*backwards, begin, stray, of_another, *timeless, broken]
    _, _, ledger = decode([STEP, GEMM, *halves])
    assert sums(ledger) == {
        ("ph B", "unfinished: begins and never ends"): 1,
        ("ph E", "an end without a beginning"): 2,
        ("ph E", "end of an interval: joined with its beginning"): 2,
        ("ph X", "unfinished: negative dur"): 1,
        ("ph X", "ts or dur is missing or no usable number"): 1,
        ("ph B or E", "half of an interval (ph B or E) with a field of an unexpected type"): 1,
    }
    assert warned(ledger) == {"ph B", "ph E", "ph B or E"}
    assert sum(r["n_events"] for r in ledger) == len(halves) + 2


def test_a_step_repeated_on_another_thread_is_one_iteration():
    steps = [
        complete("user_annotation", f"ProfilerStep#{n}", 100 * n + late, 100, tid=thread)
        for thread, late in ((1, 0), (2, 3))
        for n in (4, 5)
    ]
    kernels = [launched(f"k{n}", 450, 9, 100 * n + 50, n, thread=2) for n in (4, 5)]
    table, _, ledger = decode([*steps, *kernels[0], *kernels[1]])
    assert [row(table, f"k{n}")["iteration"] for n in (4, 5)] == [4, 5]
    assert set(table["iteration"]) == {4, 5}
    assert not any("numbers repeat" in r["why"] for r in ledger)


def test_what_the_first_traces_left_unquoted_costs_no_event():
    text = json.dumps({"traceEvents": [STEP, GEMM]}).replace('"stream": 7', '"stream": 7, "b": N/A')
    table, _, ledger = decode(text.encode())
    assert table["name"].tolist() == ["ProfilerStep#7", "gemm"]
    assert sum(r["n_events"] for r in ledger) == 2


@pytest.mark.parametrize("phase", "iICbnestfpSTFPNODMVvRc(),=")
def test_phases_that_are_no_intervals_are_counted_by_phase_and_no_damage(phase):
    other = {"ph": phase, "name": "x", "ts": 5, "pid": [1], "args": 7}
    table, _, ledger = decode([STEP, GEMM, other])
    assert len(table) == 2 and not warned(ledger)
    assert [r["n_events"] for r in ledger if r["what"] == f"ph {phase}"] == [1]


@pytest.mark.parametrize("members", ["[0, 2]", [0, 2]])
def test_the_members_of_a_group_may_be_text_or_a_list(members):
    about = {"Process Group Name": "7", "Process Group Ranks": members}
    table, _, _ = decode([complete("kernel", ALL_REDUCE, 1, 2, **about)])
    assert row(table, ALL_REDUCE)["group"] == "7 [0, 2]"


def test_streams_of_several_gpus_in_one_process_stay_apart():
    on = [complete("kernel", f"k{d}", 10, 5, tid=7, stream=7, device=d) for d in (0, 1, 3)]
    table, _, ledger = decode([*on, complete("cpu_op", "op", 1, 1)])
    assert table["stream"].tolist() == [7, 1007, 3007, -1]
    assert any("stream = 1000 x device + stream" in r["why"] for r in ledger)
    assert decode(on[1:2])[0]["stream"].tolist() == [7]
    on = [complete("kernel", "k", 9, 5, stream=s, device=d) for s, d in ((1007, 0), (7, 1))]
    assert decode(on)[0]["stream"].tolist() == [1007, 10007]


@pytest.mark.parametrize("number", [0, 5])
def test_an_external_id_shared_by_several_calls_tells_none(number):
    events = []
    for k, n in enumerate((64, 2000)):
        shape = {"Input Dims": [[n]], "Input type": ["float"], "External id": number}
        events.append(complete("user_annotation", "nccl:all_reduce", 100 * k, 30, **shape))
        kernel = launched("ncclDevKernel_Generic", 100 * k + 50, 9, 100 * k + 5, k + 1)
        kernel[1]["args"]["External id"] = number
        events += kernel
    table, _, _ = decode(events)
    assert table.loc[table["kind"] == "comm", "nbytes"].tolist() == [256, 8000]


@pytest.mark.parametrize("field", ["Collective name", "dtype", "Process Group Name"])
@pytest.mark.parametrize("absurd", [{"a": 1}, [1], 7])
def test_a_message_described_absurdly_does_no_harm(field, absurd):
    kernel = launched("ncclDevKernel_Generic", 50, 9, 5, 1, **{field: absurd})
    call = complete("user_annotation", "nccl:all_reduce", 1, 30, **{field: absurd})
    assert message(decode([call, *kernel])[0])[0] == "all_reduce"
