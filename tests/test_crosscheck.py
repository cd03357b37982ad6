"""Our breakdown beside other tools': right by an independent count, and differences explained."""

import gzip
import json
import sys

import numpy as np
import pytest
from conftest import ROOT, complete, launched

from workbench.crosscheck import QUANTITIES, _tracelens, breakdown, cross_check
from workbench.traces import load_run

PEER = ROOT / ".venv-peers/bin/python"
SMALL_ALL_REDUCES = "traces/kineto/v100-2rank-small-allreduces/df_index_resolver.json.gz"
STRAGGLER = "traces/kineto/torchrec-4rank-straggler/rank_19488.1698954910154219890.pt.trace.json.gz"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"


@pytest.fixture
def peer():
    if not PEER.exists():
        pytest.skip("no environment with HTA (make bench builds .venv-peers)")
    return PEER


def two_steps() -> list[dict]:
    """Two steps, each 30 us of compute, 10 of them beside 20 us of all-reduce, then a 5 us copy."""
    events = []
    for step, at in enumerate((1000, 2000)):
        n = 10 * step
        events += [
            complete("user_annotation", f"ProfilerStep#{step}", at, 500),
            *launched("gemm", at + 100, 30, at + 10, n + 1, stream=7),
            *launched(NCCL, at + 120, 20, at + 20, n + 2, stream=20),
        ]
        copy = launched("Memcpy DtoH (Device -> Pageable)", at + 150, 5, at + 30, n + 3)
        events += [copy[0], copy[1] | {"cat": "gpu_memcpy"}]
    return events


def by_quantity(table, tool: str, column: str) -> dict:
    return table[table["tool"] == tool].set_index("quantity")[column].to_dict()


def test_our_breakdown_counts_overlaps_once(write_trace):
    events = load_run(write_trace(two_steps(), distributedInfo={"rank": 0})).events
    assert breakdown(events) == pytest.approx(
        {
            "window": 1055e-6,
            "compute": 60e-6,
            "communication": 40e-6,
            "overlap": 20e-6,
            "exposed": 20e-6,
            "non_compute": 30e-6,
            "idle": (1055 - 60 - 20 - 10) * 1e-6,
        },
        abs=1e-12,
    )


def grid_us(path) -> dict[str, int]:
    """QUANTITIES in us by marking each microsecond of a trace whose times are whole us."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    rows = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    low, high = min(e["ts"] for e in rows), max(e["ts"] + e["dur"] for e in rows)
    marks = {kind: np.zeros(high - low, bool) for kind in ("compute", "comm", "memory")}
    for event in rows:
        kind = "comm" if "nccl" in event["name"].lower() else "compute"
        kind = kind if event["cat"] == "kernel" else "memory"
        marks[kind][event["ts"] - low : event["ts"] + event["dur"] - low] = True
    compute, comm, busy = marks["compute"], marks["comm"], np.logical_or.reduce([*marks.values()])
    found = [busy.size, compute.sum(), comm.sum(), (compute & comm).sum()]
    found += [(comm & ~compute).sum(), (busy & ~compute).sum(), (~busy).sum()]
    return dict(zip(QUANTITIES, map(int, found), strict=True))


def test_without_the_tools_ours_is_still_there_and_right(shared):
    path = shared / STRAGGLER
    table = cross_check(path)
    if set(table["version"]) != {"not installed"}:
        pytest.skip("HTA or TraceLens is installed beside the package")
    for tool in ("HTA", "HTA, last step kept", "TraceLens"):
        ours = {name: ms * 1e3 for name, ms in by_quantity(table, tool, "ours_ms").items()}
        assert ours == pytest.approx(grid_us(path), abs=1e-3)
    assert table[["theirs_ms", "difference_ms", "difference_percent"]].isna().all(axis=None)
    assert table["why"].str.startswith("not importable in ").all()


@pytest.mark.slow
def test_hta_drops_the_last_step_and_agrees_when_told_to_keep_it(peer, shared):
    table = cross_check(shared / SMALL_ALL_REDUCES, peer)
    default = by_quantity(table, "HTA", "theirs_ms")
    assert default["window"] == pytest.approx(1396.669)
    assert default["communication"] == pytest.approx(238.274)
    why = by_quantity(table, "HTA", "why")
    assert why["compute"].startswith("it drops the last ProfilerStep and what that launched")
    assert set(by_quantity(table, "HTA, last step kept", "why").values()) == {"agrees"}


def test_tracelens_compute_is_ours_with_memory_sets(shared):
    # 621.408 ms: get_df_gpu_timeline of TraceLens at commit 171dd74 on this trace.
    events = load_run(shared / SMALL_ALL_REDUCES).events
    why, rows = _tracelens(events)[0]
    assert why == "it counts memory sets as compute"
    assert breakdown(rows)["compute"] == pytest.approx(0.621408, abs=1e-9)


@pytest.mark.slow
def test_rows_whose_launch_is_not_in_the_file_explain_what_hta_lacks(peer, write_trace):
    lone = complete("kernel", "gemm", 1600, 40, tid=7, stream=7, correlation=99)
    trace = write_trace([*two_steps(), lone], distributedInfo={"rank": 0, "world_size": 2})
    table = cross_check(trace, peer)
    difference = by_quantity(table, "HTA, last step kept", "difference_ms")
    assert difference["compute"] == pytest.approx(-0.040)
    why = by_quantity(table, "HTA, last step kept", "why")
    assert why["compute"] == "it leaves out device rows whose launch is not in the file"
    assert why["communication"] == "agrees"


@pytest.mark.slow
def test_a_tool_that_breaks_is_reported_not_raised(peer, write_trace):
    kernel = complete("kernel", "gemm", 1000, 10, tid=7, stream=7, correlation=1)
    trace = write_trace([kernel], name="trace.txt", distributedInfo={"rank": 0})
    table = cross_check(trace, peer)
    hta = table[table["tool"] == "HTA"]
    assert set(hta["version"]) == {"failed"}
    assert hta["why"].str.startswith("it ended with: ").all()


def test_a_module_beside_the_trace_is_not_run(write_trace, tmp_path, monkeypatch):
    for name in ("hta", "TraceLens", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    cross_check(write_trace(two_steps(), distributedInfo={"rank": 0}), sys.executable)
    assert not (tmp_path / "ran").exists()


def test_several_ranks_are_refused(write_trace, tmp_path):
    for rank in (0, 1):
        write_trace(two_steps(), name=f"run/rank{rank}.json", distributedInfo={"rank": rank})
    with pytest.raises(ValueError, match="expected one trace with device rows, of one rank"):
        cross_check(tmp_path / "run")


def test_a_python_that_is_none_is_refused(write_trace):
    trace = write_trace(two_steps(), distributedInfo={"rank": 0})
    with pytest.raises(FileNotFoundError, match="peer_python: .*nowhere is no program"):
        cross_check(trace, "/nowhere")
