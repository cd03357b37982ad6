"""What would help, as figures: optimisations compared, fusion's loss, elasticities, a forecast."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..base.checks import shown
from ..base.units import MS
from ..whatif.comparing import ABLATION, COMPARISON, SHAPLEY
from ..whatif.elasticities import SENSITIVITY
from ..whatif.uncertainty import BAND
from .labels import GROUND, shade_untimed
from .style import (
    COLOURS,
    HATCHES,
    INK,
    check_axes,
    cues,
    doubling_axis,
    filled,
    is_number,
    legend_above,
    shades,
    short,
)

DARK, MIDDLE, _ = shades(3)  # a gain, and all gains together
BESIDES = GROUND  # of a tie zone
HOLLOW = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.6, "linestyle": (0, (2, 1))}
STRIPED = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.6, "hatch": "\\\\\\\\"}
CROSSED = {"facecolor": "white", "edgecolor": INK, "linewidth": 0.4, "hatch": "xxxxx"}
LETTERS = 24  # of a row's name: it takes at most 40 % of a column


def draw_comparison(ax: Axes, table: pd.DataFrame, bounds: pd.DataFrame | None = None) -> Axes:
    """Draw what optimisations gain, a row each, from above in the order of the table.

    table : of whatif. COMPARISON gives bars of an iteration's time, by the baseline's samples, in
        which an optimisation's own cost is crossed, with the speedup beside each. ABLATION in one
        order gives a waterfall of the speedup, where a bar begins at what those before it gained,
        and SHAPLEY each share with its least and largest gain in any order. A diamond is what an
        optimisation gains by itself; losses are striped.
    bounds : `headroom(scenario)`, for a COMPARISON, which has none: its bounds are drawn hollow

    Raises ValueError for another table, one of several orders, or without rows.
    """
    check_axes(ax, "draw_comparison")
    columns = set(table) if isinstance(table, pd.DataFrame) else set()
    if "least" in columns:
        return _draw_shares(ax, _added(table, SHAPLEY))
    if "order" in columns:
        return _draw_waterfall(ax, _added(table, ABLATION))
    table = filled(table, COMPARISON, "draw_comparison", "compare(scenario, {label: optimisation})",
                   ("iteration_s", "one_worker_s", "exposed_comm_s", "own_cost_s", "speedup"),
                   ("samples",))  # fmt: skip
    return _draw_times(ax, table, bounds)


def _added(table: pd.DataFrame, columns: dict) -> pd.DataFrame:
    """Return a table of `ablate` that adds something; the baseline gains nothing, and has gaps."""
    moves = ("gain", "least", "most", "alone")
    table = filled(
        table, columns, "draw_comparison", "ablate(...)", gaps=("speedup", "order", *moves)
    )
    added = table[table["kind"] == "optimisation"]
    if added.empty:
        raise ValueError("draw_comparison: the table adds no optimisation; select at least one")
    filled(added, columns, "draw_comparison", "ablate(...)", moves)
    return table


def _draw_times(ax: Axes, table: pd.DataFrame, bounds: pd.DataFrame | None) -> Axes:
    labels, ends = table["label"].tolist(), table["iteration_s"] / table["samples"] / MS
    told, left = table["speedup"].tolist(), 0.0
    for label, width, look in _parts(table):
        width = (width / table["samples"] / MS).to_numpy()
        if (width > 1e-9 * max(ends)).any():  # else it is rounding
            ax.barh(np.arange(len(table)), width, 0.7, left, label=label, **look)
        left = left + width
    if bounds is not None:
        needed = {"what": "bound", "kind": "bound or other", "iteration_s": "s"}
        bounds = filled(bounds, needed, "draw_comparison: bounds", "headroom(scenario)")
        bounds = bounds[bounds["kind"] == "bound"]
        labels, ends = labels + bounds["what"].tolist(), [*ends, *bounds["iteration_s"] / MS]
        now_ms = table["iteration_s"].iloc[0] / MS
        told += [now_ms / end for end in ends[len(table) :]]
        rows = np.arange(len(table), len(labels))
        ax.barh(rows, ends[len(table) :], 0.7, label="bound of fusion", **HOLLOW)
    ax.set_xlim(0, 1.18 * max(ends))
    digits = _digits(np.array(told) - 1)
    _name_rows(ax, labels, ends, [f"{x:.{digits}f}\N{MULTIPLICATION SIGN}" for x in told])
    ax.text(1, 1.0, "speedup", transform=ax.transAxes, ha="right", va="bottom", fontsize=7)
    each = "" if (table["samples"] == 1).all() else " of the baseline's samples"
    ax.set(xlabel=f"time{each} (ms)" if each else "iteration time (ms)")
    return _legend(ax, columns=2, above=1.07)


def _parts(table: pd.DataFrame):
    """Yield label, s and look of the parts of an iteration; together they are its time."""
    own = table["own_cost_s"].clip(lower=0.0)
    besides = (table["iteration_s"] - table["one_worker_s"] - own).clip(lower=0.0)
    exposed = np.minimum(besides, table["exposed_comm_s"])
    white = {"edgecolor": "white", "linewidth": 0.4}
    for label, width, kind in (
        ("one worker", table["one_worker_s"], "compute"),
        ("exposed communication", exposed, "exposed"),
        ("other waiting", besides - exposed, "idle"),
    ):
        yield label, width, white | {"facecolor": COLOURS[kind], "hatch": HATCHES[kind]}
    yield "own cost", own, CROSSED


def _draw_waterfall(ax: Axes, table: pd.DataFrame) -> Axes:
    if table["order"].max() > 1:
        raise ValueError(
            f"draw_comparison: expected one order, got {table['order'].max()}; select one, "
            "table[table['order'] <= 1], or take ablate(..., order='shapley')"
        )
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


def _draw_gains(ax: Axes, before: np.ndarray, after: np.ndarray):
    for label, chosen, look in (
        ("gain", after >= before, {"color": DARK}),
        ("loss", after < before, STRIPED),
    ):
        if chosen.any():
            rows = np.flatnonzero(chosen)
            ax.barh(rows, (after - before)[chosen], 0.7, before[chosen], label=label, **look)


def _draw_alone(ax: Axes, speedups: np.ndarray):
    ax.plot(speedups, np.arange(len(speedups)), "D", ms=3.5, mfc="white", mec=INK, mew=0.8,
            label="by itself", zorder=4)  # fmt: skip


def _finish_speedups(ax: Axes, added, rest, reach) -> Axes:
    """Draw the total and the bounds below, and name all rows; reach is where their marks end."""
    rows, speedups = len(added) + np.arange(len(rest)), rest["speedup"].to_numpy()
    total = (rest["kind"] == "total").to_numpy()
    for label, chosen, look in (
        ("all together", total, {"color": MIDDLE}),
        ("bound of fusion", ~total, HOLLOW),
    ):
        if chosen.any():
            ax.barh(rows[chosen], speedups[chosen] - 1, 0.7, 1.0, label=label, **look)
    ax.axvline(1, color=INK, lw=0.6)
    ends = [*reach, *np.maximum(speedups, 1)]
    low, high = min(ax.dataLim.x0, 1.0), max(1.01, *ends)
    ax.set_xlim(low - 0.02 * (high - low), high + 0.2 * (high - low))
    labels = [*added["label"], *rest["label"]]
    digits = _digits(np.array([*added["gain"], *speedups - 1]))
    told = [_signed(gain, digits) for gain in added["gain"]]
    told += [f"{speedup:.{digits}f}" for speedup in speedups]
    _name_rows(ax, labels, ends, told)
    ax.set_xlabel("speedup over the baseline")
    return _legend(ax, columns=3)


def _name_rows(ax: Axes, labels: list, ends, told: list):
    """Name each row at its left, and tell its number beside the end of its marks."""
    rows = np.arange(len(labels))
    ax.set_yticks(rows, [short(label, LETTERS) for label in labels])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)  # a name is text, whatever it holds
    for row, end, text in zip(rows, ends, told, strict=True):
        ax.annotate(text, (end, row), (5, 0), textcoords="offset points", va="center", fontsize=7)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)


def _digits(gains: np.ndarray) -> int:
    """Return how many decimals, 2 to 4, tell the largest of the gains and losses with two digits.

    What is below 0.00005 is told by none: a model is not that good.
    """
    largest = np.abs(gains).max(initial=0.0)
    return int(np.clip(1 - np.floor(np.log10(largest)), 2, 4)) if largest >= 5e-5 else 2


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign, and 0 without: what rounds to 0 is neither gain nor loss."""
    text = f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    return text if any(digit in text for digit in "123456789") else f"{0:.{digits}f}"


