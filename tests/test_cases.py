"""The small files after bug reports in other tools (../shared/cases): what each must give.

EXPECTED.csv, next to the files, says it in words; a test here says it in numbers.
"""

import csv
import json
import re
import shutil
import warnings
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import launched, refusal

from workbench import traces
from workbench.traces import collectives, iterations, load_run, read_events, read_measurements

US = 1e-6
NS = 1e-9


@pytest.fixture
def cases(shared):
    return shared / "cases"


def loaded(path, load=load_run):
    """What `load` returns, and all warnings on the way as one text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = load(path)
    assert {warning.category for warning in caught} <= {UserWarning}
    return result, "\n".join(str(warning.message) for warning in caught)


def said(path, load=load_run) -> str:
    """Everything said about a file: warnings and ledger, or the sentence that refuses it."""
    try:
        run, warned = loaded(path, load)
    except ValueError as error:
        return str(error)
    return "\n".join([warned, *run.ledger["why"].dropna()])


def lost(run) -> int:
    return int(run.ledger.loc[~run.ledger["kept"], "n_events"].sum())


def test_every_case_has_its_test(cases):
    with open(cases / "EXPECTED.csv", newline="") as file:
        expected = [row["file"] for row in csv.DictReader(file)]
    tests = Path(__file__).read_text()
    assert expected and [name for name in expected if f'"{name}"' not in tests] == []


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("r06_horovod_only_bracket.json", "before the first cycle"),
        ("r07_horovod_no_closing_bracket.json", r"rank 1\b.*\b79(\.0)? us"),
        ("r11_no_distributedInfo.json", "no rank in the file"),
        ("r13_eg.pt.trace.json", "(?i)execution trace"),
        ("r16_impossible_duration.json", "overlap on one stream .*3.40 s.*'add'"),
        ("r20_no_ProfilerStep.json", "all of it is one iteration"),
        ("r21_no_runtime_events.json", "no recorded launch"),
        ("r32c_no_kernel_table.sqlite", r"(?s)no CUDA kernels(?=.*3\.25\.0).*-t cuda"),
        ("r35b_cpu_only.json", "no GPU"),
        ("r30h_launcher_error.dat", "CXI alloc failed on cxi1"),
    ],
)
def test_what_is_said(cases, name, pattern):
    load = read_measurements if name.startswith("r30") else load_run
    assert re.search(pattern, said(cases / name, load))


# Broken and cut files


@pytest.mark.parametrize(
    ("name", "n_events", "n_lost", "pattern"),
    [
        ("r01_control_char.json", 3, 0, "control character"),
        ("r02_unescaped_quote.json", 2, 1, r"line \d+"),
        ("r03_inf_value.json", 3, 0, "infinite"),
        ("r04_non_utf8.json", 3, 0, r"^[^\n]*not UTF-8 from byte \d+ on[^\n]*$"),
        ("r05b_truncated.json", 2, 1, "the file is cut"),
        ("r24_big_integer.json", 3, 0, "^$"),
    ],
)
def test_a_broken_file_gives_the_events_that_are_whole(cases, name, n_events, n_lost, pattern):
    run, warned = loaded(cases / name)
    assert (len(run.events), lost(run)) == (n_events, n_lost)
    assert re.search(pattern, warned)
    data = (cases / name).read_bytes()
    if name.startswith("r01"):
        assert run.events["name"].str.contains("\ufffd").sum() == 1
    if name.startswith("r02"):
        lines = data.decode().splitlines()
        broken = next(n for n, line in enumerate(lines, 1) if '"{"device"' in line)
        opens = max(n for n, line in enumerate(lines[:broken], 1) if line == "  {")
        assert opens <= int(re.search(r"line (\d+)", warned)[1]) <= broken
    if name.startswith("r04"):
        with pytest.raises(UnicodeDecodeError) as error:
            data.decode()
        assert f"from byte {error.value.start} on" in warned


def test_cut_gzip_data_are_read_up_to_the_cut(cases):
    path = cases / "r05_truncated.json.gz"
    run, warned = loaded(path)
    text = zlib.decompressobj(wbits=31).decompress(path.read_bytes())
    whole = len(re.findall(rb'"correlation": \d+\}\}', text))
    assert len(run.events) == whole > 1000 and lost(run) == 1
    assert "cut" in warned


def test_a_horovod_timeline_without_its_last_bracket(cases):
    run, _ = loaded(cases / "r07_horovod_no_closing_bracket.json")
    events = run.events.assign(us=(run.events["end_s"] - run.events["start_s"]) / US)
    took = events.groupby(events["name"].astype(str))["us"].max()
    assert took[took.index.str.contains("NEGOTIATE_ALLREDUCE")].tolist() == [pytest.approx(81)]
    assert took[took.index.str.contains("NCCL_ALLREDUCE")].tolist() == [pytest.approx(100)]
    (message,) = collectives(run.events).to_dict("records")
    assert (message["op"], message["nbytes"], message["n_workers"]) == ("all_reduce", 40, 2)
    assert message["end_s"] - message["start_s"] == pytest.approx(100 * US)
    assert took["ALLREDUCE"] == pytest.approx(115)


# Times

BASES = "r09_rank0_base.json", "r09_rank1_other_base.json"


def test_ranks_are_placed_by_their_own_base(cases):
    both, _ = loaded([cases / name for name in BASES])
    traces = [json.loads((cases / name).read_text()) for name in BASES]
    starts = {  # base + ts * 1000, in whole ns
        trace["distributedInfo"]["rank"]: [
            trace["baseTimeNanoseconds"] + round(e["ts"] * 1000) for e in trace["traceEvents"]
        ]
        for trace in traces
    }
    origin = min(map(min, starts.values()))
    for rank, each in starts.items():
        mine = np.sort(both.events.loc[both.events["rank"] == rank, "start_s"])
        np.testing.assert_allclose(mine, (np.sort(each) - origin) / 1e9, rtol=0, atol=2 * NS)


def test_without_a_base_ranks_are_aligned_on_their_collectives(cases, tmp_path):
    for rank, name in enumerate(BASES):
        trace = json.loads((cases / name).read_text())
        del trace["baseTimeNanoseconds"]
        for event in trace["traceEvents"]:
            event["ts"] += 5000 * rank
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    run, _ = loaded(tmp_path)
    assert run.ledger["why"].str.contains("aligned on the ends of their collectives").any()
    ends = run.events.loc[run.events["kind"] == "comm", "end_s"]
    assert len(ends) == 2 and np.ptp(ends) < NS


@pytest.mark.parametrize(
    ("name", "durations_ns"),
    [
        ("r10_display_ns_but_us.json", {"": [4928]}),
        ("r17_submicrosecond.json", {"tiny": [200, 300]}),
        ("r23_autograd_array.json", {"aten::mul": [54_000], "void add_kernel": [13_000]}),
    ],
)
def test_durations_keep_their_unit(cases, name, durations_ns):
    events = loaded(cases / name)[0].events
    for each, expected in durations_ns.items():
        mine = events[events["name"] == each] if each else events
        took = (mine["end_s"] - mine["start_s"]) / NS
        assert took.tolist() == pytest.approx(expected, abs=0.01 if each == "tiny" else 0.5)
    if name.startswith("r23"):
        assert events["kind"].astype(str).tolist() == ["host", "compute"]


def test_negative_durations_are_left_out_and_counted_separately(cases):
    run, _ = loaded(cases / "r18_negative_dur.json")
    dropped = run.ledger[~run.ledger["kept"]]
    assert sorted(run.events["name"]) == ["ProfilerStep#1", "gemm"]
    assert dropped["n_events"].tolist() == [1, 1]
    assert dropped["why"].str.contains("unfinished").sum() == 1
    assert dropped["why"].str.contains("negative dur").all()


# Ranks


def test_a_rank_is_taken_from_the_name_of_the_file(cases, tmp_path):
    shutil.copy(cases / "r11_no_distributedInfo.json", tmp_path / "job_rank3.json")
    assert (read_events(tmp_path / "job_rank3.json")["rank"] == 3).all()
    assert loaded(cases / "r11_no_distributedInfo.json")[0].events["rank"].isna().all()


def test_two_files_of_one_rank_are_refused_and_other_json_is_skipped(cases, tmp_path):
    paths = [cases / "r13_a.pt.trace.json", cases / "r13_b.pt.trace.json"]
    assert "r13_b" in refusal(lambda: load_run(paths), "two files claim rank 0", "r13_a")
    for name in ("r13_a.pt.trace.json", "r13_notes.json"):
        shutil.copy(cases / name, tmp_path)
    run, _ = loaded(tmp_path)
    skipped = run.ledger[(run.ledger["what"] == "file") & ~run.ledger["kept"]]
    assert len(run.events) == 3
    assert [Path(file).name for file in skipped["file"]] == ["r13_notes.json"]
    assert skipped["why"].str.contains("not a trace").all()


# Communication


@pytest.mark.parametrize(
    ("name", "us"),
    [
        ("r11_no_distributedInfo.json", {"compute": 400}),
        ("r14_comm_names.json", {"comm": 11 * 50, "compute": 0}),
        ("r15_overlap_two_streams.json",
         {"duration": 1000, "compute": 700, "comm": 400, "exposed_comm": 200, "idle": 100}),
        ("r20_no_ProfilerStep.json", {"duration": 700, "compute": 400, "comm": 500}),
        ("r21_no_runtime_events.json", {"compute": 400}),
        ("r22_sync_events.json", {"compute": 200, "comm": 400, "exposed_comm": 400}),
    ],
)  # fmt: skip
def test_seconds_of_the_only_iteration(cases, name, us):
    (row,) = iterations(loaded(cases / name)[0]).to_dict("records")
    assert {kind: row[f"{kind}_s"] / US for kind in us} == pytest.approx(us, abs=1e-3)


def test_kernels_of_every_library_communicate(cases):
    run, _ = loaded(cases / "r14_comm_names.json")
    comm = run.events[run.events["kind"] == "comm"].sort_values("start_s")
    named = [*["all_reduce"] * 3, *["unknown"] * 2, "all_reduce", "unknown", *["all_reduce"] * 2]
    assert comm["op"].astype(str).tolist() == [*named, "unknown", "all_reduce"]


def test_messages_that_only_the_host_saw_are_said_to_be_missing(cases):
    run, warned = loaded(cases / "r14b_only_cpu_side_comm.json")
    assert re.search(r"no communication kernel", warned, re.IGNORECASE)
    assert not (run.events["kind"] == "comm").any()
    with pytest.warns(UserWarning, match="no communication kernel was recorded"):
        assert iterations(run.events)["comm_s"].tolist() == [pd.NA]


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (["r14c_comm_args.json"], {"op": ["all_reduce"], "nbytes": [1048576], "n_workers": [8]}),
        (["r16b_wait_in_comm_r0.json", "r16b_wait_in_comm_r1.json"],
         {"n_ranks_seen": [2], "transfer_s": [100 * US], "wait_s": [900 * US]}),
        (["r27_ext_ids_differ_r0.json", "r27_ext_ids_differ_r1.json"],  # paired by order
         {"n_ranks_seen": [2, 2], "transfer_s": [70 * US] * 2, "wait_s": [10 * US] * 2}),
    ],
)  # fmt: skip
def test_messages_of_all_ranks(cases, names, columns):
    table = collectives(loaded([cases / name for name in names])[0])
    for column, expected in columns.items():
        near = expected if column == "op" else pytest.approx(expected)
        assert table[column].tolist() == near, column


def test_unsigned_identifiers_of_64_bits_still_link_launch_and_kernel(write_trace):
    ids = 10159970886766084423, 10159970886766084424  # one as a float, these are the same
    rows = [
        *launched("ncclDevKernel_AllReduce_Sum_f32", 100, 50, launch_ts=10, correlation=ids[0]),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 200, 50, launch_ts=20, correlation=ids[1]),
    ]
    run, _ = loaded(write_trace(rows, distributedInfo={"rank": 0, "world_size": 1}))
    waited = collectives(run.events).eval("start_s - launch_s") / US
    assert waited.tolist() == [pytest.approx(90), pytest.approx(180)]


def test_linking_and_measuring_need_what_the_trace_lacks(cases):
    run, _ = loaded(cases / "r34c_kineto_no_rf_id.json")
    assert run.events["name"].tolist() == ["aten::mm"]
    with pytest.raises(ValueError, match="linking is impossible: no Record function id"):
        traces.add_sizes(run, cases / "r13_eg.pt.trace.json")
    run, _ = loaded(cases / "r35b_cpu_only.json")
    refusal(lambda: iterations(run), "events", "GPU kernel")


# Timed collectives


@pytest.mark.parametrize(
    ("name", "columns", "pattern"),
    [
        ("r30_nccltests_error_col.log",
         {"op": ["all_reduce"], "n_workers": [2], "nbytes": [2**20], "seconds": [100 * US],
          "n_wrong": None}, "^$"),
        ("r30b_nccltests_wrong_col.log",
         {"seconds": [100 * US, 1.1e4 * US], "in_place_seconds": [101 * US] * 2,
          "n_wrong": [0, 3]}, "wrong results at sizes 2097152"),
        ("r30c_nccltests_no_redop.log",
         {"nbytes": [0, 2**20], "n_workers": [2, 2], "seconds": [34.27 * US, 60 * US],
          "op": ["all_gather"] * 2}, ""),
        ("r30e_nccltests_broken_row.log", {"nbytes": [2**20], "seconds": [100 * US]},
         "line 10 left out.*NaNbad"),
        ("r31_nccltests_json.json",
         {"op": ["all_reduce"], "nbytes": [2**20], "seconds": [100 * US],
          "in_place_seconds": [101 * US]}, ""),
    ],
)  # fmt: skip
def test_timed_collectives(cases, name, columns, pattern):
    table, warned = loaded(cases / name, read_measurements)
    assert re.search(pattern, warned)
    for column, expected in columns.items():
        if expected is None:
            assert table[column].isna().all()
        else:
            near = expected if column == "op" else pytest.approx(expected)
            assert table[column].tolist() == near, column


# Nsight Systems, nvprof, execution traces


def test_ranges_are_found_whatever_the_name_of_their_table(cases):
    run, _ = loaded(cases / "r32_nvtx_v2.sqlite")
    rows = run.events.sort_values(["kind", "start_s"])
    assert rows[["kind", "name"]].astype(str).to_numpy().tolist() == [
        ["annotation", "step"],
        ["comm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"],
        ["compute", "gemm"],
    ]
    assert ((rows["end_s"] - rows["start_s"]) / US).tolist() == pytest.approx([10, 6, 4])


def test_totals_are_scaled_by_the_row_of_units(cases):
    path = cases / "r33_nvprof_units_row.csv"
    table = traces.read_totals(path).set_index("name")
    assert list(table.index) == ["ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "volta_sgemm"]
    assert table["n_calls"].tolist() == [100, 100]
    assert table["seconds"].tolist() == pytest.approx([12.5e-3, 8.3e-3])
    assert table["mean_s"].tolist() == pytest.approx([125 * US, 83 * US])
    assert table["max_s"].tolist() == pytest.approx([200 * US, 90 * US])
    refusal(lambda: load_run(path), path.name, "totals only")


def test_an_execution_trace_with_a_missing_comma_is_read_node_by_node(cases):
    text = said(cases / "r34_et_missing_comma.json")
    where = (cases / "r34_et_missing_comma.json").read_bytes().index(b'{"id": 2')
    assert "execution trace (2 nodes" in text and f"line 3, byte {where}" in text
