"""Figures that go straight into a paper: sizes and colours as data, one draw_* an Axes, save().

Drawing never computes: every draw_* takes an Axes and a table, draws what the table holds and
returns the Axes.
"""

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from . import files
from .fusion import DDPBuckets, OneMessage, PerTensor
from .tables import ITERATIONS, MEASUREMENTS, TIMELINE, check
from .timeline import Prediction
from .units import GBIT, MIB, MS

# Widths in inches of a figure over one column and over the whole text.
VENUES = {
    "acm-sigconf": (3.33, 7.0),  # acmart: \columnwidth 241.15 pt, \textwidth 506.3 pt
    "ieee": (3.49, 7.14),  # IEEEtran: 252 pt and 516 pt
    "usenix": (3.33, 7.0),  # usenix-2020: 7 in of text, 0.33 in between the columns
    "neurips": (5.5,),  # a single column of 5.5 in
}
GOLDEN = 2 / (1 + 5**0.5)

# One meaning a colour, in every figure. Hues follow Okabe and Ito's colour-blind safe palette;
# lightness differs by 10 L* or more from one to the next, so that grey print tells them apart.
COLOURS = {
    "compute": "#0A3D62",
    "exposed": "#C44E00",
    "memory": "#30A987",
    "comm": "#F0AE3C",
    "idle": "#E6E6E6",
}
HATCHES = {"compute": "", "exposed": "////", "memory": "....", "comm": "", "idle": ""}
INK = "#333333"
FIXED = {  # the same bytes in every run, fonts embedded as TrueType, text that stays text
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "pdf.use14corefonts": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "workbench",
    "savefig.bbox": None,
    "text.usetex": False,
}
PARTS = {  # column of ITERATIONS -> colour, label: together they are the iteration
    "compute_s": ("compute", "compute"),
    "exposed_comm_s": ("exposed", "exposed communication"),
    "exposed_memory_s": ("memory", "exposed copies"),
    "idle_s": ("idle", "idle"),
}


def paper(venue: str = "acm-sigconf", columns: int = 1, ratio: float = GOLDEN) -> dict:
    """Matplotlib settings of a figure for a venue, to use as `with plt.rc_context(paper()):`.

    The width is that of `columns` columns and the height is `ratio` times the width, so that 7 and
    8 pt text is 7 and 8 pt on the page. ValueError for an unknown venue or number of columns, or a
    ratio that is not above 0.
    """
    if venue not in VENUES:
        raise ValueError(f"unknown venue {venue!r}: choose one of {', '.join(VENUES)}")
    widths = VENUES[venue]
    if columns not in range(1, len(widths) + 1):
        raise ValueError(f"columns: {venue} has 1 to {len(widths)}, got {columns!r}")
    if not _is_number(ratio) or not ratio > 0:
        raise ValueError(f"ratio: expected height / width above 0, got {ratio!r}")
    width = widths[columns - 1]
    return FIXED | {
        "figure.figsize": (width, width * ratio),
        "figure.dpi": 200,  # on screen: a column is 666 pixels wide
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.02,
        "figure.constrained_layout.w_pad": 0.02,
        "font.family": "DejaVu Sans",  # ships with Matplotlib: the same glyphs everywhere
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "axes.edgecolor": INK,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#D9D9D9",
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "lines.linewidth": 1.2,
        "lines.markersize": 4,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }


def draw_timeline(ax: Axes, timeline, backward_s: float | None = None) -> Axes:
    """Draw when gradients are ready and when their messages travel, in ms since backward began.

    `timeline` is a TIMELINE table with `backward_s` in seconds, or a Prediction, which knows both.
    What travels after backward ends is exposed: hatched.
    """
    _check_axes(ax, "draw_timeline")
    if isinstance(timeline, Prediction):
        backward_s = timeline.scenario.backward_s if backward_s is None else backward_s
        timeline = timeline.timeline
    table = _filled(timeline, TIMELINE, "draw_timeline", "predict(scenario)")
    if not _is_number(backward_s) or backward_s < 0:
        got = "none" if backward_s is None else _shown(backward_s)
        raise ValueError(
            f"draw_timeline: a table does not say when backward ends: expected backward_s in s "
            f"beside it, got {got}; pass it, or pass predict(scenario)"
        )
    hidden_end = np.clip(table["end_s"], table["start_s"], np.fmax(table["start_s"], backward_s))
    gap = min(0.4, 20 / len(table))  # points of white between messages; many leave no room for it
    ax.barh(1, backward_s / MS, height=0.6, color=COLOURS["compute"], label="backward")
    ax.plot(table["ready_s"] / MS, np.full(len(table), 0.5), "|", color=INK, ms=6, label="ready")
    for label, kind, start, end in (
        ("communication", "comm", table["start_s"], hidden_end),
        ("exposed", "exposed", hidden_end, table["end_s"]),
    ):
        spans = np.column_stack([start, end - start])[end > start] / MS
        if len(spans):
            ax.broken_barh(spans, (-0.3, 0.6), facecolor=COLOURS[kind], hatch=HATCHES[kind],
                           edgecolor="white", linewidth=gap, label=label)  # fmt: skip
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    ax.set(xlabel="time since backward began (ms)", ylim=(-0.45, 1.45), xlim=(0, None))
    ax.set_yticks([0, 1], ["link", "worker"])
    ax.tick_params(axis="y", length=0)
    return _legend_above(ax, columns=4)


