"""Our breakdown beside other tools': right by an independent count, and differences explained."""

import gzip
import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT, complete, launched

from workbench import MS
from workbench.traces import cross_check, load_run
from workbench.traces.crosscheck import QUANTITIES, _tracelens, breakdown

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
    rules = dict(_tracelens(events))
    rows = rules["it counts memory sets as compute"]
    assert breakdown(rows)["compute"] == pytest.approx(0.621408, abs=1e-9)


def by_tracelens(path) -> dict[str, float]:
    """ms by the rules in TraceLens' source: rows that a flow with a start and an end links to a
    call, sets among the compute, nccl or rccl in the name for communication.
    """
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    flows = {
        ph: {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == ph} for ph in "sf"
    }
    calls = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    linked, spans = flows["s"] & flows["f"] & calls, {"comm": [], "compute": [], "memory": []}
    for e in events:
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = "comm" if re.search("nccl|rccl", e["name"], re.IGNORECASE) else "compute"
            kind = "memory" if e["cat"] == "gpu_memcpy" else kind
            if e["args"]["correlation"] in linked:
                spans[kind].append((e["ts"], e["ts"] + e["dur"]))
    return {kind: sum(b - a for a, b in merged(each)) / 1e3 for kind, each in spans.items()}


def merged(spans) -> list[list[float]]:
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


@pytest.mark.parametrize(
    "path, why",
    [
        (SMALL_ALL_REDUCES, "it counts memory sets as compute"),
        (
            STRAGGLER,
            "it counts memory sets as compute; "
            "it leaves out device rows that it can link to no host call",
        ),
        (
            "traces/kineto/rccl-generic-names/resnet_act_checkpoint.json.gz",
            "it leaves out device rows that it can link to no host call; "
            "it leaves out memory sets, which no flow links to their call",
        ),
    ],
)
def test_what_tracelens_counts_is_explained_by_its_own_rules(shared, path, why):
    theirs = by_tracelens(shared / path)
    rows = dict(_tracelens(load_run(shared / path).events))[why]
    ours = breakdown(rows)
    assert ours["compute"] / MS == pytest.approx(theirs["compute"], abs=1.5e-3)
    assert ours["communication"] / MS == pytest.approx(theirs["comm"], abs=1.5e-3)


def test_names_that_tracelens_does_not_know_are_compute_to_it(write_trace):
    kernels = [
        *launched("void vllm::cross_device_reduce_1stage<float>()", 10, 5, 1, 1),
        *launched("two_shot_all_reduce_kernel", 20, 5, 2, 2),
        *launched("__amd_rocclr_copyBuffer.kd", 30, 5, 3, 3),
    ]
    events = load_run(write_trace(kernels, distributedInfo={"rank": 0})).events
    rules = {why: breakdown(rows) for why, rows in _tracelens(events)}
    names = "it takes kernels without nccl in their name for compute"
    copies = "it counts ROCm's copy kernels as memory"
    assert breakdown(events)["communication"] == pytest.approx(10e-6)
    assert rules[names]["communication"] == pytest.approx(5e-6)
    assert rules[copies]["compute"] == 0
    assert rules[f"{names}; {copies}"]["compute"] == pytest.approx(5e-6)


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
