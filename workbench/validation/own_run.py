"""A recording's numbers held against independent ones, or a ValueError that says why not."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import shown
from ..base.tables import check
from ..base.units import MIB, MS
from ..fits import fit_slowdown
from ..fusion import fuse
from ..timeline import predict, scenario_of
from ..timeline.from_run import spent_of, unprofiled_iterations
from ..traces import collectives, gradients, medians
from ..traces.crosscheck import breakdown

_UNKNOWN = -1  # stands for the rank of a file that does not say


def profiler_cost(run) -> pd.Series:
    """Return the median of traced and of plain iterations (ms) and their ratio.

    Raises ValueError where the run has no plain iterations in its run.json.
    """
    plain, traced_s = unprofiled_iterations(run.info), spent_of(run)["duration_s"].median()
    if not len(plain):
        raise ValueError(
            f"run: {run.name}: no plain iterations were timed beside the trace, so the profiler's "
            "own cost is unknown. `python -m workbench.capture profile` times them"
        )
    plain_s = np.median(plain)
    ratio = traced_s / plain_s
    return pd.Series({"traced (ms)": traced_s / MS, "plain (ms)": plain_s / MS, "ratio": ratio})


def beside_gradients(run, found: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Return the gradients found in a trace beside other sources: trace, other, source, ratio.

    found : gradients(run); models : model, nbytes, a row a gradient, as data/models/gradients.csv

    Sources are the parameters of the model that run.json names, or of one with as many gradients;
    the hooks' times beside the trace (gradients_rank*.csv, as `workbench.capture` writes them); and
    the run's own all-reduces. Sizes in MiB, times in ms. Raises ValueError where there is none.
    """
    size, last = found["nbytes"].sum() / MIB, found["ready_s"].iloc[-1] / MS
    model, of_model = _of_model(run, found, models)
    rows = [
        ("gradients (MiB)", size, of_model / MIB, f"parameters of {model}"),
        ("last gradient ready (ms)", last, _hooked(run) / MS, "hooks on the parameters"),
        ("gradients (MiB)", size, _sent(run) / MIB, "all-reduces of an iteration"),
    ]
    sized = found["nbytes"].notna().all()
    rows = [row for row in rows if row[2] > 0 and (sized or "MiB" not in row[0])]
    if not rows:
        of_sizes = "no all-reduces with their sizes, no model with as many gradients"
        raise ValueError(
            f"run: {run.name}: nothing tells the gradients a second time: no hooks' times, and "
            + (of_sizes if sized else "no sizes in the trace (record_shapes=True records them)")
        )
    table = pd.DataFrame(rows, columns=["quantity", "trace", "other", "source"])
    return table.assign(ratio=table["trace"] / table["other"]).set_index("quantity")


def _of_model(run, found: pd.DataFrame, models: pd.DataFrame) -> tuple[str, float]:
    """Return the model that was trained and its bytes: that named, else the nearest of as many."""
    table = models.groupby("model")["nbytes"].agg(["size", "sum"])
    named = str(run.info.get("model", "")).lower()
    if named in table.index:
        return named, float(table["sum"][named])
    alike = table.loc[table["size"] == len(found), "sum"]
    if alike.empty:
        return "", 0.0
    nearest = (alike - float(found["nbytes"].sum())).abs().idxmin()
    return f"{nearest}, which has as many", float(alike[nearest])


def _hooked(run) -> float:
    """Return when hooks saw the last gradient, s; 0 without their file beside the first trace."""
    path = Path(run.info["files"][0]).parent / f"gradients_rank{run.info['ranks'][0]}.csv"
    if not path.is_file():
        return 0.0
    needed = {"name": "parameter", "ready_s": "s since backward began"}
    hooks = check(pd.read_csv(path, comment="#"), needed, path)
    return float(hooks.groupby("name")["ready_s"].median().max())