def draw_breakdown(ax: Axes, iterations: pd.DataFrame) -> Axes:
    """Draw where each iteration's time goes, in ms: the parts of ITERATIONS that add up to it."""
    _check_axes(ax, "draw_breakdown")
    needed = {column: ITERATIONS[column] for column in ("rank", "iteration")}
    table = _filled(iterations, needed, "draw_breakdown", "iterations(run)")
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
    return _legend_above(ax, columns=2 if len(parts) > 3 else len(parts))


def draw_fit(ax: Axes, fit) -> Axes:
    """Draw a Fit: each measured collective as a point, the fitted cost as a line, both logarithmic.

    Message size in MiB, time in ms. The text is of the fit card: latency and bandwidth with their
    95 % intervals.
    """
    _check_axes(ax, "draw_fit")
    if not hasattr(fit, "card"):
        got = type(fit).__name__
        raise ValueError(f"draw_fit: expected a Fit, got {got}; pass fit_all_reduce(measurements)")
    table = _filled(fit.measurements, MEASUREMENTS, "draw_fit", "a Fit")
    counts = sorted(int(n) for n in table["n_workers"].unique())
    cues = zip(counts, _shades(len(counts)), _cues(len(counts)), strict=True)
    for n_workers, colour, (marker, dash) in cues:
        rows = table[table["n_workers"] == n_workers].sort_values("nbytes")
        line = np.asarray(fit.model(rows["nbytes"], n_workers))
        ax.plot(rows["nbytes"] / MIB, rows["seconds"] / MS, marker, color=colour, ms=3, mew=0,
                alpha=0.5, label=f"measured, {n_workers} workers")  # fmt: skip
        ax.plot(rows["nbytes"] / MIB, line / MS, color=INK, lw=0.9, dashes=dash,
                label=f"fit, {n_workers} workers")  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="message size (MiB)", ylabel="time (ms)")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain_number))
        axis.set_minor_formatter(NullFormatter())
    ax.legend(loc="lower right")
    lines = (_card_line(fit.card(), row, label) for row, label in FIT_LINES.items())
    ax.text(0.03, 0.98, "\n".join(lines), transform=ax.transAxes, va="top", fontsize=7)
    return ax


FIT_LINES = {"alpha": "latency", "1/beta": "bandwidth"}  # row of the fit card -> its words


def _card_line(card: pd.DataFrame, row: str, label: str) -> str:
    value, unit, low, high = card.loc[row, ["value", "unit", "low", "high"]]
    interval = f"\n  95 %: {low} to {high}" if low or high else ""
    return f"{label} {value} {unit}{interval}"


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
    _check_axes(ax, "draw_scaling")
    columns = SCALING if label is None else SCALING | {label: "which curve"}
    table = _filled(table, columns, "draw_scaling", "sweep(scenario, n_workers=[1, 2, 4])")
    for name, value in {"fitted_to": fitted_to, "at": at}.items():
        if value is not None and not (_is_number(value) and value > 0):
            got = _shown(value)
            raise ValueError(f"draw_scaling: {name}: expected a number of workers, got {got}")
    curves = ["predicted"] * len(table) if label is None else _curve_names(table[label])
    table = table[list(SCALING)].assign(curve=curves)
    lowest, highest = table.n_workers.min(), table.n_workers.max()
    n_curves = table["curve"].nunique()
    markers, dashes = zip(*_cues(n_curves), strict=True)
    sns.lineplot(
        table, x="n_workers", y="scaling_factor", hue="curve", style="curve", estimator=None,
        ax=ax, palette=_shades(n_curves), markers=list(markers), dashes=list(dashes),
    )  # fmt: skip
    if measured is not None:
        measured = _filled(measured, SCALING, "draw_scaling, measured", "a table of real runs")
        ax.plot(measured.n_workers, measured.scaling_factor, "x", color=INK, label="measured")
    if fitted_to is not None:
        _mark_fitted(ax, fitted_to, highest)
    if at is not None:
        ax.axvline(at, color=INK, lw=0.6, ls=":", zorder=1)
    ax.set(xlabel="number of workers", ylabel="scaling factor", ylim=(0, 1.05))
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.legend(loc="best")
    return _doubling_axis(ax, lowest, highest)


