"""Our breakdown of a trace compared with other tools, and the reasons for differences."""

import json
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.checks import require
from ..base.units import MS
from .breakdown import WORK_KINDS, spans_of
from .run import load_run

QUANTITIES = {
    "window": "first start to last end of the device's rows",
    "compute": "with compute running",
    "communication": "with communication running",
    "overlap": "with both running",
    "exposed": "communication with no compute running",
    "non_compute": "busy with no compute running: communication, copies and sets",
    "idle": "with nothing running",
}
_TIMEOUT_S = 600
_NCCL = "(?i).*(?:nccl|rccl|cross_device_reduce)"  # what is communication to TraceLens
_SAME_S = 1.5e-6  # traces in whole us: sums that differ by a tick are equal

# These run in the Python of the tools, with the trace's path and rank as arguments. The last line
# of output is JSON: {quantity: us} and the version, or null if the tool is not installed.
_HTA = """
import importlib.util, json, logging, sys
if importlib.util.find_spec("hta") is None:
    print("null")
    sys.exit()
from importlib.metadata import PackageNotFoundError, version
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.ERROR)
path, rank, last = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "last"
found = TraceAnalysis(trace_files={rank: path}, include_last_profiler_step=last)
times = found.get_temporal_breakdown(visualize=False).iloc[0]
share = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
kinds, _ = found.get_gpu_kernel_breakdown(visualize=False)
comm = float(kinds.loc[kinds["kernel_type"].str.contains("COMMUNICATION"), "sum"].sum())
overlap = comm * float(share) / 100 if comm else 0.0
names = [("window", "kernel"), ("compute", "compute"), ("non_compute", "non_compute"),
         ("idle", "idle")]
said = {name: float(times[f"{theirs}_time(us)"]) for name, theirs in names}
said |= {"communication": comm, "overlap": overlap, "exposed": comm - overlap}
try:
    said["version"] = version("traceinsight")
except PackageNotFoundError:
    said["version"] = version("HolisticTraceAnalysis")
print()
print(json.dumps(said))
"""
_TRACELENS = """
import importlib.util, json, sys
if importlib.util.find_spec("TraceLens") is None:
    print("null")
    sys.exit()
from importlib.metadata import version
from TraceLens.TreePerf import TreePerfAnalyzer
try:
    table = TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
except AssertionError:
    sys.exit("its own sums do not add up to 1e-6 us")
except ValueError as error:
    flows = "it takes only device rows that an ac2g flow in the file links to a launch"
    sys.exit(f"{error}; {flows}" if "No GPU events" in str(error) else str(error))
us = dict(zip(table["type"], table["time ms"] * 1000.0))
said = {"window": us["total_time"], "compute": us["computation_time"], "idle": us["idle_time"],
        "communication": us["total_comm_time"], "exposed": us["exposed_comm_time"],
        "overlap": us["total_comm_time"] - us["exposed_comm_time"],
        "non_compute": us["busy_time"] - us["computation_time"]}
print()
print(json.dumps({key: float(value) for key, value in said.items()} | {
    "version": version("TraceLens")}))
"""


def cross_check(path, peer_python=None) -> pd.DataFrame:
    """Compare our breakdown of one trace with those of HTA and TraceLens.

    Parameters
    ----------
    path : a trace of one rank
    peer_python : the Python that has the tools, if it is not this one (HTA needs pandas < 3)

    Each tool reads the file itself, in a separate process. One row per tool and quantity, those of
    QUANTITIES:

    tool : HTA with its defaults, HTA with the last step kept, TraceLens
    version : of the tool; "not installed" or "failed"
    quantity : what is compared
    ours_ms, theirs_ms, difference_ms : ms, theirs minus ours; <NA> without the tool
    difference_percent : % of ours; <NA> if ours is 0
    why : known reasons, each found by repeating our breakdown by the rule of the tool

    Raises FileNotFoundError or ValueError if the trace cannot be read or the Python not started.
    """
    run = load_run(path)
    work = run.events[run.events["kind"].isin(WORK_KINDS)]
    ranks = work["rank"].unique()
    found = f"{len(work)} device rows, of rank {', '.join(map(str, ranks)) or 'none'}"
    one = len(ranks) == 1 and Path(path).is_file()
    require(one, str(path), "one trace with device rows, of one rank", found=found)
    python = shutil.which(str(peer_python or sys.executable))
    if python is None:
        raise FileNotFoundError(
            f"peer_python: {peer_python} is not a program. Pass the path of the Python that has "
            "the tools, such as .venv-peers/bin/python"
        )
    python = str(Path(python).absolute())  # not resolved: the link identifies the environment
    rank = next((int(rank) for rank in run.info["ranks"] if rank is not None), 0)
    arguments = [str(Path(path).resolve()), str(rank)]
    parts = [
        _compare(tool, _ask(python, code, [*arguments, option]), run.events, rules)
        for tool, code, option, rules in (
            ("HTA", _HTA, "default", partial(_hta, keep_last=False)),
            ("HTA, last step kept", _HTA, "last", partial(_hta, keep_last=True)),
            ("TraceLens", _TRACELENS, "", _tracelens),
        )
    ]
    return pd.concat(parts, ignore_index=True)


