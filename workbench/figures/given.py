"""What a figure is given: checks of its Axes and of the table that it draws."""

import functools
import inspect
import math
from collections.abc import Callable
from numbers import Real

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..base.checks import refuse, require, shown
from ..base.tables import check

MOST_CURVES = 24  # of one figure: three rounds of markers


def draws(columns: dict | None = None, advice: str = "", named: tuple = (), **kinds) -> Callable:
    """Return a decorator for a draw_* function that checks its Axes and its second argument.

    columns, advice, named, kinds : as `filled` takes them; without columns only the Axes are
        checked. The column named by an argument `by` is added; it needs a name in every row.
    """

    def wrap(draw):
        signature = inspect.signature(draw)
        first, *others = signature.parameters

        @functools.wraps(draw)
        def inner(*args, **kwargs):
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            values = given.arguments
            check_axes(values[first], draw.__name__)
            if columns is not None:
                by = {values["by"]: "which curve, mark or row"} if "by" in values else {}
                call = columns | by, f"{draw.__name__} {others[0]}", advice
                names = tuple(dict.fromkeys((*named, *by)))
                values[others[0]] = filled(values[others[0]], *call, named=names, **kinds)
            return draw(*given.args, **given.kwargs)

        return inner

    return wrap


def check_axes(ax, what: str):
    do = "Pass the ax of fig, ax = plt.subplots()"
    require(isinstance(ax, Axes), f"{what} ax", "a Matplotlib Axes", ax, do)


def check_figure(fig, what: str):
    do = f"Pass {'ax.figure' if isinstance(fig, Axes) else 'the fig of fig, ax = plt.subplots()'}"
    require(isinstance(fig, Figure), f"{what} fig", "a Matplotlib Figure", fig, do)


def filled(
    table, columns: dict, what: str, advice: str, finite=(), above_0=(), gaps=(), named=()
) -> pd.DataFrame:
    """Return the table if it has the columns and at least one row, or raise ValueError.

    what, advice : argument for the message, and the call that makes such a table
    finite, above_0, gaps : tuples of columns, if present, of finite numbers, of numbers above 0,
        and of numbers with gaps; they come back as floats if they have another type
    named : tuple of columns of names, returned as text; each row needs one
    """
    do = f"Pass {advice}"
    require(isinstance(table, pd.DataFrame), what, "a table (DataFrame)", table, do)
    rows = len(check(table, columns, what))
    require(rows, what, "a table with rows", found="none", do="Select at least one")
    changed = {}
    for name in (each for each in (*finite, *above_0, *gaps) if each in table):
        column, where = table[name], f"{what} {name}"
        values = _plain_numbers(column, where)
        if name not in gaps:
            _refuse_unfit(values.to_numpy(), where, above_0=name in above_0)
        if values is not column:
            changed[name] = values
    for name in named:
        nameless = table[name].isna()
        found = f"none in row {int(np.argmax(nameless))}"
        require(not nameless.any(), f"{what} {name}", "a name in every row", found=found)
        changed[name] = table[name].astype("str")
    return table.assign(**changed) if changed else table


def _plain_numbers(column: pd.Series, what: str) -> pd.Series:
    """Return a column as numbers that NumPy knows, gaps as NaN."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        return column
    values = [math.nan if value is None or value is pd.NA else value for value in column]
    for row, value in enumerate(values):
        number = isinstance(value, Real) and not isinstance(value, bool)
        require(number, what, "numbers", found=f"{shown(value)} in row {row}")
    return pd.Series(values, column.index, dtype=float, name=column.name)


def _refuse_unfit(values: np.ndarray, what: str, above_0: bool):
    wrong = ~np.isfinite(values) | ((values <= 0) & above_0)
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = "finite numbers above 0" if above_0 else "finite numbers"
        refuse(what, expected, found=f"{values[row]:.6g} in row {row}")


def is_number(value) -> bool:
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return real and math.isfinite(value)


def a_number_above_0(value, what: str):
    """Raise ValueError unless value is None or a finite number above 0."""
    fine = value is None or (is_number(value) and value > 0)
    require(fine, what, "a finite number above 0", value)


def refuse_crowd(names, what: str):
    """Raise ValueError if there are more curves than an eye can tell apart."""
    expected = f"at most {MOST_CURVES} names, one curve or mark each"
    require(len(names) <= MOST_CURVES, what, expected, len(names), "Select some")
