"""What would help, as figures: optimisations compared, fusion's loss, elasticities, a forecast."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..base.checks import require
from ..base.units import MS
from ..whatif.comparing import ABLATION, COMPARISON, SHAPLEY
from ..whatif.elasticities import SENSITIVITY
from ..whatif.uncertainty import BAND
from .given import a_number_above_0, draws, filled
from .labels import shade_untimed, write_note
from .style import (
    COLOURS,
    GROUND,
    HATCHES,
    INK,
    cues,
    doubling_axis,
    legend_above,
    name_rows,
    shades,
    short,
)
from .timelines import mark_real_runs

DARK, MIDDLE, _ = shades(3)  # a gain, and all gains together
HOLLOW = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6, "linestyle": (0, (2, 1))}
STRIPED = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.6, "hatch": "\\\\\\\\"}
CROSSED = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.4, "hatch": "xxxxx"}
ROW_LETTERS = 24  # of a row's name: it takes at most 40 % of a column
CURVE = {
    "value": "of the setting",
    "cycle_ms": "Horovod's cycle, ms",
    "setting": "text to paste",
    "loss": "1 - scaling factor / that of the optimum",
    "tied": "within the noise of the best",
}
SETTINGS = {  # first words of a setting -> label of the axis
    "bucket_cap_mb": "bucket_cap_mb of PyTorch DDP (MiB)",
    "HOROVOD_FUSION_THRESHOLD": "fusion threshold of Horovod (MiB)",
    "reduce_bucket_size": "reduce_bucket_size of DeepSpeed (elements)",
    "a buffer of": "constant buffer (MiB)",
}
_PARAMETERS = {
    "alpha": "latency",
    "beta": "price of a byte",
    "bytes": "bytes of gradients",
    "backward": "backward time",
    "compute": "compute time",
    "buffer": "fusion buffer",
}
_KNEE = {name: "workers" for name in ("knee", "low", "high")} | {"at_least": "True or False"}
_BOUNDS = {"what": "bound", "kind": "bound or other", "iteration_s": "s"}


# --- optimisations --------------------------------------------------------------------------------


@draws()
def draw_comparison(ax: Axes, table: pd.DataFrame, bounds: pd.DataFrame | None = None) -> Axes:
    """Draw what optimisations gain, one row each, in the order of the table.

    A diamond is what an optimisation gains by itself; losses are striped.

    table : a COMPARISON gives bars of an iteration's time, by the baseline's samples, with an
        optimisation's own cost crossed and the speedup at the right. An ABLATION in one order gives
        a waterfall of the speedup, in which a bar begins at the gain of those before it. SHAPLEY
        gives each share with its least and largest gain in any order.
    bounds : `headroom(scenario)`, drawn hollow, for a COMPARISON, which contains no bounds
    """
    columns = set(table) if isinstance(table, pd.DataFrame) else set()
    if "least" in columns:
        return _draw_shares(ax, _added(table, SHAPLEY))
    if "order" in columns:
        return _draw_waterfall(ax, _added(table, ABLATION))
    parts = ("iteration_s", "one_worker_s", "exposed_comm_s", "own_cost_s", "speedup")
    advice = "compare(scenario, {label: optimisation})"
    table = filled(table, COMPARISON, "draw_comparison table", advice, parts, ("samples",))
    return _draw_times(ax, table, bounds)


def _added(table: pd.DataFrame, columns: dict) -> pd.DataFrame:
    """Return a table of `ablate` that adds something; the baseline gains nothing, and has gaps."""
    moves, what = ("gain", "least", "most", "alone"), "draw_comparison table"
    table = filled(table, columns, what, "ablate(...)", gaps=("speedup", "order", *moves))
    added = table[table["kind"] == "optimisation"]
    require(len(added), what, "at least one optimisation", found="none", do="Select at least one")
    filled(added, columns, what, "ablate(...)", moves)
    return table


def _draw_times(ax: Axes, table: pd.DataFrame, bounds: pd.DataFrame | None) -> Axes:
    labels, ends = table["label"].tolist(), table["iteration_s"] / table["samples"] / MS
    speedups, left = table["speedup"].tolist(), 0.0
    for label, width, look in _parts(table):
        width = (width / table["samples"] / MS).to_numpy()
        if (width > 1e-9 * max(ends)).any():  # else it is rounding
            ax.barh(np.arange(len(table)), width, 0.7, left, label=label, **look)
        left = left + width
    if bounds is not None:
        bounds = filled(bounds, _BOUNDS, "draw_comparison bounds", "headroom(scenario)")
        bounds = bounds[bounds["kind"] == "bound"]
        labels, ends = labels + bounds["what"].tolist(), [*ends, *bounds["iteration_s"] / MS]
        now_ms = table["iteration_s"].iloc[0] / MS
        speedups += [now_ms / end for end in ends[len(table) :]]
        rows = np.arange(len(table), len(labels))
        ax.barh(rows, ends[len(table) :], 0.7, label="bound of fusion", **HOLLOW)
    ax.set_xlim(0, 1.18 * max(ends))
    digits = _digits(np.array(speedups) - 1)
    _label_rows(ax, labels, ends, [f"{x:.{digits}f}\N{MULTIPLICATION SIGN}" for x in speedups])
    write_note(ax, 1, 1.0, "speedup", ha="right")
    same = (table["samples"] == 1).all()
    ax.set(xlabel="iteration time (ms)" if same else "time of the baseline's samples (ms)")
    return _legend(ax, columns=2, above=1.07)


def _parts(table: pd.DataFrame):
    """Yield label, s and look of the parts of an iteration; together they are its time."""
    own = table["own_cost_s"].clip(lower=0.0)
    waiting = (table["iteration_s"] - table["one_worker_s"] - own).clip(lower=0.0)
    exposed = np.minimum(waiting, table["exposed_comm_s"])
    white = {"edgecolor": "white", "linewidth": 0.4}
    for label, width, kind in (
        ("one worker", table["one_worker_s"], "compute"),
        ("exposed communication", exposed, "exposed"),
        ("other waiting", waiting - exposed, "idle"),
    ):
        yield label, width, white | {"facecolor": COLOURS[kind], "hatch": HATCHES[kind]}
    yield "own cost", own, CROSSED


def _draw_waterfall(ax: Axes, table: pd.DataFrame) -> Axes:
    orders = table["order"].max()
    do = "Select one, table[table['order'] <= 1], or take ablate(..., order='shapley')"
    require(not orders > 1, "draw_comparison table", "one order", orders, do)
    added = table[table["kind"] == "optimisation"]
    after = added["speedup"].to_numpy()
    before = after - added["gain"].to_numpy()
    _draw_gains(ax, before, after)
    for row, level in enumerate(after[:-1]):
        ax.plot([level] * 2, [row + 0.35, row + 0.65], color=INK, lw=0.5)
    total = pd.DataFrame({"label": ["all together"], "speedup": after[-1:], "kind": ["total"]})
    rest = pd.concat([total, table[table["kind"] == "bound"]])
    _draw_alone(ax, 1 + added["alone"].to_numpy())
    return _finish_speedups(ax, added, rest, np.maximum(np.maximum(before, after), 1 + added.alone))


def _draw_shares(ax: Axes, table: pd.DataFrame) -> Axes:
    added = table[table["kind"] == "optimisation"]
    rows, ends = np.arange(len(added)), 1 + added["gain"].to_numpy()
    _draw_gains(ax, np.ones(len(added)), ends)
    low, high = 1 + added["least"], 1 + added["most"]
    ax.hlines(rows, low, high, color=INK, lw=0.8, label="least to most", zorder=3)
    ax.plot([*low, *high], [*rows, *rows], "|", color=INK, ms=4, mew=0.8, zorder=3)
    _draw_alone(ax, 1 + added["alone"].to_numpy())
    rest = table[table["kind"] != "optimisation"].assign(speedup=1 + table["gain"])
    return _finish_speedups(ax, added, rest, np.maximum(np.maximum(ends, high), 1.0))


def _draw_bars(ax: Axes, rows: np.ndarray, left, widths: np.ndarray, *kinds: tuple):
    """Draw bars of several kinds, each given as label, whether a row is one, and look."""
    left = np.broadcast_to(left, len(rows))
    for label, chosen, look in kinds:
        if chosen.any():
            ax.barh(rows[chosen], widths[chosen], 0.7, left[chosen], label=label, **look)


def _draw_gains(ax: Axes, before: np.ndarray, after: np.ndarray):
    gain, rows = after >= before, np.arange(len(after))
    kinds = ("gain", gain, {"color": DARK}), ("loss", ~gain, STRIPED)
    _draw_bars(ax, rows, before, after - before, *kinds)


def _draw_alone(ax: Axes, speedups: np.ndarray):
    diamond = {"ms": 3.5, "mfc": "white", "mec": INK, "mew": 0.8, "zorder": 4}
    ax.plot(speedups, np.arange(len(speedups)), "D", label="by itself", **diamond)


def _finish_speedups(ax: Axes, added, rest, reach) -> Axes:
    """Draw the total and the bounds below, and name all rows; reach is where their marks end."""
    rows, speedups = len(added) + np.arange(len(rest)), rest["speedup"].to_numpy()
    total = (rest["kind"] == "total").to_numpy()
    kinds = ("all together", total, {"color": MIDDLE}), ("bound of fusion", ~total, HOLLOW)
    _draw_bars(ax, rows, 1.0, speedups - 1, *kinds)
    ax.axvline(1, color=INK, lw=0.6)
    ends = [*reach, *np.maximum(speedups, 1)]
    low, high = min(ax.dataLim.x0, 1.0), max(1.01, *ends)
    ax.set_xlim(low - 0.02 * (high - low), high + 0.2 * (high - low))
    digits = _digits(np.array([*added["gain"], *speedups - 1]))
    numbers = [_signed(gain, digits) for gain in added["gain"]]
    numbers += [f"{speedup:.{digits}f}" for speedup in speedups]
    _label_rows(ax, [*added["label"], *rest["label"]], ends, numbers)
    ax.set_xlabel("speedup over the baseline")
    return _legend(ax, columns=3)


def _label_rows(ax: Axes, labels: list, ends=(), numbers=()):
    """Name each row at its left, and write its number at the end of its marks."""
    name_rows(ax, [short(label, ROW_LETTERS) for label in labels])
    for row, (end, text) in enumerate(zip(ends, numbers, strict=True)):
        _write_at(ax, text, end, row, 5)
    ax.set_ylim(len(labels) - 0.4, -0.6)


def _write_at(ax: Axes, text: str, x: float, row: int, away: float, **look):
    move = {"xytext": (away, 0), "textcoords": "offset points"}
    ax.annotate(text, (x, row), **move, va="center", fontsize=7, **look)


def _digits(gains: np.ndarray) -> int:
    """Return how many decimals, 2 to 4, show two digits of the largest gain or loss.

    What is below 0.00005 is shown with none: a model is not that good.
    """
    largest = np.abs(gains).max(initial=0.0)
    return int(np.clip(1 - np.floor(np.log10(largest)), 2, 4)) if largest >= 5e-5 else 2


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, and 0 without: what rounds to 0 is neither gain nor loss."""
    text = f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return text if any(digit in text for digit in "123456789") else f"{0:.{digits}f}"


