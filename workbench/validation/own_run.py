"""A recording's numbers compared with independent ones, or a ValueError that says why not."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import require
from ..base.tables import check
from ..base.units import MIB, MS
from ..fits import fit_slowdown
from ..fusion import fuse
from ..timeline import predict, scenario_of
from ..timeline.from_run import spent_of, unprofiled_iterations
from ..traces import collectives, gradients, medians
from ..traces.breakdown import WORK_KINDS
from ..traces.crosscheck import breakdown

_UNKNOWN = -1  # rank of a file that does not contain it


def profiler_cost(run) -> pd.Series:
    """Return the median of traced and of unprofiled iterations (ms) and their ratio.

    Raises ValueError if the run.json of the run has no unprofiled iterations.
    """
    plain, traced_s = unprofiled_iterations(run.info), spent_of(run)["duration_s"].median()
    expected, found = "unprofiled iterations in run.json", f"none in {run.name}"
    do = "`python -m workbench.capture profile` records them"
    require(len(plain), "run", expected, found=found, do=do)
    plain_s = np.median(plain)
    ratio = traced_s / plain_s
    return pd.Series({"traced (ms)": traced_s / MS, "plain (ms)": plain_s / MS, "ratio": ratio})


def beside_gradients(run, found: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Compare the gradients of a trace with other sources: trace, other, source, ratio.

    found : gradients(run)
    models : model and nbytes, one row per gradient, as data/models/gradients.csv

    Sources are the parameters of the model that run.json names, or of one with as many gradients;
    the times of hooks (gradients_rank*.csv next to the trace, as `workbench.capture` writes them);
    and the run's own all-reduces. Sizes in MiB, times in ms. Raises ValueError without any.
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
    expected = "times of hooks, all-reduces with sizes, or a model with as many gradients"
    do = "" if sized else "record_shapes=True records sizes"
    require(rows, "run", expected, found=f"none for {run.name}", do=do)
    table = pd.DataFrame(rows, columns=["quantity", "trace", "other", "source"])
    return table.assign(ratio=table["trace"] / table["other"]).set_index("quantity")


def _of_model(run, found: pd.DataFrame, models: pd.DataFrame) -> tuple[str, float]:
    """Return the model that was trained and its bytes: as named, or the nearest by gradients."""
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
    """Return when hooks saw the last gradient, s; 0 without their file next to the first trace."""
    path = Path(run.info["files"][0]).parent / f"gradients_rank{run.info['ranks'][0]}.csv"
    if not path.is_file():
        return 0.0
    needed = {"name": "parameter", "ready_s": "s since backward began"}
    hooks = check(pd.read_csv(path, comment="#"), needed, path)
    return float(hooks.groupby("name")["ready_s"].median().max())


def _sent(run) -> float:
    """Return the bytes that all-reduces send per iteration, the median; 0 if any is unknown."""
    sent = _sent_in_iterations(run)
    if sent.empty or sent["nbytes"].isna().any():
        return 0.0
    return float(sent.groupby("iteration")["nbytes"].sum().median())


def _sent_in_iterations(run) -> pd.DataFrame:
    sent = collectives(run)
    return sent[(sent["op"] == "all_reduce") & (sent["iteration"] >= 0)]


def sibling(path: Path | str, n_workers: int) -> Path:
    """Return the recording of the same training by n workers, such as NAME-2 next to NAME-1.

    Raises FileNotFoundError if there is none.
    """
    path = Path(path)
    ending = re.search(r"-\d+$", path.name)
    other = path.with_name(f"{path.name[: ending.start()]}-{n_workers}") if ending else path
    if other == path or not other.exists():
        raise FileNotFoundError(
            f"no recording of the same training with n_workers = {n_workers} next to {path.name}: "
            f"expected a folder NAME-{n_workers} next to one whose name ends in its workers"
        )
    return other


def forecast_beside(one, several, all_reduce, fusion) -> pd.DataFrame:
    """Compare the forecast for several workers, from a run of one, with a run of several.

    Columns forecast, measured and ratio of the scaling factor, compute (ms) and exposed
    communication (ms), medians. Both scaling factors use unprofiled iterations if both runs have
    them, otherwise traced ones. Raises ValueError if the two are not the same training.
    """
    for name, run in (("one", one), ("several", several)):
        require(hasattr(run, "events"), name, "a Run", run, "Pass load_run(path)")
    n_workers = several.info.get("world_size") or several.events["rank"].nunique()
    require(n_workers > 1, "several", "a run of two workers or more", n_workers)
    counts = len(gradients(one)), len(gradients(several))
    expected = f"the same training as `one`, with {counts[0]} gradients"
    require(counts[0] == counts[1], "several", expected, counts[1])
    before, after = (spent_of(run).median(numeric_only=True) for run in (one, several))
    plain = [unprofiled_iterations(run.info) for run in (one, several)]
    if all(map(len, plain)):
        one_s, several_s = map(np.median, plain)
    else:
        one_s, several_s = before["duration_s"], after["duration_s"]
    forecast = predict(scenario_of(one, all_reduce, int(n_workers), fusion))
    rows = {
        "scaling factor": (forecast.scaling_factor, one_s / several_s),
        "compute (ms)": (before["compute_s"] / MS, after["compute_s"] / MS),
        "exposed communication (ms)": (forecast.exposed_comm_s / MS, after["exposed_comm_s"] / MS),
    }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["forecast", "measured"])
    return table.assign(ratio=table["forecast"] / table["measured"])


def hidden(run) -> pd.DataFrame:
    """Return the share of each rank's communication that compute hides, computed in two ways.

    Index rank, -1 if unknown. Columns iterations: 1 - exposed / communication, both summed over
    ITERATIONS; whole_trace: from the union of all the rank's rows, in iterations or not; and their
    ratio. Raises ValueError for a run without communication, or if none was recorded.
    """
    spent = spent_of(run).fillna({"rank": _UNKNOWN})
    found, do = f"calls only in {run.name}", "Record with ProfilerActivity.CUDA"
    known = spent["comm_s"].notna().any()
    require(known, "run", "recorded communication", found=found, do=do)
    ranks = spent.groupby("rank")
    spent = ranks[["comm_s", "exposed_comm_s"]].sum(min_count=1).astype("Float64")
    spent = spent[(spent["comm_s"] > 0).fillna(False)]
    found = f"none in {run.name}, so none is hidden"
    require(len(spent), "run", "communication in its iterations", found=found)
    rows = run.events[run.events["kind"].isin(WORK_KINDS)]
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

    Raises ValueError without any: how to install the tools, which are optional, or what each of
    them reported.
    """
    found = peers[peers["theirs_ms"].notna()].drop_duplicates(["tool", "why"])
    absent = "neither installed here"
    do = (
        "pip install HolisticTraceAnalysis TraceLens in another environment (HTA needs pandas "
        "below 3), and pass its Python: peer_python=, PEERS in notebook 01"
    )
    if (peers["version"] != "not installed").any():
        said = peers[["tool", "why"]].drop_duplicates().to_numpy()
        absent, do = "; ".join(f"{tool}: {why}" for tool, why in said), ""
    require(len(found), "optional", "a breakdown by HTA or TraceLens", found=absent, do=do)
    columns = ["tool", "quantity", "ours_ms", "theirs_ms", "difference_ms", "why"]
    return found[columns].set_index(["tool", "quantity"])


