"""How much slower compute kernels run while communication runs on the same device."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import t as student

from ..base.checks import checked, one_of, refuse
from ..base.intervals import union
from ..base.tables import check
from .estimates import a_level

_NEEDED = {
    "rank": "number of the worker",
    "stream": "device stream; -1 on the host",
    "iteration": "number the profiler gave; -1 outside",
    "kind": "compute, comm, ...",
    "name": "as written in the file",
    "start_s": "s",
    "end_s": "s",
}


@dataclass(frozen=True)
class Slowdown:
    """How many times longer a compute kernel takes during communication than alone.

    factor : the estimate; None if nothing overlaps
    low, high : its 95 % interval; None if nothing overlaps
    n_kernels : names (on one rank) found both during communication and alone
    n_beside, n_alone : launches of these kernels, more than half during communication or not
    why : how it was estimated, or why it is not determined
    """

    factor: float | None
    low: float | None
    high: float | None
    n_kernels: int
    n_beside: int
    n_alone: int
    why: str

    def __repr__(self) -> str:
        if self.factor is None:
            return f"Slowdown not determined: {self.why}"
        return (
            f"Slowdown {self.factor:.3g} (95 %: {self.low:.3g} to {self.high:.3g}) during "
            f"communication, from {self.n_kernels} kernels: {self.n_beside} launches during it, "
            f"{self.n_alone} not"
        )


@checked(by=one_of(("name", "place")), level=a_level)
def fit_slowdown(run, by: str = "name", level: float = 0.95) -> Slowdown:
    """Return how much slower compute runs during communication, from a Run or its EVENTS.

    A kernel that would take b alone and has the share s of its time during communication, when it
    runs k times slower, takes d with b/d = 1 - s (1 - 1/k). Fitted by least squares to

        log d = (a constant for each kernel) - log(1 - s (1 - 1/k)) + error

    over all launches of kernels that ran both ways, with the interval robust to unequal errors
    (HC3). Launches with the same name on a rank count as one kernel, so if the larger shapes of a
    name run during communication, that appears as slowdown; by="place" uses the name and its place
    within the iteration, which fixes the shape and needs several iterations.

    Raises ValueError for missing columns, or device times that are not finite.
    """
    events = check(getattr(run, "events", run), _NEEDED, "events")
    _refuse_times(events)
    kernels = _kernels(events, by)
    shares = kernels["share"].groupby(kernels["kernel"])
    kernels = kernels[shares.transform("max") - shares.transform("min") > 0.1]
    beside = int((kernels["share"] > 0.5).sum())
    counts = kernels["kernel"].nunique(), beside, len(kernels) - beside
    dof = len(kernels) - counts[0] - 1
    if dof < 1:
        return Slowdown(None, None, None, *counts, _why_not(events))
    log_k, deviation = _fitted(kernels)
    reach = student.ppf(0.5 + level / 2, dof) * deviation
    factor, low, high = (float(np.exp(log_k + shift)) for shift in (0, -reach, reach))
    return Slowdown(factor, low, high, *counts, "log durations, a constant per kernel; HC3")


def _refuse_times(events: pd.DataFrame):
    for name in ("start_s", "end_s"):
        column = events.loc[events["stream"] >= 0, name]
        numeric = pd.api.types.is_any_real_numeric_dtype(column.dtype)
        wrong = ~np.isfinite(column.to_numpy(float, na_value=np.nan)) if numeric else [True]
        if len(column) and np.any(wrong):
            row = column.index[int(np.argmax(wrong))]
            what, do = f"events {name} of row {row}", "Correct the row or drop it"
            refuse(what, "finite s", column.loc[row], do)


def _kernels(events: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the compute kernels of devices: kernel, log_s, and share during communication."""
    parts = []
    for rank, mine in events[events["stream"] >= 0].groupby("rank", dropna=False):
        comm = mine[mine["kind"] == "comm"]
        rows = mine[(mine["kind"] == "compute") & (mine["end_s"] > mine["start_s"])]
        rows = rows.sort_values("start_s", kind="stable")
        if comm.empty or rows.empty:
            continue
        start, end = (rows[name].to_numpy() for name in ("start_s", "end_s"))
        covered = _covered(end, comm) - _covered(start, comm)
        kernel = f"{rank} " + rows["name"].astype("str")
        if by == "place":
            place = rows.groupby(["iteration", "name"], observed=True).cumcount()
            kernel += " " + place.astype("str")
        share = np.clip(covered / (end - start), 0.0, 1.0)
        each = {"kernel": kernel.to_numpy(), "log_s": np.log(end - start), "share": share}
        parts.append(pd.DataFrame(each))
    nothing = pd.DataFrame({"kernel": pd.Series(dtype="str"), "log_s": [], "share": []})
    return pd.concat(parts, ignore_index=True) if parts else nothing


def _covered(moments: np.ndarray, comm: pd.DataFrame) -> np.ndarray:
    """Return how long communication ran before each moment, s."""
    start, end = union(comm["start_s"].to_numpy(), comm["end_s"].to_numpy())
    if not len(start):
        return np.zeros(len(moments))
    done = np.concatenate([[0.0], np.cumsum(end - start)])
    at = np.searchsorted(start, moments, side="right")
    last = np.maximum(at - 1, 0)
    return done[at] - np.where(at > 0, np.maximum(end[last] - moments, 0.0), 0.0)


def _fitted(kernels: pd.DataFrame) -> tuple[float, float]:
    """Return log k and its standard error, by Gauss-Newton within the kernels."""
    names = kernels["kernel"].to_numpy()
    share = kernels["share"].to_numpy()

    def within(values: np.ndarray) -> np.ndarray:
        return values - pd.Series(values).groupby(names).transform("mean").to_numpy()

    target, log_k = within(kernels["log_s"].to_numpy()), 0.0
    for _ in range(50):
        left = 1 - share * (1 - np.exp(-log_k))
        slope = within(share * np.exp(-log_k) / left)
        rest = target - within(-np.log(left))
        step = float(np.clip(slope @ rest / (slope @ slope), -1.0, 1.0))
        log_k += step
        if abs(step) < 1e-10:
            break
    size = pd.Series(names).groupby(names).transform("size").to_numpy()
    leverage = np.minimum(1 / size + slope**2 / (slope @ slope), 1 - 1e-8)
    return log_k, float(np.sqrt(np.sum((slope * rest / (1 - leverage)) ** 2)) / (slope @ slope))


def _why_not(events: pd.DataFrame) -> str:
    device = events[events["stream"] >= 0]
    found = set(device["kind"].unique())
    if missing := [kind for kind in ("comm", "compute") if kind not in found]:
        return f"no {' and no '.join(missing)} row on a device"
    return "no compute kernel ran both during communication and without it"