def _legend(ax: Axes, columns: int, above: float = 1.0) -> Axes:
    """Put the legend above an axes that has names at its left, and over these if need be."""
    return legend_above(ax, columns, loc="lower right", bbox_to_anchor=(1.0, above))


# --- fusion ---------------------------------------------------------------------------------------


@draws(
    CURVE,
    "loss_curve(scenario)",
    finite=("loss",),
    above_0=("value",),
    gaps=("cycle_ms",),
    named=("setting",),
)
def draw_fusion_curve(ax: Axes, curve: pd.DataFrame, at: float | None = None) -> Axes:
    """Draw what each setting loses against the optimum, in %, on a logarithmic axis.

    A star marks the best setting, the settings around it that differ by less than the noise are on
    grey, and the optimum is the line at 0. Each of Horovod's cycles is a curve; the grey belongs to
    the best one, as the legend shows.

    curve : `loss_curve(scenario, policy)`
    at : a value to mark with a dotted line
    """
    a_number_above_0(at, "draw_fusion_curve at")
    curve = curve.reset_index(drop=True)
    best = curve.loc[curve["loss"].idxmin()]
    cycles, none = curve["cycle_ms"].unique(), pd.isna(best["cycle_ms"])
    looks = zip(cycles, shades(len(cycles)), cues(len(cycles)), strict=True)
    for cycle, colour, (marker, dashes) in looks:
        mine = curve[curve["cycle_ms"].eq(cycle) | pd.isna(cycle)].sort_values("value")
        label = "settings" if pd.isna(cycle) else f"cycle {cycle:g} ms"
        look = {"marker": marker, "ms": 3, "color": colour, "dashes": dashes or (1, 0), "lw": 1}
        ax.plot(mine["value"], 100 * mine["loss"], label=label, **look)
        if pd.isna(cycle) or cycle == best["cycle_ms"]:
            of_best = mine.reset_index(drop=True)
    tied = "tied" if none else f"tied at {best['cycle_ms']:g} ms"
    _shade_ties(ax, of_best, best["value"], tied)
    star = {"ms": 9, "mfc": "white", "mec": INK, "mew": 0.8, "zorder": 4, "label": "best"}
    ax.plot(best["value"], 100 * best["loss"], "*", **star)
    ax.axhline(0, color=INK, lw=0.8, label="optimum")
    if at is not None:
        ax.axvline(at, color=INK, lw=0.8, ls=":", zorder=1)
    ax.set_xscale("log")
    lowest, most = 100 * curve["loss"].min(), max(1.0, 100 * curve["loss"].max())
    ax.set_ylim(min(0.0, lowest) - 0.06 * most, 1.06 * most)
    named = (axis for begin, axis in SETTINGS.items() if begin in curve["setting"].iloc[0])
    ax.set(xlabel=next(named, "setting"), ylabel="loss to the optimum (%)")
    ax.xaxis.set_major_formatter(_thousands)
    ax.minorticks_off()
    return legend_above(ax, columns=4 if len(cycles) == 1 else 3)


