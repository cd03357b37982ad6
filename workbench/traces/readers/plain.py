"""A table of timed collectives with a header: CSV or TSV of any origin, or a DataFrame.

Common names of columns are known (`size_mib`, `latency_us`, `Time (ms)`, `world_size`, ...); a
column's unit is the one in its name. Nothing is guessed: a time or size without one is asked for.
"""

import pandas as pd

from ...base.tables import MEASUREMENTS
from .collectives import collective
from .columns import UNITS_OF, accepted, delimited, header, quantities, whole_bytes

_WHOLE = {"nbytes": "int64", "n_workers": "Int64", "n_nodes": "Int64", "seconds": "float64"}


def recognises(head: bytes) -> bool:
    """Return whether the first line that is not a comment names size, time and workers."""
    return {"nbytes", "seconds", "n_workers"} <= set(quantities(header(head)))


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS (with any further columns) and what is wrong with which line.

    Raises ValueError when a column is missing, has no unit, or no row holds numbers.
    """
    frame, problems = delimited(text, file)
    table, more = _measurements(frame, file, "line")
    return table, problems + more


def from_table(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS and problems of any DataFrame with columns for size, time and workers."""
    if not isinstance(frame, pd.DataFrame):
        raise ValueError(f"table: expected a DataFrame, got {type(frame).__name__}")
    return _measurements(frame, "table", "row")


def _measurements(frame: pd.DataFrame, file: str, what: str) -> tuple[pd.DataFrame, list[str]]:
    where = {q: _one(q, places, frame, file) for q, places in quantities(frame.columns).items()}
    if missing := [q for q in ("nbytes", "seconds", "n_workers") if q not in where]:
        wanted = "; ".join(f"{q} ({MEASUREMENTS[q]})" for q in missing)
        found = ", ".join(map(str, frame.columns)) or "none"
        known = "; ".join(f"as {q} are known {accepted(q)}" for q in missing)
        raise ValueError(
            f"{file}: missing column {wanted}. Found: {found}. Rename one: {known}. "
            'From a DataFrame: table.rename(columns={"yours": "' + missing[0] + '"})'
        )
    numbers = {q: _numbers(frame.iloc[:, at], file) for q, (at, _) in where.items() if q != "op"}
    at, unit = where["nbytes"]
    whole, said = whole_bytes(numbers["nbytes"], unit, frame.columns[at])
    values = pd.DataFrame(
        {
            "n_workers": numbers["n_workers"],
            "n_nodes": numbers.get("n_nodes", pd.Series(float("nan"), frame.index)),
            "nbytes": whole,
            "seconds": numbers["seconds"] / where["seconds"][1],
        }
    )
    bad, problems = _bad(values, frame, where, what)
    if bad.all():
        found = f"; {problems[0]}" if problems else ""
        raise ValueError(f"{file}: no row with numbers for size, time and workers{found}")
    table = values.assign(op=_ops(frame, where))[~bad]
    rest = frame.iloc[:, [n for n in range(frame.shape[1]) if n not in _places(where)]][~bad]
    table = table[[*MEASUREMENTS]].astype(_WHOLE | {"op": "str"})
    return _joined(table, rest), problems + said


def _places(where: dict) -> set[int]:
    return {at for at, _ in where.values()}


def _one(quantity: str, places: list, frame: pd.DataFrame, file: str) -> tuple:
    """Return the column of a quantity, ours by name or else the only one, with its unit."""
    names = [str(column) for column in frame.columns]
    ours = [place for place in places if names[place[0]] == quantity]
    units = UNITS_OF.get(quantity)
    places = ours or ([p for p in places if p[1]] if units else places) or places
    if len(places) > 1:
        several = ", ".join(repr(names[at]) for at, _ in places)
        raise ValueError(
            f"{file}: columns {several} may all be {quantity}: keep one, or rename it {quantity}"
        )
    at, unit = places[0]
    if units and unit is None:
        example = f"{names[at]}_{'mib' if quantity == 'nbytes' else 'us'}"
        raise ValueError(
            f"{file}: column {names[at]!r} has no unit. Rename it with one ({example!r}), or to "
            f"{quantity!r} ({MEASUREMENTS[quantity]})"
        )
    return at, unit


def _numbers(column: pd.Series, file: str) -> pd.Series:
    """Return float64, nan for other values. Raises ValueError for decimal commas."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        raise ValueError(f"{file}: column {column.name!r}: expected numbers, got {column.dtype}")
    if pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(
            f"{file}: column {column.name!r}: expected numbers of seconds, got timedelta: use "
            ".dt.total_seconds()"
        )
    if not pd.api.types.is_numeric_dtype(column):
        text = column.astype(str)
        if (comma := text.str.fullmatch(r"[-+]?[\d.]*\d,\d+(?:[eE][-+]?\d+)?")).any():
            raise ValueError(
                f"{file}: column {column.name!r} has a comma inside a number "
                f"({text[comma].iloc[0]!r}): write 0.5, not 0,5, and no thousands separators"
            )
    return pd.to_numeric(column, errors="coerce").astype("float64")


def _bad(values: pd.DataFrame, frame: pd.DataFrame, where: dict, what: str) -> tuple:
    """Return a mask of rows without a measurement, and sentences for the first twenty."""
    workers, nodes = values["n_workers"], values["n_nodes"]
    ok = {
        "n_workers": (workers >= 1) & (workers < 2**31) & (workers % 1 == 0),
        "nbytes": (values["nbytes"] >= 0)
        & (values["nbytes"] < 2**62)
        & (values["nbytes"] % 1 == 0),
        "seconds": (values["seconds"] > 0) & (values["seconds"] < float("inf")),
        "n_nodes": nodes.isna() | ((nodes >= 1) & (nodes < 2**31) & (nodes % 1 == 0)),
    }
    bad = ~pd.DataFrame(ok).all(axis=1)
    problems = []
    for n in bad.to_numpy().nonzero()[0]:
        name = next(quantity for quantity, good in ok.items() if not good.iloc[n])
        at = where[name][0]
        place = f"{what} {frame.index[n] if what == 'line' else n + 1}"
        problems.append(
            f"{place} left out: {frame.columns[at]} is {_shown(frame.iloc[n, at])}, expected "
            + {"seconds": "a time above 0", "nbytes": "whole bytes"}.get(name, "a whole number")
        )
    if len(problems) > 20:
        problems[20:] = [f"and {len(problems) - 20} more {what}s left out"]
    return bad, problems


def _shown(value) -> str:
    return repr(value[:40]) if isinstance(value, str) else str(value)[:40]


def _ops(frame: pd.DataFrame, where: dict) -> pd.Series:
    if "op" not in where:
        return pd.Series("all_reduce", frame.index)
    names = frame.iloc[:, where["op"][0]].fillna("").astype(str).str.strip()
    return names.map(lambda name: collective(name.replace("-", "_")) or name or "unknown")


def _joined(table: pd.DataFrame, rest: pd.DataFrame) -> pd.DataFrame:
    """Our columns, then the others under their names, numbers where all are numbers."""
    table = table.reset_index(drop=True)
    for n, name in enumerate(rest.columns):
        column = rest.iloc[:, n].reset_index(drop=True)
        numbers = pd.to_numeric(column, errors="coerce")
        column = numbers if numbers.notna().all() else column
        name, k = str(name) or "unnamed", 1
        while name in table.columns:
            name, k = f"{rest.columns[n]}.{k}", k + 1
        table = table.assign(**{name: column})
    return table
