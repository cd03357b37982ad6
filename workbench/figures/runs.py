"""One iteration of a recorded run as a figure: what ran on each stream or thread, and when."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.patches import Patch
from matplotlib.path import Path

from ..base.checks import require, shown
from ..base.intervals import clip, union
from ..base.units import MS
from ..traces import Lanes, lanes
from .given import draws, is_number
from .style import COLOURS, HATCHES, legend_above, name_rows

LABELS = {
    "compute": "compute",
    "comm": "communication",
    "exposed": "exposed",
    "memory": "copies",
}
FINEST = 1 / 1000  # of the axis: narrower gaps are closed, as they are not seen but take time
NARROW = 1 / 100  # of the axis: narrower spans have no hatch, which would only break them up


@draws()
def draw_run(ax: Axes, run, rank=None, iteration=None, zoom: tuple | None = None) -> Axes:
    """Draw one iteration of a rank, one row per stream or thread, in ms since it began.

    Communication that no compute hides is exposed: hatched. Spans less than a thousandth of the
    axis apart are drawn as one.

    Parameters
    ----------
    run : a Run, its EVENTS, or the Lanes of an iteration, which know the rank and the iteration
    rank, iteration : as `lanes` takes them; by default the first
    zoom : (low, high) in s since the iteration began; by default all of it
    """
    found = run if isinstance(run, Lanes) else lanes(run, rank, iteration)
    low, high = _zoom(zoom, found.duration_s)
    names = list(found.spans["lane"].unique())
    require(names, "draw_run run", "lanes with work", found="none", do="Choose other lanes")
    keys = []
    for kind, label in LABELS.items():
        spans = found.spans[found.spans["kind"] == kind].groupby("lane", observed=True)
        boxes = [_boxes(mine, names.index(lane), low, high) for lane, mine in spans]
        if sum(map(len, boxes)):
            look = {"facecolor": COLOURS[kind], "edgecolor": "white", "linewidth": 0}
            keys.append(Patch(**look, hatch=HATCHES[kind], label=label))
            boxes = np.concatenate(boxes)
            narrow = boxes[:, 1, 0] - boxes[:, 0, 0] < NARROW * (high - low) / MS
            for some, hatch in ((boxes[narrow], ""), (boxes[~narrow], HATCHES[kind])):
                if not len(some):  # a path without a point has no extent
                    continue
                # one path for all, as hatching each of many takes long
                path = Path.make_compound_path_from_polys(some)
                ax.add_collection(PathCollection([path], **look, hatch=hatch), autolim=False)
    ax.set(xlabel="time since the iteration began (ms)", xlim=(low / MS, high / MS))
    ax.set(ylim=(len(names) - 0.45, -0.55))
    name_rows(ax, names)
    return legend_above(ax, columns=4, handles=keys)


def _zoom(zoom, duration_s: float) -> tuple[float, float]:
    if zoom is None:
        return 0.0, duration_s
    several = isinstance(zoom, tuple | list)
    pair = several and len(zoom) == 2 and all(map(is_number, zoom))
    fine = pair and 0 <= zoom[0] < zoom[1] <= duration_s * (1 + 1e-9)
    expected = f"(low, high) in s with 0 <= low < high <= {duration_s:.6g}"
    got = f"({', '.join(map(shown, zoom))})" if several else shown(zoom)
    require(fine, "draw_run zoom", expected, found=got)
    return zoom


def _boxes(spans: pd.DataFrame, place: int, low: float, high: float) -> np.ndarray:
    """Return the corners of one lane's spans, in ms and lanes: an array of (n, 4, 2)."""
    gap = (high - low) * FINEST
    start, end = clip(spans["start_s"], spans["end_s"], low, high)
    start, end = union(start, end + gap)
    start, end = start / MS, (end - gap) / MS
    bottom, top = np.full((2, len(start)), [[place + 0.3], [place - 0.3]])
    corners = [(start, bottom), (end, bottom), (end, top), (start, top)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
