"""An iteration: where its time goes, its messages, and how it scales with workers."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..base.checks import shown
from ..base.intervals import union
from ..base.tables import ITERATIONS, TIMELINE
from ..base.units import GBIT, MIB, MS, counted
from ..fusion import DDPBuckets, OneMessage, PerTensor
from ..timeline import Prediction
from ..timeline.explain import EXPLANATION
from .labels import beside, small
from .style import (
    COLOURS,
    HATCHES,
    INK,
    as_they_are,
    check_axes,
    cues,
    doubling_axis,
    filled,
    is_number,
    legend_above,
    refuse_crowd,
    shades,
    short,
)

READY_AT = 0.58  # height of the ticks of a timeline, between the worker's bar and the link's

TIMES = ("ready_s", "start_s", "end_s")
PARTS = {  # column of ITERATIONS -> colour, label: together they are the iteration
    "compute_s": ("compute", "compute"),
    "exposed_comm_s": ("exposed", "exposed comm. and waiting"),
    "exposed_memory_s": ("memory", "exposed copies"),
    "idle_s": ("idle", "idle"),
}


def draw_timeline(ax: Axes, timeline, backward_s: float | None = None) -> Axes:
    """Draw when gradients are ready and when their messages travel, in ms since backward began.

    `timeline` is a TIMELINE table with `backward_s` in seconds, or a Prediction, which knows both.
    What travels after backward ends is exposed: hatched.
    """
    check_axes(ax, "draw_timeline")
    if isinstance(timeline, Prediction):
        end_s = timeline.scenario.backward_s + timeline.slowed_s
        backward_s = end_s if backward_s is None else backward_s
        timeline = timeline.timeline
    table = filled(timeline, TIMELINE, "draw_timeline", "predict(scenario)", TIMES)
    if not is_number(backward_s) or backward_s < 0:
        got = "none" if backward_s is None else shown(backward_s)
        raise ValueError(
            f"draw_timeline: a table does not say when backward ends: expected backward_s in s "
            f"beside it, got {got}; pass it, or pass predict(scenario)"
        )
    hidden_end = np.clip(table["end_s"], table["start_s"], np.fmax(table["start_s"], backward_s))
    gap = min(0.4, 20 / len(table))  # points of white between messages; many leave no room for it
    ax.barh(1, backward_s / MS, height=0.6, color=COLOURS["compute"], label="backward")
    ax.plot(
        table["ready_s"] / MS, np.full(len(table), READY_AT), "|", color=INK, ms=6, label="ready"
    )
    for label, kind, start, end in (
        ("communication", "comm", table["start_s"], hidden_end),
        ("exposed", "exposed", hidden_end, table["end_s"]),
    ):
        start, end = union(start / MS, end / MS)  # as hatching each of many takes long
        if len(start):
            spans = np.column_stack([start, end - start])
            ax.broken_barh(spans, (-0.3, 0.6), facecolor=COLOURS[kind], hatch=HATCHES[kind],
                           edgecolor="white", linewidth=0, label=label)  # fmt: skip
    ax.vlines(table["start_s"] / MS, -0.3, 0.3, color="white", lw=gap)
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    ax.set(xlabel="time since backward began (ms)", ylim=(-0.45, 1.45), xlim=(0, None))
    ax.set_yticks([0, 1], ["link", "worker"])
    ax.tick_params(axis="y", length=0)
    return legend_above(ax, columns=4)


def draw_breakdown(ax: Axes, iterations: pd.DataFrame) -> Axes:
    """Draw where each iteration's time goes, in ms: the parts of ITERATIONS that add up to it.

    A rank that waits in a message for a slower one communicates as the trace sees it;
    `stragglers(run)` tells how long, and for whom.
    """
    check_axes(ax, "draw_breakdown")
    needed = {column: ITERATIONS[column] for column in ("rank", "iteration")}
    table = filled(iterations, needed, "draw_breakdown", "iterations(run)", gaps=tuple(PARTS))
    parts = [part for part in PARTS if part in table and table[part].gt(0).any()]
    if not parts:
        raise ValueError(f"draw_breakdown: no time in any of the columns {', '.join(PARTS)}")
    rows, left = np.arange(len(table)), np.zeros(len(table))
    for part in parts:
        kind, label = PARTS[part]
        width = table[part].to_numpy(float) / MS
        ax.barh(
            rows, width, 0.7, left, color=COLOURS[kind], hatch=HATCHES[kind], label=label,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        left = left + width
    ranks = table["rank"].nunique() > 1
    names = [f"{r}: {i}" if ranks else i for r, i in table[["rank", "iteration"]].values]
    ax.set_yticks(rows, names)
    ax.tick_params(axis="y", length=0)
    ax.invert_yaxis()
    ax.set(xlabel="time (ms)", ylabel="rank: iteration" if ranks else "iteration")
    exposed = "exposed_comm_s" in parts  # whose name leaves no room for a third
    return legend_above(ax, columns=2 if len(parts) > 3 or exposed else len(parts))


SCALING = {
    "n_workers": "workers",
    "scaling_factor": "one-worker iteration time / n-worker iteration time",
}


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
    table : n_workers, scaling_factor and, when `label` names it, the column that tells curves
        apart; its values get short names in the legend ("DDP buckets", "Ring 10 Gbit/s")
    measured : n_workers and scaling_factor of real runs, drawn as crosses
    fitted_to : the largest number of workers the costs were fitted to; what lies beyond it is
        marked as extrapolation
    at : a number of workers to point out with a dotted line
    """
    check_axes(ax, "draw_scaling")
    columns = SCALING if label is None else SCALING | {label: "which curve"}
    table = filled(
        table,
        columns,
        "draw_scaling",
        "sweep(scenario, n_workers=[1, 2, 4])",
        ("scaling_factor",),
        ("n_workers",),
    )
    for name, value in {"fitted_to": fitted_to, "at": at}.items():
        if value is not None and not (is_number(value) and value > 0):
            got = shown(value)
            raise ValueError(f"draw_scaling: {name}: expected a number of workers, got {got}")
    curves = ["predicted"] * len(table) if label is None else _curve_names(table[label])
    table = table[list(SCALING)].assign(curve=curves)
    lowest, highest = table.n_workers.min(), table.n_workers.max()
    n_curves = table["curve"].nunique()
    refuse_crowd(range(n_curves), "draw_scaling")
    markers, dashes = zip(*cues(n_curves), strict=True)
    ax.set(xlabel="number of workers", ylabel="scaling factor")  # else seaborn lays ticks out first
    sns.lineplot(
        table, x="n_workers", y="scaling_factor", hue="curve", style="curve", estimator=None,
        ax=ax, palette=shades(n_curves), markers=list(markers), dashes=list(dashes),
    )  # fmt: skip
    if measured is not None:
        measured = filled(
            measured,
            SCALING,
            "draw_scaling: measured",
            "a table of real runs",
            ("scaling_factor",),
            ("n_workers",),
        )
        ax.plot(measured.n_workers, measured.scaling_factor, "x", color=INK, label="measured")
    if fitted_to is not None:
        _mark_fitted(ax, fitted_to, highest)
    if at is not None:
        ax.axvline(at, color=INK, lw=0.6, ls=":", zorder=1)
    ax.set_ylim(0, 1.05)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.legend(loc="best")
    as_they_are(ax)
    return doubling_axis(ax, lowest, highest)


