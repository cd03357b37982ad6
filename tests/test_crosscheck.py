"""Our breakdown compared with other tools: equal to an independent count, differences explained."""

import gzip
import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT, complete, launched, refusal
from test_lanes import two_steps

from workbench import MS, US
from workbench.traces import cross_check, load_run
from workbench.traces.crosscheck import QUANTITIES, _tracelens, breakdown

PEER = ROOT / ".venv-peers/bin/python"
SMALL_ALL_REDUCES = "traces/kineto/v100-2rank-small-allreduces/df_index_resolver.json.gz"
STRAGGLER = "traces/kineto/torchrec-4rank-straggler/rank_19488.1698954910154219890.pt.trace.json.gz"


@pytest.fixture
def peer():
    if not PEER.exists():
        pytest.skip("no environment with HTA (make bench builds .venv-peers)")
    return PEER


def by_quantity(table, tool: str, column: str) -> dict:
    return table[table["tool"] == tool].set_index("quantity")[column].to_dict()


def test_our_breakdown_counts_overlaps_once(write_trace):
    events = load_run(write_trace(two_steps(), distributedInfo={"rank": 0})).events
    expected = dict(zip(QUANTITIES, (1155, 140, 120, 20, 100, 110, 905), strict=True))
    found = {name: s / US for name, s in breakdown(events).items()}
    assert found == pytest.approx(expected, abs=1e-6)


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
    starts, ends = (
        {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == ph} for ph in "sf"
    )
    host = [e["args"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    linked = starts & ends & {args.get("correlation") for args in host}
    spans = {"comm": [], "compute": [], "memory": []}
    for e in events:
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = "comm" if re.search("nccl|rccl", e["name"], re.IGNORECASE) else "compute"
            kind = "memory" if e["cat"] == "gpu_memcpy" else kind
            if e["args"]["correlation"] in linked:
                spans[kind].append((e["ts"], e["ts"] + e["dur"]))
    return {kind: covered(sorted(each)) / 1e3 for kind, each in spans.items()}


def covered(spans) -> float:
    total, reach = 0.0, -np.inf
    for start, end in spans:
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


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


def test_several_ranks_and_a_python_that_does_not_exist_are_refused(write_trace, tmp_path):
    for rank in (0, 1):
        path = write_trace(two_steps(), f"run/rank{rank}.json", distributedInfo={"rank": rank})
    refusal(lambda: cross_check(path.parent), str(path.parent), "0, 1")
    with pytest.raises(FileNotFoundError, match="peer_python: .*nowhere"):
        cross_check(path, "/nowhere")


def peer_that(folder, script):
    """A program in the place of the Python of the tools."""
    path = folder / "peer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("us", "tool", "why"),
    [
        ((1155, 140, 120, 20, 100, 110, 905), "TraceLens", "agrees"),
        ((155, 70, 60, 10, 50, 55, 30), "HTA", "it drops the last ProfilerStep"),
        ((1155, 139, 120, 20, 100, 110, 905), "TraceLens", "agrees"),
        ((1155, 120, 120, 20, 100, 110, 905), "TraceLens", "-0.020 ms not explained"),
    ],
)
def test_the_answer_of_a_tool_is_compared_and_explained(write_trace, tmp_path, us, tool, why):
    said = json.dumps(dict(zip(QUANTITIES, us, strict=True)) | {"version": "1.2"})
    trace = write_trace(two_steps(), distributedInfo={"rank": 0})
    table = cross_check(trace, peer_that(tmp_path, f"echo '{said}'"))
    assert set(table["version"]) == {"1.2"}
    mine = table[table["tool"] == tool].set_index("quantity")
    assert mine["theirs_ms"].tolist() == pytest.approx([each / 1e3 for each in us])
    ours = mine.loc["compute", "ours_ms"]
    assert ours == pytest.approx(0.140)
    assert mine.loc["compute", "difference_ms"] == pytest.approx(us[1] / 1e3 - ours)
    assert mine.loc["compute", "difference_percent"] == pytest.approx(100 * (us[1] / 140 - 1))
    assert mine.loc["compute", "why"].startswith(why)


@pytest.mark.parametrize(
    ("script", "version", "why"),
    [
        ("echo null", "not installed", "not importable in "),
        ("echo no >&2; exit 1", "failed", "it ended with: no"),
        ("echo hello", "failed", "its answer is not JSON: 'hello"),
    ],
)
def test_a_tool_without_an_answer_is_reported(write_trace, tmp_path, script, version, why):
    trace = write_trace(two_steps(), distributedInfo={"rank": 0})
    table = cross_check(trace, peer_that(tmp_path, script))
    assert set(table["version"]) == {version}
    assert table["why"].str.startswith(why).all()
    assert table[["theirs_ms", "difference_ms"]].isna().all(axis=None)
