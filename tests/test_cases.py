"""The small files after bug reports in other tools (../shared/cases): one test each.

What each must do stands in its EXPECTED.csv, beside the reports; a test here says it in numbers.
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
    """Everything said of a file: warnings and ledger, or the sentence that refuses it."""
    try:
        run, warned = loaded(path, load)
    except ValueError as error:
        return str(error)
    return "\n".join([warned, *run.ledger["why"].dropna()])


def spent(run) -> dict:
    """The only iteration of the only rank, in us."""
    (row,) = iterations(run.events).to_dict("records")
    return {k: v / US for k, v in row.items() if k.endswith("_s")}


def lost(run) -> int:
    return int(run.ledger.loc[~run.ledger["kept"], "n_events"].sum())


def test_every_case_has_its_test(cases):
    with open(cases / "EXPECTED.csv", newline="") as file:
        expected = [row["file"] for row in csv.DictReader(file)]
    tests = Path(__file__).read_text()
    assert expected and [name for name in expected if f'"{name}"' not in tests] == []


# Broken and cut files


def test_a_control_character_becomes_a_replacement_character(cases):
    run, warned = loaded(cases / "r01_control_char.json")
    assert len(run.events) == 3 and "control character" in warned
    assert run.events["name"].str.contains("\ufffd").sum() == 1


def test_an_unescaped_quote_costs_its_own_event_only(cases):
    path = cases / "r02_unescaped_quote.json"
    run, warned = loaded(path)
    lines = path.read_text().splitlines()
    broken = next(n for n, line in enumerate(lines, 1) if '"{"device"' in line)
    opens = max(n for n, line in enumerate(lines[:broken], 1) if line == "  {")
    assert opens <= int(re.search(r"line (\d+)", warned)[1]) <= broken
    assert len(run.events) == 2 and lost(run) == 1


def test_an_infinite_number_is_a_missing_value(cases):
    run, warned = loaded(cases / "r03_inf_value.json")
    assert len(run.events) == 3 and lost(run) == 0 and "infinite" in warned


def test_a_byte_that_is_no_text_is_replaced_and_placed(cases):
    path = cases / "r04_non_utf8.json"
    run, warned = loaded(path)
    with pytest.raises(UnicodeDecodeError) as error:
        path.read_bytes().decode()
    assert len(run.events) == 3 and warned.count("\n") == 0
    assert f"not UTF-8 from byte {error.value.start} on" in warned


def test_cut_gzip_data_are_read_up_to_the_cut(cases):
    path = cases / "r05_truncated.json.gz"
    run, warned = loaded(path)
    text = zlib.decompressobj(wbits=31).decompress(path.read_bytes())
    whole = len(re.findall(rb'"correlation": \d+\}\}', text))
    assert len(run.events) == whole > 1000 and lost(run) == 1
    assert "cut" in warned


def test_a_cut_file_keeps_its_whole_events(cases):
    run, warned = loaded(cases / "r05b_truncated.json")
    assert len(run.events) == 2 and lost(run) == 1 and "the file is cut" in warned


# Horovod


def test_a_horovod_timeline_without_an_event_says_that_the_job_ended_early(cases):
    assert "before the first cycle" in said(cases / "r06_horovod_only_bracket.json")


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


def test_a_horovod_timeline_tells_the_late_rank(cases):
    run, _ = loaded(cases / "r07_horovod_no_closing_bracket.json")
    assert re.search(r"rank 1\b.*\b79(\.0)? us", "\n".join(run.ledger["why"]))


# Times


@pytest.mark.parametrize("name", ["r09_rank0_base.json", "r09_rank1_other_base.json"])
def test_ranks_are_placed_by_their_own_base(cases, name):
    both, _ = loaded([cases / "r09_rank0_base.json", cases / "r09_rank1_other_base.json"])
    said = {n: json.loads((cases / n).read_text()) for n in both_names()}
    origin = min(start for n in said for start in starts_ns(said[n]))
    rank = said[name]["distributedInfo"]["rank"]
    mine = both.events[both.events["rank"] == rank]
    expected = [(start - origin) / 1e9 for start in starts_ns(said[name])]
    np.testing.assert_allclose(np.sort(mine["start_s"]), np.sort(expected), rtol=0, atol=2 * NS)


def both_names():
    return "r09_rank0_base.json", "r09_rank1_other_base.json"


def starts_ns(trace: dict) -> list[int]:
    """base + ts * 1000, in whole ns."""
    return [trace["baseTimeNanoseconds"] + round(e["ts"] * 1000) for e in trace["traceEvents"]]


def test_without_a_base_ranks_are_aligned_on_their_collectives(cases, tmp_path):
    for rank, name in enumerate(both_names()):
        trace = json.loads((cases / name).read_text())
        del trace["baseTimeNanoseconds"]
        for event in trace["traceEvents"]:
            event["ts"] += 5000 * rank
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    run, _ = loaded(tmp_path)
    assert run.ledger["why"].str.contains("aligned on the ends of their collectives").any()
    ends = run.events.loc[run.events["kind"] == "comm", "end_s"]
    assert len(ends) == 2 and np.ptp(ends) < NS


def test_the_display_unit_does_not_change_the_unit_of_times(cases):
    run, _ = loaded(cases / "r10_display_ns_but_us.json")
    assert run.events["end_s"].tolist() == [pytest.approx(4.928 * US, abs=NS / 2)]


def test_durations_below_a_microsecond_stay(cases):
    events = loaded(cases / "r17_submicrosecond.json")[0].events
    tiny = events[events["name"] == "tiny"]
    took = (tiny["end_s"] - tiny["start_s"]) / NS
    assert took.tolist() == [pytest.approx(200, abs=0.01), pytest.approx(300, abs=0.01)]


def test_negative_durations_are_left_out_and_counted_apart(cases):
    run, _ = loaded(cases / "r18_negative_dur.json")
    dropped = run.ledger[~run.ledger["kept"]]
    assert sorted(run.events["name"]) == ["ProfilerStep#1", "gemm"]
    assert dropped["n_events"].tolist() == [1, 1]
    assert dropped["why"].str.contains("unfinished").sum() == 1
    assert dropped["why"].str.contains("negative dur").all()


# Ranks


def test_a_file_without_a_rank_is_loaded_as_rank_unknown(cases):
    run, _ = loaded(cases / "r11_no_distributedInfo.json")
    assert run.events["rank"].isna().all() and "no rank in the file" in str(run)
    assert spent(run)["compute_s"] == pytest.approx(400)


def test_a_rank_is_taken_from_the_name_of_the_file(cases, tmp_path):
    shutil.copy(cases / "r11_no_distributedInfo.json", tmp_path / "job_rank3.json")
    assert (read_events(tmp_path / "job_rank3.json")["rank"] == 3).all()


def test_two_files_of_one_rank_are_refused(cases):
    with pytest.raises(ValueError, match=r"two files claim rank 0: .*r13_a.*r13_b"):
        load_run([cases / "r13_a.pt.trace.json", cases / "r13_b.pt.trace.json"])


def test_json_that_is_no_trace_is_skipped_and_said(cases, tmp_path):
    for name in ("r13_a.pt.trace.json", "r13_notes.json"):
        shutil.copy(cases / name, tmp_path)
    run, _ = loaded(tmp_path)
    skipped = run.ledger[(run.ledger["what"] == "file") & ~run.ledger["kept"]]
    assert len(run.events) == 3
    assert [Path(file).name for file in skipped["file"]] == ["r13_notes.json"]
    assert skipped["why"].str.contains("not a trace").all()


def test_an_execution_trace_is_told_by_its_nodes(cases):
    assert "execution trace" in said(cases / "r13_eg.pt.trace.json").lower()


# Communication


def test_kernels_of_every_library_communicate(cases):
    run, _ = loaded(cases / "r14_comm_names.json")
    comm = run.events[run.events["kind"] == "comm"].sort_values("start_s")
    assert len(comm) == 11 and not (run.events["kind"] == "compute").any()
    named = [*["all_reduce"] * 3, *["unknown"] * 2, "all_reduce", "unknown", *["all_reduce"] * 2]
    assert comm["op"].astype(str).tolist() == [*named, "unknown", "all_reduce"]
    assert spent(run)["comm_s"] == pytest.approx(11 * 50)


def test_messages_that_only_the_host_saw_are_said_to_be_missing(cases):
    run, warned = loaded(cases / "r14b_only_cpu_side_comm.json")
    assert re.search(r"no communication kernel", warned, re.IGNORECASE)
    assert not (run.events["kind"] == "comm").any()
    with pytest.warns(UserWarning, match="no communication kernel was recorded"):
        assert iterations(run.events)["comm_s"].tolist() == [pd.NA]


def test_the_arguments_of_a_generic_kernel_describe_its_message(cases):
    run, _ = loaded(cases / "r14c_comm_args.json")
    (message,) = collectives(run.events).to_dict("records")
    found = (message["op"], message["nbytes"], message["n_workers"])
    assert found == ("all_reduce", 1048576, 8)


def test_overlap_is_counted_once(cases):
    time = spent(loaded(cases / "r15_overlap_two_streams.json")[0])
    hidden = time["comm_s"] - time["exposed_comm_s"]
    busy = time["duration_s"] - time["idle_s"]
    found = (busy, time["compute_s"], time["comm_s"], hidden, time["exposed_comm_s"])
    assert found == pytest.approx((900, 700, 400, 200, 200))
    assert time["idle_s"] == pytest.approx(100) and busy / time["duration_s"] == pytest.approx(0.9)


def test_kernels_that_overlap_on_one_stream_are_flagged(cases):
    run, warned = loaded(cases / "r16_impossible_duration.json")
    remark = run.ledger[run.ledger["why"].str.contains("overlap on one stream")]
    assert remark["n_events"].tolist() == [0]
    assert "3.40 s" in remark["why"].iloc[0] and "'add'" in remark["why"].iloc[0]
    assert "overlap on one stream" in warned


def test_waiting_for_a_late_rank_is_no_transfer(cases):
    run, _ = loaded([cases / "r16b_wait_in_comm_r0.json", cases / "r16b_wait_in_comm_r1.json"])
    (message,) = collectives(run.events).to_dict("records")
    assert message["n_ranks_seen"] == 2
    assert message["transfer_s"] == pytest.approx(100 * US)
    assert message["wait_s"] == pytest.approx(900 * US)


def test_waiting_for_the_host_is_no_work(cases):
    time = spent(loaded(cases / "r22_sync_events.json")[0])
    assert (time["compute_s"], time["comm_s"]) == pytest.approx((200, 400))
    assert time["comm_s"] - time["exposed_comm_s"] == pytest.approx(0, abs=1e-3)


def test_messages_are_paired_by_order_not_by_external_id(cases):
    run, _ = loaded([cases / "r27_ext_ids_differ_r0.json", cases / "r27_ext_ids_differ_r1.json"])
    table = collectives(run.events)
    assert table["n_ranks_seen"].tolist() == [2, 2]
    assert table["transfer_s"].tolist() == [pytest.approx(70 * US)] * 2
    assert table["wait_s"].tolist() == [pytest.approx(10 * US)] * 2


# What a trace may lack


def test_a_file_without_steps_is_one_iteration(cases):
    run, _ = loaded(cases / "r20_no_ProfilerStep.json")
    time = spent(run)
    assert (time["duration_s"], time["compute_s"], time["comm_s"]) == pytest.approx((700, 400, 500))
    assert run.ledger["why"].str.contains("all of it is one iteration").any()


def test_kernels_need_no_recorded_launch(cases):
    run, _ = loaded(cases / "r21_no_runtime_events.json")
    assert spent(run)["compute_s"] == pytest.approx(400)
    assert run.ledger["why"].str.contains("no recorded launch").any()


def test_the_array_of_the_old_autograd_profiler(cases):
    events = loaded(cases / "r23_autograd_array.json")[0].events.set_index("name")
    assert events["kind"].astype(str).to_dict() == {
        "aten::mul": "host",
        "void add_kernel": "compute",
    }
    took = (events["end_s"] - events["start_s"]).to_dict()
    assert took == {
        "aten::mul": pytest.approx(54 * US),
        "void add_kernel": pytest.approx(13 * US),
    }


def test_an_identifier_of_64_bits_is_harmless(cases):
    run, warned = loaded(cases / "r24_big_integer.json")
    assert len(run.events) == 3 and lost(run) == 0 and warned == ""


def test_unsigned_identifiers_of_64_bits_still_link_launch_and_kernel(write_trace):
    from conftest import launched

    ids = 10159970886766084423, 10159970886766084424  # one as a float, these are the same
    rows = [
        *launched("ncclDevKernel_AllReduce_Sum_f32", 100, 50, launch_ts=10, correlation=ids[0]),
        *launched("ncclDevKernel_AllReduce_Sum_f32", 200, 50, launch_ts=20, correlation=ids[1]),
    ]
    run, _ = loaded(write_trace(rows, distributedInfo={"rank": 0, "world_size": 1}))
    waited = collectives(run.events).eval("start_s - launch_s") / US
    assert waited.tolist() == [pytest.approx(90), pytest.approx(180)]


def test_without_the_identifier_of_the_execution_trace_linking_is_said_to_be_impossible(cases):
    path = cases / "r34c_kineto_no_rf_id.json"
    run, _ = loaded(path)
    assert run.events["name"].tolist() == ["aten::mm"]
    with pytest.raises(ValueError, match="linking is impossible: no Record function id"):
        traces.add_sizes(run, cases / "r13_eg.pt.trace.json")


def test_a_run_on_the_host_alone_says_so_and_divides_by_nothing(cases):
    run, warned = loaded(cases / "r35b_cpu_only.json")
    assert "no GPU" in warned
    with pytest.raises(ValueError, match="no GPU kernel"):
        iterations(run.events)


# Sweeps


def test_the_check_column_of_old_tests_is_no_count(cases):
    table, warned = loaded(cases / "r30_nccltests_error_col.log", read_measurements)
    (row,) = table.to_dict("records")
    assert (row["op"], row["n_workers"], row["nbytes"]) == ("all_reduce", 2, 2**20)
    assert row["seconds"] == pytest.approx(100 * US)
    assert table["n_wrong"].isna().all() and warned == ""


def test_wrong_values_are_warned_of(cases):
    table, warned = loaded(cases / "r30b_nccltests_wrong_col.log", read_measurements)
    assert table["seconds"].tolist() == [pytest.approx(100 * US), pytest.approx(1.1e4 * US)]
    assert table["in_place_seconds"].tolist() == [pytest.approx(101 * US)] * 2
    assert table["n_wrong"].tolist() == [0, 3] and "wrong results at sizes 2097152" in warned


def test_a_table_without_a_reduction_among_lines_of_the_library(cases):
    table, _ = loaded(cases / "r30c_nccltests_no_redop.log", read_measurements)
    assert table["nbytes"].tolist() == [0, 2**20] and (table["n_workers"] == 2).all()
    assert table["seconds"].tolist() == [pytest.approx(34.27 * US), pytest.approx(60 * US)]
    assert (table["op"] == "all_gather").all()


def test_a_broken_row_is_named_and_the_others_stay(cases):
    path = cases / "r30e_nccltests_broken_row.log"
    table, warned = loaded(path, read_measurements)
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "NaNbad" in line)
    assert table["nbytes"].tolist() == [2**20] and f"line {number} " in warned


def test_the_message_of_a_failed_launcher_is_shown(cases):
    with pytest.raises(ValueError, match="CXI alloc failed on cxi1"):
        read_measurements(cases / "r30h_launcher_error.dat")


def test_json_of_nccl_tests_behind_other_output(cases):
    table, _ = loaded(cases / "r31_nccltests_json.json", read_measurements)
    (row,) = table.to_dict("records")
    assert (row["op"], row["nbytes"]) == ("all_reduce", 2**20)
    assert row["seconds"] == pytest.approx(100 * US)
    assert row["in_place_seconds"] == pytest.approx(101 * US)


# Nsight Systems, nvprof, execution traces


def test_ranges_are_found_whatever_their_table_is_called(cases):
    run, _ = loaded(cases / "r32_nvtx_v2.sqlite")
    rows = run.events.sort_values(["kind", "start_s"])
    found = list(zip(rows["kind"].astype(str), rows["name"].astype(str), strict=True))
    assert found == [
        ("annotation", "step"),
        ("comm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("compute", "gemm"),
    ]
    took = ((rows["end_s"] - rows["start_s"]) / US).tolist()
    assert took == [pytest.approx(10), pytest.approx(6), pytest.approx(4)]


def test_an_export_without_kernels_says_how_it_was_captured(cases):
    text = said(cases / "r32c_no_kernel_table.sqlite")
    assert "no CUDA kernels" in text and "3.25.0" in text and "-t cuda" in text


def test_totals_are_scaled_by_the_row_of_units(cases):
    table = traces.read_totals(cases / "r33_nvprof_units_row.csv")
    table = table.set_index("name")
    assert list(table.index) == ["ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "volta_sgemm"]
    assert table["n_calls"].tolist() == [100, 100]
    assert table["seconds"].tolist() == pytest.approx([12.5e-3, 8.3e-3])
    assert table["mean_s"].tolist() == pytest.approx([125 * US, 83 * US])
    assert table["max_s"].tolist() == pytest.approx([200 * US, 90 * US])


def test_an_execution_trace_with_a_missing_comma_is_read_node_by_node(cases):
    text = said(cases / "r34_et_missing_comma.json")
    where = (cases / "r34_et_missing_comma.json").read_bytes().index(b'{"id": 2')
    assert "execution trace (2 nodes" in text and f"line 3, byte {where}" in text