def messages_beside(run, cost) -> pd.DataFrame:
    """Compare the run's all-reduces, medians over iterations, with the price of each alone.

    Columns nbytes, n_workers, seconds (transfer, no waiting), alone_s (`cost`) and ratio. Raises
    ValueError if the run has no all-reduces of known size, workers and time.
    """
    each = medians(run)[["nbytes", "n_workers", "seconds"]]
    alone_s = cost(each["nbytes"].to_numpy(float), each["n_workers"].to_numpy(float))
    return each.assign(alone_s=alone_s, ratio=each["seconds"] / alone_s)


def buckets_beside(run, policy, iteration: int | None = None) -> pd.DataFrame:
    """Compare the buckets that a policy makes of the run's gradients with its real messages.

    Columns of BUCKETS, in_trace (bytes of the all-reduces of one iteration, by default the first
    with any) and ratio. Raises ValueError if either is unknown, or if their numbers differ.
    """
    buckets, sent = fuse(gradients(run), policy), _sent_in_iterations(run)
    iteration = sent["iteration"].min() if iteration is None else iteration
    real = sent.loc[sent["iteration"] == iteration, "nbytes"].reset_index(drop=True)
    known = len(real) and real.notna().all()
    require(known, "run", "all-reduces with their sizes", found=f"none in {run.name}")
    expected = f"{len(buckets)} all-reduces in iteration {iteration}, as {type(policy).__name__}"
    require(len(real) == len(buckets), "run", f"{expected} makes", len(real))
    return buckets.assign(in_trace=real, ratio=buckets["nbytes"] / real)


def slowdowns(run) -> pd.DataFrame:
    """Return fit_slowdown by name and by place, one row each, and the ratio of their factors.

    Raises ValueError if neither is determined.
    """
    ways = {by: fit_slowdown(run, by=by) for by in ("name", "place")}
    found = {by: vars(way) for by, way in ways.items() if way.factor is not None}
    require(found, "run", "a slow-down that is determined", found=ways["name"].why)
    table = pd.DataFrame.from_dict(found, orient="index")
    if len(found) == len(ways):
        table["ratio"] = table["factor"] / table["factor"]["place"]
    return table