def _legend(ax: Axes, columns: int, above: float = 1.0) -> Axes:
    """Put the legend above an axes that has names at its left, and over these if need be."""
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, above), ncols=columns, columnspacing=1.0,
              handlelength=1.4, borderaxespad=0.2, labelspacing=0.3)  # fmt: skip
    return ax


# --- fusion ---------------------------------------------------------------------------------------

CURVE = {
    "value": "of the setting",
    "cycle_ms": "Horovod's cycle, ms",
    "setting": "text to paste",
    "loss": "1 - scaling factor / that of the optimum",
    "tied": "within the noise of the best",
}
SETTINGS = {  # how the text of a setting begins what it sets -> what its axis says
    "bucket_cap_mb": "bucket_cap_mb of PyTorch DDP (MiB)",
    "HOROVOD_FUSION_THRESHOLD": "fusion threshold of Horovod (MiB)",
    "reduce_bucket_size": "reduce_bucket_size of DeepSpeed (elements)",
    "a buffer of": "constant buffer (MiB)",
}


def draw_fusion_curve(ax: Axes, curve: pd.DataFrame, at: float | None = None) -> Axes:
    """Draw what each plain setting loses against the optimum, in %, on a logarithmic axis.

    The best setting is a star, in grey the settings around it that differ by less than the noise,
    and the optimum is the line at 0. Horovod's cycles are a curve each, and the grey is of the best
    one's only, as the legend says.

    curve : `loss_curve(scenario, policy)`
    at : a value to point out with a dotted line
    """
    check_axes(ax, "draw_fusion_curve")
    curve = filled(
        curve,
        CURVE,
        "draw_fusion_curve",
        "loss_curve(scenario)",
        ("loss",),
        ("value",),
        ("cycle_ms",),
        ("setting",),
    ).reset_index(drop=True)
    if at is not None and not (is_number(at) and at > 0):
        raise ValueError(f"draw_fusion_curve: at: expected a value above 0, got {shown(at)}")
    best = curve.loc[curve["loss"].idxmin()]
    cycles = curve["cycle_ms"].unique()
    looks = zip(cycles, shades(len(cycles)), cues(len(cycles)), strict=True)
    for cycle, colour, (marker, dashes) in looks:
        mine = curve[curve["cycle_ms"].eq(cycle) | pd.isna(cycle)].sort_values("value")
        label = "settings" if pd.isna(cycle) else f"cycle {cycle:g} ms"
        ax.plot(mine["value"], 100 * mine["loss"], marker=marker, ms=3, color=colour, label=label,
                dashes=dashes or (1, 0), lw=1)  # fmt: skip
        if pd.isna(cycle) or cycle == best["cycle_ms"]:
            beside_best = mine.reset_index(drop=True)
    cycle = best["cycle_ms"]
    tied = "tied" if pd.isna(cycle) else f"tied at {cycle:g} ms"
    _shade_ties(ax, beside_best, best["value"], tied)
    ax.plot(best["value"], 100 * best["loss"], "*", ms=9, mfc="white", mec=INK, mew=0.8, zorder=4,
            label="best")  # fmt: skip
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
    """Shade from the first to the last setting around the best with which it is tied."""
    at = int(np.flatnonzero(mine["value"] == best)[0])
    run = (~mine["tied"]).cumsum()
    tied = mine["value"][mine["tied"] & (run == run[at])]
    low, high = tied.min(), tied.max()
    ax.axvspan(low / 1.06, high * 1.06, color=BESIDES, lw=0, zorder=0, label=label)