def _sent(run) -> float:
    """Return the bytes that all-reduces send in an iteration, the median; 0 where not all tell."""
    sent = collectives(run)
    sent = sent[(sent["op"] == "all_reduce") & (sent["iteration"] >= 0)]
    if sent.empty or sent["nbytes"].isna().any():
        return 0.0
    return float(sent.groupby("iteration")["nbytes"].sum().median())


def sibling(path: Path | str, n_workers: int) -> Path:
    """Return the recording of the same training by n workers: NAME-2 beside NAME-1, say.

    Raises FileNotFoundError where there is none.
    """
    path = Path(path)
    ending = re.search(r"-\d+$", path.name)
    other = path.with_name(f"{path.name[: ending.start()]}-{n_workers}") if ending else path
    if other == path or not other.exists():
        raise FileNotFoundError(
            f"no recording of the same training with n_workers = {n_workers} beside {path.name}: "
            f"expected a folder NAME-{n_workers} next to one whose name ends in its workers"
        )
    return other


def forecast_beside(one, several, all_reduce, fusion) -> pd.DataFrame:
    """Return the forecast of a run of several workers, made from that of one, beside what it took.

    Columns forecast, measured and ratio of the scaling factor, compute (ms) and exposed
    communication (ms), medians. Both scaling factors take plain iterations where both runs have
    them, else traced ones. Raises ValueError where the two are not the same training.
    """
    for name, run in (("one", one), ("several", several)):
        if not hasattr(run, "events"):
            raise ValueError(f"{name}: expected a Run, got {shown(run)}; pass load_run(path)")
    n_workers = several.info.get("world_size") or several.events["rank"].nunique()
    counts = len(gradients(one)), len(gradients(several))
    if n_workers < 2 or counts[0] != counts[1]:
        raise ValueError(
            f"several: expected the same training by two workers or more, got n_workers = "
            f"{n_workers}, and {counts[1]} gradients beside {counts[0]} of one"
        )
    before, after = (spent_of(run).median(numeric_only=True) for run in (one, several))
    plain = [
        np.median(times)
        for times in (unprofiled_iterations(one.info), unprofiled_iterations(several.info))
        if len(times)
    ]
    one_s, several_s = plain if len(plain) == 2 else (before["duration_s"], after["duration_s"])
    forecast = predict(scenario_of(one, all_reduce, int(n_workers), fusion))
    rows = {
        "scaling factor": (forecast.scaling_factor, one_s / several_s),
        "compute (ms)": (before["compute_s"] / MS, after["compute_s"] / MS),
        "exposed communication (ms)": (forecast.exposed_comm_s / MS, after["exposed_comm_s"] / MS),
    }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["forecast", "measured"])
    return table.assign(ratio=table["forecast"] / table["measured"])


def hidden(run) -> pd.DataFrame:
    """Return the share of each rank's communication that compute hides, by two roads.

    Index rank, -1 where the file does not say. Columns iterations: 1 - exposed / communication,
    both summed over ITERATIONS; whole_trace: the union of all the rank's rows, iterations or not;
    and their ratio. Raises ValueError for a run without communication, or none recorded.
    """
    spent = spent_of(run).fillna({"rank": _UNKNOWN})
    if spent["comm_s"].isna().all():
        raise ValueError(
            f"run: {run.name}: collectives were called, none was recorded, so what is hidden of "
            "them is unknown. Record with ProfilerActivity.CUDA"
        )
    ranks = spent.groupby("rank")
    spent = ranks[["comm_s", "exposed_comm_s"]].sum(min_count=1).astype("Float64")
    spent = spent[(spent["comm_s"] > 0).fillna(False)]
    if spent.empty:
        raise ValueError(f"run: {run.name}: no communication in its iterations, so none is hidden")
    rows = run.events[run.events["kind"].isin(["compute", "comm", "memory"])]
    rows = rows.assign(rank=rows["rank"].fillna(_UNKNOWN))
    whole = {rank: breakdown(rows[rows["rank"] == rank]) for rank in spent.index}
    whole = {rank: found["overlap"] / found["communication"] for rank, found in whole.items()}
    share = 1 - spent["exposed_comm_s"] / spent["comm_s"]
    table = pd.DataFrame({"iterations": share, "whole_trace": pd.Series(whole)}).astype(float)
    nothing = table["whole_trace"] == 0  # hidden neither way: the two agree
    ratio = table["iterations"] / table["whole_trace"].mask(nothing)
    return table.assign(ratio=ratio.mask(nothing & (table["iterations"].abs() < 1e-9), 1.0))