def breakdown(rows: pd.DataFrame) -> dict[str, float]:
    """Return QUANTITIES of one rank's rows of EVENTS, s: unions of spans over the whole trace."""
    spans = {kind: spans_of(rows[rows["kind"] == kind]) for kind in WORK_KINDS}
    busy = intervals.union(*map(np.concatenate, zip(*spans.values(), strict=True)))
    compute, comm, working = (
        intervals.measure(*each) for each in (spans["compute"], spans["comm"], busy)
    )
    window = busy[1][-1] - busy[0][0] if busy[0].size else 0.0
    overlap = intervals.overlap(spans["compute"], spans["comm"])
    values = [window, compute, comm, overlap, comm - overlap, working - compute, window - working]
    return dict(zip(QUANTITIES, map(float, values), strict=True))


def _ask(python: str, code: str, arguments: list[str]) -> dict:
    """Return the answer of a tool, or {"version": ..., "why": ...} without one.

    It runs in an empty folder, so that it does not import a file of the user as a module.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = subprocess.run(
                [python, "-c", code, *arguments],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"version": "failed", "why": f"no answer within {_TIMEOUT_S} s"}
    if run.returncode:
        error = run.stderr.strip().rsplit("\n", 1)[-1]
        return {"version": "failed", "why": f"it ended with: {error[:200]}"}
    try:
        said = json.loads(run.stdout.strip().rsplit("\n", 1)[-1])
    except json.JSONDecodeError:
        return {"version": "failed", "why": f"its answer is not JSON: {run.stdout[-80:]!r}"}
    return said or {"version": "not installed", "why": f"not importable in {python}"}


def _compare(tool: str, said: dict, events: pd.DataFrame, rules) -> pd.DataFrame:
    ours = breakdown(events[events["kind"].isin(WORK_KINDS)])
    table = pd.DataFrame(
        {
            "tool": tool,
            "version": said["version"],
            "quantity": list(ours),
            "ours_ms": [round(value / MS, 6) for value in ours.values()],  # to the ns
            "theirs_ms": pd.array([said.get(name, pd.NA) for name in ours], dtype="Float64") / 1e3,
        }
    )
    difference = (table["theirs_ms"] - table["ours_ms"]).round(6)
    share = 100 * difference / table["ours_ms"].where(table["ours_ms"] > 0).astype("Float64")
    why = said.get("why") or _reasons(said, ours, rules(events), _slack(events, tool))
    return table.assign(difference_ms=difference, difference_percent=share, why=why)


def _reasons(said: dict, ours: dict, rules: list[tuple], slack: dict) -> list[str]:
    """Return why each quantity differs: the rule by which ours comes closest to theirs."""
    theirs = {name: said[name] / 1e6 for name in ours}
    by_rule = [(why, breakdown(rows)) for why, rows in rules]
    why, value = min([("", ours), *by_rule], key=lambda rule: _apart(rule[1], theirs))
    reasons = []
    for name in ours:
        left, (down, up) = theirs[name] - value[name], slack[name]
        found = [why] * (abs(value[name] - ours[name]) > _SAME_S)
        if abs(ours[name] - theirs[name]) <= _SAME_S:
            found = ["agrees"]
        elif not -down <= left <= up:
            found += [f"{left / MS:.3f} ms not explained"]
        elif abs(left) > _SAME_S:
            found += [f"{left / MS:.3f} ms within its rounding (whole us, 0.01 %)"]
        reasons.append("; ".join(found))
    return reasons


def _apart(a: dict, b: dict) -> float:
    return sum(abs(a[name] - b[name]) for name in QUANTITIES)


def _slack(events: pd.DataFrame, tool: str) -> dict[str, tuple[float, float]]:
    """Return how far rounding may move each quantity down and up, s.

    HTA moves starts up and ends down to whole us if a trace has finer times (up to 2 us per row,
    which compute and communication lose), and gives the overlap as a share rounded to 0.01 %.
    """
    if tool == "TraceLens":
        return dict.fromkeys(QUANTITIES, (_SAME_S, _SAME_S))
    work = events[events["kind"].isin(WORK_KINDS)]
    us = work["start_s"].to_numpy() * 1e6
    finer = bool((np.abs(us - us.round()) > 0.01).any())
    rows = 2e-6 * len(work) * finer + _SAME_S
    share = rows + 0.5e-4 * breakdown(work)["communication"]
    slack = dict.fromkeys(QUANTITIES, (rows, rows)) | dict.fromkeys(
        ("compute", "communication"), (rows, _SAME_S)
    )
    return slack | dict.fromkeys(("overlap", "exposed"), (share, share))


def _hta(events: pd.DataFrame, *, keep_last: bool) -> list[tuple[str, pd.DataFrame]]:
    """Return the rule of HTA: rows launched before the last step starts, or before it ends."""
    steps = _steps(events)
    if steps["name"].nunique() < 2:
        return _with_waits(events)
    until_s = np.nextafter(steps["start_s"].max(), -np.inf)
    why = "it drops the last ProfilerStep and what that launched, unless set to keep it"
    if keep_last:
        until_s = steps["end_s"].max()
        why = "it leaves out device rows whose launch is not in the file"
    return [(why, _launched(events, until_s))]


def _with_waits(events: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rule of HTA by which every row of a stream, waits included, is work."""
    waits = (events["kind"] == "annotation") & (events["stream"] >= 0)
    waits &= events["correlation"] >= 0
    rows = events[waits | events["kind"].isin(WORK_KINDS)]
    kind = rows["kind"].astype("str").mask(rows["kind"] == "annotation", "memory")
    return [("it counts the waits of streams as busy", rows.assign(kind=kind))]


