"""An iteration as figures: where its time goes, its messages, and how it scales with workers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..base.checks import require
from ..base.intervals import union
from ..base.tables import ITERATIONS, TIMELINE, check
from ..base.units import GBIT, MIB, MS, counted
from ..fusion import DDPBuckets, OneMessage, PerTensor
from ..timeline import Prediction
from ..timeline.explain import EXPLANATION
from .given import a_number_above_0, draws, filled, is_number, refuse_crowd
from .labels import beside, small, write_note
from .style import (
    COLOURS,
    GROUND,
    HATCHES,
    INK,
    as_they_are,
    cues,
    doubling_axis,
    legend_above,
    name_rows,
    shades,
    short,
)

READY_AT = 0.58  # height of the ticks of a timeline, between the worker's bar and the link's
PARTS = {  # column of ITERATIONS -> colour, label: together they are the iteration
    "compute_s": ("compute", "compute"),
    "exposed_comm_s": ("exposed", "exposed comm. and waiting"),
    "exposed_memory_s": ("memory", "exposed copies"),
    "idle_s": ("idle", "idle"),
}
_TIMES = ("ready_s", "start_s", "end_s")
_ITERATION = {column: ITERATIONS[column] for column in ("rank", "iteration")}
_FACTORS = {
    "n_workers": "workers",
    "scaling_factor": "one-worker iteration time / n-worker iteration time",
}


@draws()
def draw_timeline(ax: Axes, timeline, backward_s: float | None = None) -> Axes:
    """Draw when gradients are ready and when their messages travel, in ms since backward began.

    What travels after backward ends is exposed: hatched.

    timeline : a TIMELINE table, or a Prediction, which knows backward_s
    backward_s : end of backward, s
    """
    if isinstance(timeline, Prediction):
        backward_s = _end_s(timeline) if backward_s is None else backward_s
        timeline = timeline.timeline
    table = filled(timeline, TIMELINE, "draw_timeline timeline", "predict(scenario)", _TIMES)
    known, do = is_number(backward_s) and backward_s >= 0, "Pass it, or pass predict(scenario)"
    require(known, "draw_timeline backward_s", "the end of backward in s", backward_s, do)
    ax.barh(1, backward_s / MS, height=0.6, color=COLOURS["compute"], label="backward")
    ready = np.full(len(table), READY_AT)
    ax.plot(table["ready_s"] / MS, ready, "|", color=INK, ms=6, label="ready")
    _draw_messages(ax, table, backward_s, -0.3, 0.6)
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    ax.set(xlabel="time since backward began (ms)", ylim=(-0.45, 1.45), xlim=(0, None))
    name_rows(ax, ["link", "worker"])
    return legend_above(ax, columns=4)


def _end_s(found: Prediction) -> float:
    return found.scenario.backward_s + found.slowed_s


def _draw_messages(
    ax: Axes, table: pd.DataFrame, backward_s: float, bottom: float, height: float
) -> float:
    """Draw a row of messages, hidden and exposed, with white lines between them.

    Returns the width of these lines in points; many messages leave less room for them.
    """
    start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    hidden_end = np.clip(end, start, np.fmax(start, backward_s))
    for label, kind, begin, stop in (
        ("communication", "comm", start, hidden_end),
        ("exposed", "exposed", hidden_end, end),
    ):
        begin, stop = union(begin / MS, stop / MS)  # as hatching each of many takes long
        if len(begin):
            spans, hatch = np.column_stack([begin, stop - begin]), HATCHES[kind]
            look = {"facecolor": COLOURS[kind], "edgecolor": "white", "linewidth": 0}
            ax.broken_barh(spans, (bottom, height), hatch=hatch, label=label, **look)
    gap = min(0.4, 20 / len(table))
    ax.vlines(start / MS, bottom, bottom + height, color="white", lw=gap)
    return gap


@draws(_ITERATION, "iterations(run)", gaps=tuple(PARTS))
def draw_breakdown(ax: Axes, iterations: pd.DataFrame) -> Axes:
    """Draw where each iteration's time goes, in ms: the parts of ITERATIONS that add up to it.

    If a rank waits in a message for a slower one, the trace shows communication; `stragglers(run)`
    returns how long it waits, and for which rank.
    """
    parts = [part for part in PARTS if part in iterations and iterations[part].gt(0).any()]
    expected = f"time in one of the columns {', '.join(PARTS)}"
    require(parts, "draw_breakdown iterations", expected, found="none")
    rows, left = np.arange(len(iterations)), np.zeros(len(iterations))
    for part in parts:
        kind, label = PARTS[part]
        width = iterations[part].to_numpy(float) / MS
        look = {"color": COLOURS[kind], "hatch": HATCHES[kind], "edgecolor": "white"}
        ax.barh(rows, width, 0.7, left, label=label, linewidth=0.4, **look)
        left = left + width
    ranks = iterations["rank"].nunique() > 1
    names = [f"{r}: {i}" if ranks else i for r, i in iterations[["rank", "iteration"]].values]
    name_rows(ax, names)
    ax.invert_yaxis()
    ax.set(xlabel="time (ms)", ylabel="rank: iteration" if ranks else "iteration")
    exposed = "exposed_comm_s" in parts  # whose name leaves no room for a third
    return legend_above(ax, columns=2 if len(parts) > 3 or exposed else len(parts))


@draws(
    _FACTORS,
    "sweep(scenario, n_workers=[1, 2, 4])",
    finite=("scaling_factor",),
    above_0=("n_workers",),
)
def draw_scaling(
    ax: Axes,
    table: pd.DataFrame,
    label: str | None = None,
    measured: pd.DataFrame | None = None,
    fitted_to: int | None = None,
    at: int | None = None,
) -> Axes:
    """Draw the scaling factor against the number of workers, on a logarithmic axis of base 2.

    Parameters
    ----------
    table : n_workers, scaling_factor and the column `label`, if given
    label : column that names the curves; its values get short names in the legend
        ("DDP buckets", "Ring 10 Gbit/s")
    measured : n_workers and scaling_factor of real runs, drawn as crosses
    fitted_to : most workers that the costs were fitted to; more are marked as extrapolated
    at : a number of workers to mark with a dotted line
    """
    check(table, {} if label is None else {label: "which curve"}, "draw_scaling table")
    a_number_above_0(fitted_to, "draw_scaling fitted_to")
    a_number_above_0(at, "draw_scaling at")
    curves = ["predicted"] * len(table) if label is None else _curve_names(table[label])
    table = table[list(_FACTORS)].assign(curve=curves)
    lowest, highest = table.n_workers.min(), table.n_workers.max()
    n_curves = table["curve"].nunique()
    refuse_crowd(range(n_curves), "draw_scaling")
    markers, dashes = map(list, zip(*cues(n_curves), strict=True))
    ax.set(xlabel="number of workers", ylabel="scaling factor")  # else seaborn lays ticks out first
    names = {"x": "n_workers", "y": "scaling_factor", "hue": "curve", "style": "curve"}
    look = {"palette": shades(n_curves), "markers": markers, "dashes": dashes}
    sns.lineplot(table, **names, estimator=None, ax=ax, **look)
    if measured is not None:
        mark_real_runs(ax, measured, "draw_scaling measured")
    if fitted_to is not None:
        _mark_fitted(ax, fitted_to, highest)
    if at is not None:
        ax.axvline(at, color=INK, lw=0.6, ls=":", zorder=1)
    ax.set(ylim=(0, 1.05), yticks=np.linspace(0, 1, 6))
    ax.legend(loc="best")
    as_they_are(ax)
    return doubling_axis(ax, lowest, highest)


def mark_real_runs(ax: Axes, measured: pd.DataFrame, what: str, **look) -> pd.DataFrame:
    """Draw the scaling factors of real runs as crosses; return their table, checked."""
    found = filled(
        measured, _FACTORS, what, "a table of real runs", ("scaling_factor",), ("n_workers",)
    )
    ax.plot(found.n_workers, found.scaling_factor, "x", color=INK, label="measured", **look)
    return found


def _mark_fitted(ax: Axes, fitted_to: int, highest: int):
    """Shade what lies beyond the fit, and write above the axes where it was fitted."""
    words = f"fitted at {fitted_to}"
    if fitted_to < highest:
        words += f", extrapolated beyond {fitted_to}"
        ax.axvspan(fitted_to, highest * 1.1, color=GROUND, lw=0, zorder=0)
    write_note(ax, 1, 1.01, words, ha="right")


def _curve_names(values: pd.Series) -> list[str]:
    """Return a short name for every value; values that differ have names that differ."""
    names = {}
    for value in values:
        if _key(value) not in names:
            name, taken = _short_name(value, values.name), set(names.values())
            numbered = (f"{name} ({count})" for count in range(2, len(names) + 3))
            names[_key(value)] = next(each for each in (name, *numbered) if each not in taken)
    return [names[_key(value)] for value in values]


def _key(value):
    try:
        hash(value)
    except TypeError:  # a list or a table is only equal to itself
        return id(value)
    return value


def _short_name(value, column: str) -> str:
    """Return the name of a swept value for the legend, short enough for one column."""
    match value:
        case str():
            return short(value, 36)
        case PerTensor():
            return "per tensor"
        case OneMessage():
            return "one message"
        case DDPBuckets():
            sizes = f" {value.first_bytes / MIB:.3g} + {value.cap_bytes / MIB:.3g} MiB"
            return "DDP buckets" + sizes * (value != DDPBuckets())
    if getattr(getattr(value, "link", None), "beta", None):  # a cost: its bus bandwidth
        return f"{short(type(value).__name__, 20)} {1 / value.link.beta / GBIT:.3g} Gbit/s"
    if callable(value):  # a class or function by its name, an object by its class's
        return short(getattr(value, "__name__", type(value).__name__), 20)
    return short(f"{column} {value}" if np.isscalar(value) else type(value).__name__, 36)


@draws()
def draw_overlap(ax: Axes, predictions: Mapping[str, Prediction]) -> Axes:
    """Draw one row of messages per policy below one backward pass, in ms since it began.

    Ticks above a row are when its messages are ready. What travels after backward is exposed:
    hatched. The number of messages and the scaling factor stand at the right.

    predictions : name of a row -> Prediction, from the top down; all of one backward pass
    """
    backward_s = _backward_s(predictions)
    rows = np.arange(1, len(predictions) + 1)
    ax.barh(0, backward_s / MS, 0.6, color=COLOURS["compute"])
    centre = {"ha": "center", "va": "center", "color": "white", "fontsize": small()}
    ax.text(0.5 * backward_s / MS, 0, "backward", **centre)
    for row, found in zip(rows, predictions.values(), strict=True):
        table = found.timeline
        gap = _draw_messages(ax, table, backward_s, row - 0.2, 0.5)
        ready, width = table["ready_s"] / MS, max(0.3, gap)
        ax.vlines(ready, row - 0.42, row - 0.26, color=INK, lw=width)
        beside(ax, row, f"{counted(len(table), 'message')}\nfactor {found.scaling_factor:.3f}")
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    name_rows(ax, ["worker", *(short(name, 18) for name in predictions)])
    ax.set(xlabel="time since backward began (ms)", xlim=(0, None), ylim=(rows[-1] + 0.5, -0.5))
    handles = [
        Patch(fc=COLOURS[kind], hatch=HATCHES[kind], ec="white", lw=0, label=label)
        for kind, label in (("comm", "hidden communication"), ("exposed", "exposed"))
    ]
    return legend_above(ax, columns=2, handles=handles)


def _backward_s(predictions) -> float:
    """Return when backward ends, s; all predictions need the same pass."""
    some, what = isinstance(predictions, Mapping) and predictions, "draw_overlap predictions"
    require(some, what, "{name: predict(scenario)}", predictions)
    for name, found in predictions.items():
        require(isinstance(found, Prediction), f"{what} {name}", "a Prediction", found)
    ends_s = {_end_s(found) for found in predictions.values()}
    one = max(ends_s) - min(ends_s) <= 1e-9 * max(ends_s)
    several = f"some that end after {min(ends_s):.6g} s and {max(ends_s):.6g} s"
    require(one, what, "one backward pass", found=several, do="Draw each with draw_timeline")
    return max(ends_s)


@draws(EXPLANATION, "prediction.explain()", finite=_TIMES, gaps=("previous_end_s",))
def draw_step(ax: Axes, steps: pd.DataFrame, step: int, backward_s: float) -> Axes:
    """Draw the timeline up to message `step`, framed, in ms since backward began.

    An arrow leads from when its bucket is ready to when it starts: straight down if it was sent
    at once, and slanting if it waited. A dashed line marks the end of the previous message. The
    axis is as long as all steps need, so that one picture grows into the next.

    Parameters
    ----------
    steps : prediction.explain()
    step : a message, from 0 up
    backward_s : when backward ends, s; for a prediction it is scenario.backward_s + slowed_s
    """
    known = is_number(step) and step in range(len(steps))
    require(known, "draw_step step", f"a whole number from 0 to {len(steps) - 1}", step)
    draw_timeline(ax, steps[: step + 1], backward_s)
    row = steps.iloc[step]
    ready, start, end, previous = (row[name] / MS for name in (*_TIMES, "previous_end_s"))
    ax.plot(steps["ready_s"] / MS, [READY_AT] * len(steps), "|", color=INK, alpha=0.3, ms=6)
    frame = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.0, "zorder": 3}
    ax.broken_barh([(start, end - start)], (-0.34, 0.68), **frame)
    if previous >= 0:
        look = {"color": INK, "lw": 0.9, "ls": (0, (3, 1.5)), "label": "message before ends"}
        ax.plot([previous] * 2, [-0.4, 0.42], **look)
    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (start, 0.34), (ready, READY_AT - 0.08), zorder=4, arrowprops=arrow)
    legend_above(ax, columns=3)
    ax.set_xlim(0, 1.02 * max(backward_s, steps["end_s"].max()) / MS)
    return ax