def _thousands(value: float, _=None) -> str:
    unit, name = next(each for each in ((1e6, "M"), (1e3, "k"), (0, "")) if value >= each[0])
    return f"{value / (unit or 1):g}{name}"


def _shade_ties(ax: Axes, mine: pd.DataFrame, best: float, label: str):
    """Shade the settings around the best that are tied with it, from the first to the last."""
    at = int(np.flatnonzero(mine["value"] == best)[0])
    run = (~mine["tied"]).cumsum()
    tied = mine["value"][mine["tied"] & (run == run[at])]
    low, high = tied.min(), tied.max()
    ax.axvspan(low / 1.06, high * 1.06, color=GROUND, lw=0, zorder=0, label=label)


# --- what moves it --------------------------------------------------------------------------------


@draws(SENSITIVITY, "sensitivity(scenario)", finite=("elasticity",), named=("parameter", "method"))
def draw_sensitivity(ax: Axes, table: pd.DataFrame) -> Axes:
    """Draw by how many per cent the scaling factor changes per 1 % of each parameter.

    Solid bars raise it and striped ones lower it, the strongest on top. The buffer, which acts in
    steps, has the mean from half of it to double.

    table : `sensitivity(scenario)`
    """
    table = table.iloc[np.argsort(-table["elasticity"].abs(), kind="stable")]
    values, rows = table["elasticity"].to_numpy(), np.arange(len(table))
    raises = ("raises the scaling factor", values > 0, {"color": DARK})
    _draw_bars(ax, rows, 0.0, values, raises, ("lowers it", values < 0, STRIPED))
    reach = 1.65 * max(np.abs(values).max(), 0.01)
    ax.set_xlim(-reach, reach)
    _label_rows(ax, [_parameter(row) for row in table.itertuples()])
    for row, value in enumerate(values):
        side, align = (3, "left") if value >= 0 else (-3, "right")
        _write_at(ax, _signed(value, 3), value, row, side, ha=align)
    ax.axvline(0, color=INK, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    ax.set_xlabel("% of the scaling factor per % more")
    if values.any():
        return _legend(ax, columns=2)
    write_note(ax, 0.5, 1.01, "all is hidden: nothing moves it", ha="center")
    return ax


def _parameter(row) -> str:
    kind, _, which = row.parameter.partition("_")
    name = f"{_PARAMETERS.get(kind, kind)} {which.replace('_', ' ')}".strip()
    return f"{name} (\N{VULGAR FRACTION ONE HALF} to 2)" if row.method[:4] == "half" else name


# --- a forecast -----------------------------------------------------------------------------------


@draws(
    BAND,
    "band(scenario, fit, n_workers)",
    finite=("scaling_factor", "low", "high"),
    above_0=("n_workers",),
    gaps=("extrapolated",),
    named=("why",),
)
def draw_forecast(
    ax: Axes,
    table: pd.DataFrame,
    knee: pd.DataFrame | None = None,
    measured: pd.DataFrame | None = None,
) -> Axes:
    """Draw the scaling factor against workers with its band, and the knee with its range.

    The line is dashed where the forecast extrapolates, and the ground is grey where that number of
    workers was not measured. A ring is a measured number of workers with messages of other sizes.
    If all is above one half the axis begins higher, so that the band is visible.

    Parameters
    ----------
    table : `band(scenario, fit, n_workers)`
    knee : `knee_range(scenario, fit)`: a dotted line, and a bar from the lowest to the highest
    measured : n_workers and scaling_factor of real runs, drawn as crosses
    """
    table = table.sort_values("n_workers", ignore_index=True)
    workers, factor = table["n_workers"], table["scaling_factor"]
    faint = {"color": DARK, "alpha": 0.4, "lw": 0, "label": "band"}
    ax.fill_between(workers, table["low"], table["high"], **faint)
    inside = (table["extrapolated"] <= 1) & (workers > 1)
    ax.plot(workers, factor, color=DARK, lw=1, dashes=(3, 1.5), label="extrapolated")
    lowest, highest = workers.min(), workers.max()
    if inside.any():
        ax.plot(workers.where(inside), factor, "-o", color=DARK, ms=3, lw=1, label="predicted")
    others = _only_sizes_beyond(table) & ~inside
    if others.any():
        ring = {"color": DARK, "mfc": "white", "ms": 4, "mew": 0.8, "label": "other sizes"}
        ax.plot(workers[others], factor[others], "o", **ring)
    shade_untimed(ax, workers[inside | others], lowest, highest, "not measured")
    least = table["low"].min()
    if measured is not None:
        real = mark_real_runs(ax, measured, "draw_forecast measured", zorder=4)
        least = min(least, real["scaling_factor"].min())
    bottom = 0.0 if least <= 0.5 else max(0.0, 1 - 1.5 * max(1 - least, 0.01))
    ax.set(xlabel="number of workers", ylabel="scaling factor")
    ax.set_ylim(bottom, 1 + 0.05 * (1 - bottom))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if knee is not None:
        _mark_knee(ax, knee, lowest / 1.1, highest * 1.1)
    doubling_axis(ax, lowest, highest)
    return legend_above(ax, columns=3)


def _only_sizes_beyond(table: pd.DataFrame) -> pd.Series:
    """Return whether a forecast extrapolates in the sizes of messages only, per row."""
    sizes = table["why"].str.contains("nbytes") & ~table["why"].str.contains("n_workers")
    return sizes & np.isfinite(table["extrapolated"]) & (table["n_workers"] > 1)


def _mark_knee(ax: Axes, knee: pd.DataFrame, first: float, last: float):
    """Mark the knee with a dotted line and a bar of its range near the bottom, named in words.

    first, last : the ends of the axis, beyond which the knee is in words only
    """
    counts = ("knee", "low", "high")
    what, advice = "draw_forecast knee", "knee_range(scenario, fit)"
    row = filled(knee, _KNEE, what, advice, above_0=counts).iloc[0]
    knee, low, high = (int(row[name]) for name in counts)
    if row["at_least"] and knee == high:  # where the search ended, not where anything bends
        some = f",\nin some draws from {low:,} on" if low < knee else ""
        write_note(ax, 0.02, 0.1, f"no knee up to {knee:,} workers{some}")
        return
    bottom, top = ax.get_ylim()
    ax.axvline(knee, color=INK, lw=0.8, ls=":", zorder=1)
    height = bottom + 0.057 * (top - bottom)
    ax.plot([low, high], [height] * 2, "-|", color=INK, lw=1.2, ms=5)
    more = " or more" if row["at_least"] else ""
    where = "knee " if first <= knee <= last else "knee beyond the axis:\n"
    write_note(ax, 0.02, 0.1, f"{where}{knee} workers, range {low} to {high}{more}")