# --- what moves it --------------------------------------------------------------------------------

NAMES = {
    "alpha": "latency",
    "beta": "price of a byte",
    "bytes": "bytes of gradients",
    "backward": "backward time",
    "compute": "compute time",
    "buffer": "fusion buffer",
}


def draw_sensitivity(ax: Axes, table: pd.DataFrame) -> Axes:
    """Draw by how many per cent the scaling factor moves for one per cent of each parameter.

    Solid bars raise it and striped ones lower it, the strongest on top. What moves in steps, the
    buffer, is told as the mean from half of it to double.

    table : `sensitivity(scenario)`
    """
    check_axes(ax, "draw_sensitivity")
    table = filled(
        table,
        SENSITIVITY,
        "draw_sensitivity",
        "sensitivity(scenario)",
        ("elasticity",),
        named=("parameter", "method"),
    )
    table = table.iloc[np.argsort(-table["elasticity"].abs(), kind="stable")]
    values, rows = table["elasticity"].to_numpy(), np.arange(len(table))
    for label, chosen, look in (
        ("raises the scaling factor", values > 0, {"color": DARK}),
        ("lowers it", values < 0, STRIPED),
    ):
        if chosen.any():
            ax.barh(rows[chosen], values[chosen], 0.7, label=label, **look)
    reach = 1.65 * max(np.abs(values).max(), 0.01)
    ax.set_xlim(-reach, reach)
    _name_rows(ax, [_parameter(row) for row in table.itertuples()], np.zeros(len(table)),
               [""] * len(table))  # fmt: skip
    for row, value in zip(rows, values, strict=True):
        side = 1 if value >= 0 else -1
        ax.annotate(_signed(value, 3), (value, row), (3 * side, 0), textcoords="offset points",
                    ha="left" if side > 0 else "right", va="center", fontsize=7)  # fmt: skip
    ax.axvline(0, color=INK, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(4, symmetric=True))
    ax.set_xlabel("% of the scaling factor per % more")
    if values.any():
        return _legend(ax, columns=2)
    ax.text(0.5, 1.01, "all is hidden: nothing moves it", transform=ax.transAxes, ha="center",
            va="bottom", fontsize=7)  # fmt: skip
    return ax