def _mark_fitted(ax: Axes, fitted_to: int, highest: int):
    """Shade what lies beyond the fit, and say above the axes where it was fitted."""
    words = f"fitted at {fitted_to}"
    if fitted_to < highest:
        words += f", extrapolated beyond {fitted_to}"
        ax.axvspan(fitted_to, highest * 1.1, color="#EFEFEF", lw=0, zorder=0)
    ax.text(1, 1.01, words, transform=ax.transAxes, ha="right", va="bottom", fontsize=7)


def save(
    fig: Figure,
    name: str,
    data: pd.DataFrame,
    folder: Path | str | None = None,
    inputs: Iterable[Path | str] = (),
    parameters: Mapping | None = None,
) -> Path:
    """Write a figure with all it takes to check it, and return the path of the PDF.

    Writes `name`.pdf, .svg, .csv (the data drawn) and .receipt.json: SHA-256 of the input files
    and of the files written, versions of the packages, the parameters. The same call gives the
    same bytes in every run.

    Parameters
    ----------
    name : plain file name without a suffix: 'scaling', not 'scaling.pdf'
    folder : default is notebooks/figures of the checkout, else figures of the current folder
    inputs : files, folders of files or patterns (`runs/*.json.gz`) that the figure was made from
    parameters : what was chosen, with its unit in the name; numbers, strings, dataclasses

    Raises
    ------
    ValueError : no figure, the name holds a path or suffix, the folder cannot be made, the data are
        empty, a parameter is no plain value
    FileNotFoundError : an input does not exist
    """
    if not isinstance(fig, Figure):
        advice = "ax.figure" if isinstance(fig, Axes) else "the fig of fig, ax = plt.subplots()"
        got = type(fig).__name__
        raise ValueError(f"save: expected a Matplotlib Figure, got {got}; pass {advice}")
    folder, read = target(name, folder, inputs)
    data = _filled(data, {}, f"save {name}: data", "the table drawn")
    receipt = {
        "figure": name,
        "inputs": _hashes(read),
        "parameters": _plain(dict(parameters or {}), "parameters"),
        "versions": _versions(),
    }
    _make(folder)
    paths = {suffix: folder / f"{name}.{suffix}" for suffix in ("pdf", "svg", "csv")}
    with mpl.rc_context(FIXED):
        dateless = {"Creator": "osf-workbench", "CreationDate": None, "Producer": None}
        fig.savefig(paths["pdf"], metadata=dateless)
        fig.savefig(paths["svg"], metadata={"Creator": "osf-workbench", "Date": None})
    data.to_csv(paths["csv"], index=False, lineterminator="\n")
    receipt["written"] = {path.name: _sha256(path) for path in paths.values()}
    text = json.dumps(receipt, indent=2, sort_keys=True, allow_nan=False)
    (folder / f"{name}.receipt.json").write_text(text + "\n", encoding="utf-8")
    return paths["pdf"]


# --- what the drawings share ----------------------------------------------------------------------


def _check_axes(ax, what: str):
    if not isinstance(ax, Axes):
        raise ValueError(
            f"{what}: expected a Matplotlib Axes first, got {type(ax).__name__}; "
            "pass the ax of fig, ax = plt.subplots()"
        )


def _filled(table, columns: dict, what: str, advice: str) -> pd.DataFrame:
    """The table when it has the columns and at least one row: nobody draws an empty plot."""
    if not isinstance(table, pd.DataFrame):
        got = type(table).__name__
        raise ValueError(f"{what}: expected a table (DataFrame), got {got}; pass {advice}")
    if check(table, columns, what).empty:
        raise ValueError(f"{what}: the table has no rows; select at least one")
    return table


def _is_number(value) -> bool:
    plain = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return plain and math.isfinite(value)


def _shown(value) -> str:
    """A number or a text as it is, any other object by its type: errors do not dump tables."""
    return repr(value)[:60] if isinstance(value, str | int | float) else type(value).__name__


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
            return _cut(value, 36)
        case PerTensor():
            return "per tensor"
        case OneMessage():
            return "one message"
        case DDPBuckets():
            sizes = f" {value.first_bytes / MIB:.3g} + {value.cap_bytes / MIB:.3g} MiB"
            return "DDP buckets" + sizes * (value != DDPBuckets())
    if getattr(getattr(value, "link", None), "beta", None):  # a cost: its bus bandwidth
        return f"{_cut(type(value).__name__, 20)} {1 / value.link.beta / GBIT:.3g} Gbit/s"
    if callable(value):  # a class or function by its name, an object by its class's
        return _cut(getattr(value, "__name__", type(value).__name__), 20)
    return _cut(f"{column} {value}" if np.isscalar(value) else type(value).__name__, 36)


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split()).lstrip("_") or "unnamed"  # Matplotlib hides what begins with _
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _shades(n: int) -> list:
    """Colours for n curves, dark to light: told apart in grey, without a meaning of their own."""
    return sns.color_palette("viridis", n + 1)[:n]


