"""A table of timed collectives with a header: CSV or TSV of any origin, or a DataFrame.

Common column names are known (`size_mib`, `latency_us`, `Time (ms)`, `world_size`, ...). The unit
of a column is part of its name; a time or size without a unit is refused.
"""

import pandas as pd

from ...base.checks import refuse, require, shown
from ...base.tables import MEASUREMENTS
from .collectives import collective
from .columns import UNITS_OF, accepted, delimited, header, quantities, whole_bytes, whole_within

_WHOLE = {"nbytes": "int64", "n_workers": "Int64", "n_nodes": "Int64", "seconds": "float64"}
_EXPECTED = {"seconds": "a time above 0", "nbytes": "whole bytes"}


def recognises(head: bytes) -> bool:
    """Return whether the first line that is not a comment names size, time and workers."""
    return {"nbytes", "seconds", "n_workers"} <= set(quantities(header(head)))


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS (with any further columns) and problems by line.

    Raises ValueError if a column is missing or has no unit, or if no row contains numbers.
    """
    frame, problems = delimited(text, file)
    table, more = _measurements(frame, file, "line")
    return table, problems + more


def from_table(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS and problems of any DataFrame with columns for size, time and workers."""
    require(isinstance(frame, pd.DataFrame), "table", "a DataFrame", frame)
    return _measurements(frame, "table", "row")


def _measurements(frame: pd.DataFrame, file: str, what: str) -> tuple[pd.DataFrame, list[str]]:
    where = {q: _one(q, places, frame, file) for q, places in quantities(frame.columns).items()}
    if missing := [q for q in ("nbytes", "seconds", "n_workers") if q not in where]:
        wanted = "; ".join(f"{q} ({MEASUREMENTS[q]})" for q in missing)
        known = "; ".join(f"names known for {q} are {accepted(q)}" for q in missing)
        do = f'Rename one, table.rename(columns={{"yours": "{missing[0]}"}}): {known}'
        refuse(file, f"columns {wanted}", found=", ".join(map(str, frame.columns)) or "none", do=do)
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
    found = "; ".join(["none", *problems[:1]])
    require(not bad.all(), file, "a row with numbers for size, time and workers", found=found)
    table = values.assign(op=_ops(frame, where))[~bad]
    ours = {at for at, _ in where.values()}
    rest = frame.iloc[:, [n for n in range(frame.shape[1]) if n not in ours]][~bad]
    table = table[[*MEASUREMENTS]].astype(_WHOLE | {"op": "str"})
    return _joined(table, rest), problems + said


def _one(quantity: str, places: list, frame: pd.DataFrame, file: str) -> tuple:
    """Return the position and unit of a quantity's column: that with our name, or the only one."""
    names = [str(column) for column in frame.columns]
    ours = [place for place in places if names[place[0]] == quantity]
    units = UNITS_OF.get(quantity)
    places = ours or ([p for p in places if p[1]] if units else places) or places
    several = ", ".join(repr(names[at]) for at, _ in places)
    do = f"Keep one, or rename it {quantity!r}"
    require(len(places) == 1, file, f"one column of {quantity}", found=several, do=do)
    at, unit = places[0]
    example = f"{names[at]}_{'mib' if quantity == 'nbytes' else 'us'}"
    do = f"Rename it {example!r}, or {quantity!r} ({MEASUREMENTS[quantity]})"
    require(unit or not units, f"{file}: column {names[at]!r}", "a unit", found="none", do=do)
    return at, unit


def _numbers(column: pd.Series, file: str) -> pd.Series:
    """Return float64, nan for other values. Raises ValueError for decimal commas."""
    name, kinds = f"{file}: column {column.name!r}", pd.api.types
    is_span = kinds.is_timedelta64_dtype(column)
    timed = is_span or kinds.is_bool_dtype(column) or kinds.is_datetime64_any_dtype(column)
    do = "Use .dt.total_seconds()" if is_span else ""
    require(not timed, name, "numbers", found=str(column.dtype), do=do)
    if not kinds.is_numeric_dtype(column):
        text = column.astype(str)
        comma = text[text.str.fullmatch(r"[-+]?[\d.]*\d,\d+(?:[eE][-+]?\d+)?")]
        do = "Write 0.5, not 0,5, and no thousands separators"
        require(comma.empty, name, "numbers without a comma", [*comma, ""][0], do)
    return pd.to_numeric(column, errors="coerce").astype("float64")


def _bad(values: pd.DataFrame, frame: pd.DataFrame, where: dict, what: str) -> tuple:
    """Return a mask of rows without a measurement, and messages for the first twenty."""
    ok = {
        "n_workers": whole_within(values["n_workers"], 1, 2**31),
        "nbytes": whole_within(values["nbytes"], 0, 2**62),
        "seconds": (values["seconds"] > 0) & (values["seconds"] < float("inf")),
        "n_nodes": values["n_nodes"].isna() | whole_within(values["n_nodes"], 1, 2**31),
    }
    failed, problems = ~pd.DataFrame(ok), []
    bad = failed.any(axis=1)
    wrong = failed[bad].idxmax(axis=1)  # the first wrong quantity of each bad row
    for n, name in zip(bad.to_numpy().nonzero()[0], wrong, strict=True):
        at = where[name][0]
        place = f"{what} {frame.index[n] if what == 'line' else n + 1}"
        problems.append(
            f"{place} left out: {frame.columns[at]}: expected "
            f"{_EXPECTED.get(name, 'a whole number')}, got {shown(frame.iloc[n, at])}"
        )
    if len(problems) > 20:
        problems[20:] = [f"and {len(problems) - 20} more {what}s left out"]
    return bad, problems


def _ops(frame: pd.DataFrame, where: dict) -> pd.Series:
    if "op" not in where:
        return pd.Series("all_reduce", frame.index)
    names = frame.iloc[:, where["op"][0]].fillna("").astype(str).str.strip()
    return names.map(lambda name: collective(name.replace("-", "_")) or name or "unknown")


def _joined(table: pd.DataFrame, rest: pd.DataFrame) -> pd.DataFrame:
    """Return our columns, then the others by name, as numbers where all are numbers."""
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