def _parameter(row) -> str:
    kind, _, which = row.parameter.partition("_")
    name = f"{NAMES.get(kind, kind)} {which.replace('_', ' ')}".strip()
    return f"{name} (\N{VULGAR FRACTION ONE HALF} to 2)" if row.method[:4] == "half" else name


# --- a forecast -----------------------------------------------------------------------------------


def draw_forecast(
    ax: Axes,
    table: pd.DataFrame,
    knee: pd.DataFrame | None = None,
    measured: pd.DataFrame | None = None,
) -> Axes:
    """Draw the scaling factor against workers with its band, and the knee with its range.

    The line is dashed where the forecast is beyond what was measured, on grey ground where that
    number of workers was not; a ring is a measured number of workers with messages of other sizes
    than those measured. Where all is above one half the axis begins higher, so that the band is
    seen.

    Parameters
    ----------
    table : `band(scenario, fit, n_workers)`
    knee : `knee_range(scenario, fit)`: a dotted line, and a bar from the lowest to the highest
    measured : n_workers and scaling_factor of real runs, drawn as crosses
    """
    check_axes(ax, "draw_forecast")
    table = filled(
        table,
        BAND,
        "draw_forecast",
        "band(scenario, fit, n_workers)",
        ("scaling_factor", "low", "high"),
        ("n_workers",),
        ("extrapolated",),
        ("why",),
    )
    table = table.sort_values("n_workers", ignore_index=True)
    workers, factor = table["n_workers"], table["scaling_factor"]
    ax.fill_between(workers, table["low"], table["high"], color=DARK, alpha=0.4, lw=0,
                    label="band")  # fmt: skip
    inside = (table["extrapolated"] <= 1) & (workers > 1)
    ax.plot(workers, factor, color=DARK, lw=1, dashes=(3, 1.5), label="extrapolated")
    lowest, highest = workers.min(), workers.max()
    if inside.any():
        ax.plot(workers.where(inside), factor, "-o", color=DARK, ms=3, lw=1, label="predicted")
    others = _only_sizes_beyond(table) & ~inside
    timed = workers[inside | others]
    if others.any():
        ax.plot(workers[others], factor[others], "o", color=DARK, mfc="white", ms=4, mew=0.8,
                label="other sizes")  # fmt: skip
    shade_untimed(ax, timed, lowest, highest, "not measured")
    if measured is not None:
        needed = {name: BAND[name] for name in ("n_workers", "scaling_factor")}
        measured = filled(
            measured,
            needed,
            "draw_forecast: measured",
            "a table of real runs",
            ("scaling_factor",),
            ("n_workers",),
        )
        ax.plot(measured["n_workers"], measured["scaling_factor"], "x", color=INK,
                label="measured", zorder=4)  # fmt: skip
    lows = (
        table["low"].min()
        if measured is None
        else min(table["low"].min(), measured["scaling_factor"].min())
    )
    bottom = 0.0 if lows <= 0.5 else max(0.0, 1 - 1.5 * max(1 - lows, 0.01))
    ax.set(xlabel="number of workers", ylabel="scaling factor")
    ax.set_ylim(bottom, 1 + 0.05 * (1 - bottom))
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if knee is not None:
        _mark_knee(ax, knee, lowest / 1.1, highest * 1.1)
    doubling_axis(ax, lowest, highest)
    return legend_above(ax, columns=3)