def _cues(n: int = 8):
    """Marker and dash pattern for up to n curves, so that colour is never the only cue."""
    markers = ("o", "s", "D", "^", "v", "P", "X", "*")
    dashes = ((), (4, 1.5), (1, 1), (4, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (3, 1))
    return ((markers[i % 8], dashes[i % 8]) for i in range(n))


def _legend_above(ax: Axes, columns: int) -> Axes:
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, columnspacing=1.0,
              handlelength=1.4, borderaxespad=0.2)  # fmt: skip
    return ax


def _doubling_axis(ax: Axes, lowest: float, highest: float) -> Axes:
    ax.set_xscale("log", base=2)
    doublings = np.arange(np.floor(np.log2(lowest)), np.ceil(np.log2(highest)) + 1)
    ticks = 2 ** doublings[:: len(doublings) // 8 + 1]
    ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(lowest / 1.1, highest * 1.1)  # room for the outermost markers
    return ax


def _plain_number(value: float, _=None) -> str:
    return f"{value:.0f}" if value >= 1 else f"{value:g}"


# --- what the receipt holds -----------------------------------------------------------------------

REPOSITORY = Path(__file__).resolve().parents[1]


def _default_folder() -> Path:
    notebooks = REPOSITORY / "notebooks"
    return notebooks / "figures" if notebooks.is_dir() else Path("figures")


SUFFIXES = (".pdf", ".svg", ".csv", ".json", ".png", ".eps", ".ps", ".jpg", ".jpeg", ".tif")


def target(name: str, folder=None, inputs=()) -> tuple[Path, list[Path]]:
    """Return the folder and input files of save(), or raise as it does; nothing is written."""
    plain = isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")
    if not plain or "\\" in name or name.lower().endswith(SUFFIXES):
        raise ValueError(
            f"save: name must be a plain file name without folder or suffix, such as 'scaling'; "
            f"got {_shown(name)}"
        )
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"save: folder: expected a path, got {type(folder).__name__}")
    folder = _default_folder() if folder is None else Path(folder)
    above = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    if not above.is_dir():
        raise ValueError(f"save: folder {folder}: {above} is a file; name another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"save: folder {folder}: {above} is not writable; name another folder")
    return folder, _files(inputs)


def _make(folder: Path):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"save: folder {folder} cannot be made ({error.strerror}); name another folder"
        ) from None


def _files(inputs) -> list[Path]:
    """Every file of the inputs; a folder's are those below it."""
    inputs = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if isinstance(inputs, pd.DataFrame | Mapping) or not isinstance(inputs, Iterable):
        raise ValueError(f"save: inputs: expected paths, got {type(inputs).__name__}; pass [path]")
    found = set()
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            found.update(file for file in Path(path).rglob("*") if file.is_file())
        else:
            found.update(_named(path))
    return sorted(found)


def _named(path) -> list[Path]:
    try:
        return files.named(path)[0]
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"save: inputs: {error}") from None


def _relative(path: Path) -> str:
    """Path from the repository's top or the current folder, else the name: never absolute."""
    for top in (REPOSITORY, Path.cwd()):
        if path.resolve().is_relative_to(top):
            return path.resolve().relative_to(top).as_posix()
    return path.name


def _hashes(paths) -> dict[str, str]:
    """sha256 of each file by its name; files of one name are numbered, so that none is lost."""
    found: dict[str, str] = {}
    for path in paths:
        name, n = _relative(path), sum(key.split(" #")[0] == _relative(path) for key in found)
        found[f"{name} #{n + 1}" if n else name] = _sha256(path)
    return found


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value, where: str):
    """The value as JSON holds it; ValueError names the parameter that is no plain value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | _plain(asdict(value), where)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple | range | np.ndarray):
        return [_plain(item, where) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        return _relative(value)
    finite = not isinstance(value, float) or np.isfinite(value)
    if value is None or (isinstance(value, str | bool | int | float) and finite):
        return value
    raise ValueError(
        f"save: {where} must be finite numbers, strings or dataclasses, got {_shown(value)}; "
        "name a table or a run among the inputs by its file"
    )


def _versions() -> dict:
    """Versions of Python, of this package and of the packages loaded that shape the result."""
    loaded = ("numpy", "pandas", "matplotlib", "seaborn", "statsmodels", "scipy")
    names = {name: name for name in loaded if name in sys.modules} | {"workbench": "osf-workbench"}
    found = {"python": platform.python_version()}
    for name, distribution in names.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