def _mark_fitted(ax: Axes, fitted_to: int, highest: int):
    """Shade what lies beyond the fit, and say above the axes where it was fitted."""
    words = f"fitted at {fitted_to}"
    if fitted_to < highest:
        words += f", extrapolated beyond {fitted_to}"
        ax.axvspan(fitted_to, highest * 1.1, color="#EFEFEF", lw=0, zorder=0)
    ax.text(1, 1.01, words, transform=ax.transAxes, ha="right", va="bottom", fontsize=7)


def _curve_names(values: pd.Series) -> list[str]:
    """A short name for every value; values that differ have names that differ."""
    names = {}
    for value in values:
        if _key(value) not in names:
            short, taken = _short_name(value, values.name), set(names.values())
            numbered = (f"{short} ({count})" for count in range(2, len(names) + 3))
            free = (name for name in (short, *numbered) if name not in taken)
            names[_key(value)] = next(free)
    return [names[_key(value)] for value in values]


def _key(value):
    try:
        hash(value)
    except TypeError:  # a list or a table is only equal to itself
        return id(value)
    return value


def _short_name(value, column: str) -> str:
    """What a legend calls a value of a sweep; it fits beside a key within a column."""
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


def draw_overlap(ax: Axes, predictions: Mapping[str, Prediction]) -> Axes:
    """Draw a row of messages for each policy below one backward pass, in ms since it began.

    Ticks above a row are when its messages are ready. What travels after backward is exposed:
    hatched. At the right stand the number of messages and the scaling factor.

    predictions : name of a row -> Prediction, from above; of one backward pass
    """
    check_axes(ax, "draw_overlap")
    backward_s = _backward_s(predictions)
    rows = np.arange(1, len(predictions) + 1)
    ax.barh(0, backward_s / MS, 0.6, color=COLOURS["compute"])
    ax.text(0.5 * backward_s / MS, 0, "backward", color="white", ha="center", va="center",
            fontsize=small())  # fmt: skip
    for row, found in zip(rows, predictions.values(), strict=True):
        _draw_messages(ax, row, found, backward_s)
        told = f"{counted(len(found.timeline), 'message')}\nfactor {found.scaling_factor:.3f}"
        beside(ax, row, told)
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    ax.set_yticks([0, *rows], ["worker", *(short(name, 18) for name in predictions)])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.set(xlabel="time since backward began (ms)", xlim=(0, None), ylim=(rows[-1] + 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    parts = {"comm": "hidden communication", "exposed": "exposed"}
    handles = [
        Patch(fc=COLOURS[kind], hatch=HATCHES[kind], ec="white", lw=0, label=label)
        for kind, label in parts.items()
    ]
    return legend_above(ax, columns=2, handles=handles)


def _backward_s(predictions) -> float:
    """Return when backward ends, s, or raise ValueError for no predictions or several passes."""
    what, each = "draw_overlap", "{name: predict(scenario)}"
    if not isinstance(predictions, Mapping) or not predictions:
        raise ValueError(f"{what}: expected predictions {each}, got {shown(predictions)}")
    for name, found in predictions.items():
        if not isinstance(found, Prediction):
            raise ValueError(f"{what}: {name}: expected a Prediction, got {shown(found)}")
    ends_s = {found.scenario.backward_s + found.slowed_s for found in predictions.values()}
    if max(ends_s) - min(ends_s) > 1e-9 * max(ends_s):
        raise ValueError(
            f"{what}: expected one backward pass, got some that end after "
            f"{min(ends_s):.6g} s and {max(ends_s):.6g} s; draw_timeline draws each by itself"
        )
    return max(ends_s)


def _draw_messages(ax: Axes, row: int, found: Prediction, backward_s: float):
    table = found.timeline
    start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    hidden_end = np.clip(end, start, np.fmax(start, backward_s))
    for kind, low, high in (("comm", start, hidden_end), ("exposed", hidden_end, end)):
        low, high = union(low / MS, high / MS)
        if len(low):
            spans = np.column_stack([low, high - low])
            ax.broken_barh(spans, (row - 0.2, 0.5), facecolor=COLOURS[kind], hatch=HATCHES[kind],
                           edgecolor="white", linewidth=0)  # fmt: skip
    gap = min(0.4, 20 / len(table))  # points of white between messages
    ax.vlines(start / MS, row - 0.2, row + 0.3, color="white", lw=gap)
    ax.vlines(table["ready_s"] / MS, row - 0.42, row - 0.26, color=INK, lw=max(0.3, gap))


def draw_step(ax: Axes, steps: pd.DataFrame, step: int, backward_s: float) -> Axes:
    """Draw the timeline up to message `step`, framed, in ms since backward began.

    An arrow leads from when its bucket is ready to when it starts: straight down where it was sent
    at once, and slanting where it waited. A dashed line marks the end of the message before. The
    axis is as long as all steps need, so that one picture grows into the next.

    Parameters
    ----------
    steps : prediction.explain()
    step : a message, from 0 up
    backward_s : when backward ends, s; that of a prediction is scenario.backward_s + slowed_s

    Raises ValueError for a table without steps, a step that is none of them, or no backward_s.
    """
    check_axes(ax, "draw_step")
    steps = filled(
        steps, EXPLANATION, "draw_step", "prediction.explain()", TIMES, gaps=("previous_end_s",)
    )
    if not (is_number(step) and step in range(len(steps))):
        raise ValueError(
            f"draw_step: step: expected a whole number from 0 to {len(steps) - 1}, "
            f"got {shown(step)}"
        )
    draw_timeline(ax, steps[: step + 1], backward_s)
    row = steps.iloc[step]
    ready, start, end, previous = (
        row[name] / MS for name in ("ready_s", "start_s", "end_s", "previous_end_s")
    )
    ax.plot(steps["ready_s"] / MS, [READY_AT] * len(steps), "|", color=INK, alpha=0.3, ms=6)
    ax.broken_barh([(start, end - start)], (-0.34, 0.68), facecolor="none", edgecolor=INK,
                   linewidth=1.0, zorder=3)  # fmt: skip
    if previous >= 0:
        ax.plot([previous] * 2, [-0.4, 0.42], color=INK, lw=0.9, ls=(0, (3, 1.5)),
                label="message before ends")  # fmt: skip
    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (start, 0.34), (ready, READY_AT - 0.08), zorder=4, arrowprops=arrow)
    legend_above(ax, columns=3)
    ax.set_xlim(0, 1.02 * max(backward_s, steps["end_s"].max()) / MS)
    return ax