def _tracelens(events: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return all combinations of the rules of TraceLens that change this trace.

    From its source: GPUEventAnalyser.get_gpu_event_lists, TraceToTree.add_gpu_ops_to_tree.
    """
    work = events[events["kind"].isin(WORK_KINDS)].astype({"kind": "str"})
    kind, sets = work["kind"], _named(work, "Memset")
    unlinked = ~work.index.isin(_launched(events, np.inf).index)
    unnamed = ~_named(work, _NCCL)
    copies = _named(work, "MEMORY_COPY_|__amd_rocclr_copyBuffer")
    rules = {  # which rows of which kinds become what; "" leaves them out
        "it counts memory sets as compute": (sets, ["memory"], "compute"),
        "it leaves out device rows that it can link to no host call": (unlinked, WORK_KINDS, ""),
        "it leaves out memory sets, which no flow links to their call": (sets, ["memory"], ""),
        "it takes kernels without nccl in their name for compute": (unnamed, ["comm"], "compute"),
        "it counts ROCm's copy kernels as memory": (copies, ["compute"], "memory"),
    }
    rules = {why: rule for why, rule in rules.items() if (rule[0] & kind.isin(rule[1])).any()}
    found = []
    for some in (some for n in range(len(rules)) for some in combinations(rules, n + 1)):
        theirs = kind
        for rows, kinds, to in map(rules.get, some):
            theirs = theirs.mask(rows & theirs.isin(kinds), to)
        found.append(("; ".join(some), work.assign(kind=theirs)[theirs != ""]))
    return found


def _named(work: pd.DataFrame, pattern: str) -> pd.Series:
    return work["name"].astype("str").str.match(pattern)


def _steps(events: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that span a step, of the host or the device: HTA takes either."""
    return events[_named(events, r"ProfilerStep#\d+$") & ~events["kind"].isin(WORK_KINDS)]


def _launched(events: pd.DataFrame, until_s: float) -> pd.DataFrame:
    """Return the device rows that a host call starting by then launched (same correlation)."""
    host = events[(events["stream"] == -1) & (events["start_s"] <= until_s)]
    calls = host.loc[host["correlation"] >= 0, "correlation"]
    work = events[events["kind"].isin(WORK_KINDS)]
    return work[work["correlation"].isin(calls)]