def _only_sizes_beyond(table: pd.DataFrame) -> pd.Series:
    """Tell at which numbers of workers the forecast is beyond what was measured by sizes only."""
    sizes = table["why"].str.contains("nbytes") & ~table["why"].str.contains("n_workers")
    return sizes & np.isfinite(table["extrapolated"]) & (table["n_workers"] > 1)


def _mark_knee(ax: Axes, knee: pd.DataFrame, first: float, last: float):
    """Mark the knee with a dotted line and a bar of its range near the bottom, named in words.

    first, last : the ends of the axis, beyond which the knee is in words only
    """
    needed = {name: "workers" for name in ("knee", "low", "high")} | {"at_least": "yes or no"}
    knee = filled(knee, needed, "draw_forecast: knee", "knee_range(scenario, fit)",
                  above_0=("knee", "low", "high"))  # fmt: skip
    row = knee.iloc[0]
    knee, low, high = (int(row[name]) for name in ("knee", "low", "high"))
    if row["at_least"] and knee == high:  # where the search ended, not where anything bends
        some = f",\nin some draws from {low:,} on" if low < knee else ""
        words = f"no knee up to {knee:,} workers{some}"
        ax.text(0.02, 0.1, words, transform=ax.transAxes, va="bottom", fontsize=7)
        return
    bottom, top = ax.get_ylim()
    ax.axvline(knee, color=INK, lw=0.8, ls=":", zorder=1)
    ax.plot([low, high], [bottom + 0.057 * (top - bottom)] * 2, "-|", color=INK,
            lw=1.2, ms=5)  # fmt: skip
    more = " or more" if row["at_least"] else ""
    where = "knee " if first <= knee <= last else "knee beyond the axis:\n"
    words = f"{where}{knee} workers, range {low} to {high}{more}"
    ax.text(0.02, 0.1, words, transform=ax.transAxes, va="bottom", fontsize=7)