def answered(peers: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a cross_check in which a tool answered, each reason of a tool once.

    Raises ValueError where none did: how to have them where none is installed, which is optional,
    else with what each of them said.
    """
    found = peers[peers["theirs_ms"].notna()].drop_duplicates(["tool", "why"])
    if found.empty and (peers["version"] == "not installed").all():
        raise ValueError(
            "optional: HTA and TraceLens would set their breakdown of this trace beside ours; "
            "neither is installed here. pip install HolisticTraceAnalysis TraceLens in another "
            "environment (HTA needs pandas below 3), and name its Python: peer_python=, PEERS in "
            "notebook 01"
        )
    if found.empty:
        said = peers[["tool", "why"]].drop_duplicates().to_numpy()
        told = "; ".join(f"{tool}: {why}" for tool, why in said)
        raise ValueError(f"optional: no other tool could tell its breakdown of this trace. {told}")
    columns = ["tool", "quantity", "ours_ms", "theirs_ms", "difference_ms", "why"]
    return found[columns].set_index(["tool", "quantity"])


def messages_beside(run, cost) -> pd.DataFrame:
    """Return the run's all-reduces, medians over iterations, beside the price of each alone.

    Columns nbytes, n_workers, seconds (transfer, no waiting), alone_s (`cost`) and ratio. Raises
    ValueError where the run has no all-reduces whose size, workers and time are known.
    """
    each = medians(run)[["nbytes", "n_workers", "seconds"]]
    alone_s = cost(each["nbytes"].to_numpy(float), each["n_workers"].to_numpy(float))
    return each.assign(alone_s=alone_s, ratio=each["seconds"] / alone_s)


def buckets_beside(run, policy, iteration: int | None = None) -> pd.DataFrame:
    """Return the buckets that a policy makes of the run's gradients beside its real messages.

    Columns of BUCKETS, in_trace (bytes of the all-reduces of one iteration, the first with any by
    default) and ratio. Raises ValueError where either is unknown, or they differ in number.
    """
    buckets, sent = fuse(gradients(run), policy), collectives(run)
    sent = sent[(sent["op"] == "all_reduce") & (sent["iteration"] >= 0)]
    iteration = sent["iteration"].min() if iteration is None else iteration
    real = sent.loc[sent["iteration"] == iteration, "nbytes"]
    if real.empty or real.isna().any():
        raise ValueError(
            f"run: {run.name}: no all-reduces with their sizes to hold buckets against"
        )
    if len(real) != len(buckets):
        raise ValueError(
            f"run: {run.name}: {type(policy).__name__} makes {len(buckets)} messages, iteration "
            f"{iteration} holds {len(real)} all-reduces: other settings, or others among them"
        )
    real = real.reset_index(drop=True)
    return buckets.assign(in_trace=real, ratio=buckets["nbytes"] / real)


def slowdowns(run) -> pd.DataFrame:
    """Return fit_slowdown by name and by place, a row each, and their ratio of factors.

    Raises ValueError where neither is determined.
    """
    ways = {by: fit_slowdown(run, by=by) for by in ("name", "place")}
    found = {by: vars(way) for by, way in ways.items() if way.factor is not None}
    if not found:
        raise ValueError(f"run: {run.name}: slow-down not determined: {ways['name'].why}")
    table = pd.DataFrame.from_dict(found, orient="index")
    if len(found) == len(ways):
        table["ratio"] = table["factor"] / table["factor"]["place"]
    return table
