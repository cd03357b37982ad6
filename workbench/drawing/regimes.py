"""What an all-reduce costs, with the corners between the regimes of its price."""

from matplotlib.axes import Axes

from ..fitting.corners import CORNERS, corners
from ..units import MS
from .fits import draw_fit
from .labels import small
from .style import INK, filled


def draw_regimes(ax: Axes, fit, table=None) -> Axes:
    """Draw a Fit as `draw_fit` does, with a dotted line below each corner and the regimes' numbers.

    table : `corners(fit, n_workers)`, by default those of the most workers measured
    """
    draw_fit(ax, fit)
    table = corners(fit) if table is None else table
    if not len(table):
        return ax
    table = filled(table, CORNERS, "draw_regimes", "corners(fit)")
    sizes, (low, high) = ax.get_xlim(), ax.get_ylim()
    last = table["regime"].max() + 1
    for corner in table.itertuples():
        ax.plot([corner.nbytes] * 2, [low, corner.seconds / MS], color=INK, lw=0.8, ls=":")
        sides = {corner.regime: (-3, "right")}
        if corner.regime + 1 == last:
            sides[last] = (3, "left")
        for number, (away, side) in sides.items():
            ax.annotate(f"{number}", (corner.nbytes, 0.03), (away, 0), ha=side, va="bottom",
                        xycoords=ax.get_xaxis_transform(), textcoords="offset points",
                        fontsize=small())  # fmt: skip
    ax.set(xlim=sizes, ylim=(low, high))
    return ax
