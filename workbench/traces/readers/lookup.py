"""All-reduce look-up tables: sizes and times with a header, but no column for the workers.

Such files state the workers in their names alone, which are no source; but where a bus bandwidth
stands beside each time, its ratio to size/time tells both the number of workers and the unit.
"""

import math

import numpy as np
import pandas as pd

from ...base.units import GB
from .columns import NO_WORKERS, accepted, delimited, header, quantities, whole_bytes
from .nccl_rows import workers_told

_TICKS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_RATIO = (0.45, 2.05)  # busbw over algorithm bandwidth of any collective with 2 workers or more
_PLAUSIBLE = (1e6, 5e12)  # bytes/s of a link, from the slowest Ethernet to the fastest NVLink


def recognises(head: bytes) -> bool:
    """Return whether the first line that is not a comment names size and time, not workers."""
    found = quantities(header(head))
    return {"nbytes", "seconds"} <= set(found) and "n_workers" not in found


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS of an all-reduce, with `in_place_seconds` from a second column of times.

    Raises ValueError when units are neither written in the header nor told by bandwidths.
    """
    frame, problems = delimited(text, file)
    found = quantities(frame.columns)
    if missing := {"nbytes", "seconds"} - set(found):
        raise ValueError(f"{file}: no column for {' and '.join(sorted(missing))}")
    values, said = _values(frame, found)
    problems += said
    timed = (values["time"] > 0) & np.isfinite(values["time"])
    sized = (values["nbytes"] >= 0) & (values["nbytes"] < 2**62) & (values["nbytes"] % 1 == 0)
    good = timed & sized
    problems += [
        f"line {number} left out: expected {_wanted(timed[number], sized[number])}, got size "
        f"{values['nbytes'][number]:g}, time {values['time'][number]:g}"
        for number in frame.index[~good]
    ][:20]
    if not good.any():
        raise ValueError(f"{file}: no row with a size and a time above 0")
    values = values[good]
    ticks = _ticks(values, found, file, problems)
    n_workers = _workers(values, ticks, frame, problems)
    table = pd.DataFrame(
        {
            "op": "all_reduce",
            "n_workers": pd.array([n_workers] * len(values), dtype="Int64"),
            "n_nodes": pd.array([pd.NA] * len(values), dtype="Int64"),
            "nbytes": values["nbytes"].astype("int64"),
            "seconds": values["time"] / ticks,
        }
    )
    if "again" in values:
        table = table.assign(in_place_seconds=values["again"].where(values["again"] > 0) / ticks)
    return table.reset_index(drop=True), problems


def _wanted(timed: bool, sized: bool) -> str:
    return " and ".join(["a time above 0"] * (not timed) + ["a size of whole bytes"] * (not sized))


def _values(frame: pd.DataFrame, found: dict) -> tuple[pd.DataFrame, list[str]]:
    """nbytes, time (as written), again (a second time) and busbw (bytes/s), as numbers; remarks."""
    at, unit = found["nbytes"][0]
    columns = {"nbytes": at, "time": found["seconds"][0][0]}
    names = [str(name).lower() for name in frame.columns]
    if len(found["seconds"]) > 1:
        columns["again"] = found["seconds"][1][0]
    if rates := [n for n, name in enumerate(names) if name.startswith(("busbw", "bus_bw"))]:
        columns["busbw"] = rates[0]
    numbers = {
        name: pd.to_numeric(frame.iloc[:, at], errors="coerce").astype("float64")
        for name, at in columns.items()
    }
    nbytes, said = whole_bytes(numbers["nbytes"], unit or 1, frame.columns[at])
    values = pd.DataFrame(numbers).assign(nbytes=nbytes)
    return (values.assign(busbw=values["busbw"] * GB) if "busbw" in values else values), said


def _ticks(values: pd.DataFrame, found: dict, file: str, problems: list[str]) -> float:
    """Return units of the times per second: of the header unless bandwidths contradict it."""
    said = found["seconds"][0][1]
    if found["nbytes"][0][1] is None:
        problems.append("the sizes have no unit in the header: taken for bytes")
    ratio = _ratio(values)
    told = [t for t in _TICKS.values() if _RATIO[0] < ratio / t < _RATIO[1]]
    names = {ticks: name for name, ticks in _TICKS.items()}
    if told or said:
        ticks = told[0] if told else said
        header_says = f"the header says {names[said]}" if said else "the header does not say it"
        busbw_says = f", the busbw beside them {names[ticks]}" if told else ""
        problems.append(f"times are in {names[ticks]}: {header_says}{busbw_says}")
        return ticks
    speed = float((values["nbytes"] / values["time"]).max())
    fits = [t for t in _TICKS.values() if _PLAUSIBLE[0] < speed * t < _PLAUSIBLE[1]]
    if len(fits) != 1:
        units = ", ".join(names[t] for t in fits) or "none"
        raise ValueError(
            f"{file}: the times have no unit in the header and their size leaves several open "
            f"({units}). Write it in the header, such as time(us)"
        )
    problems.append(f"times are taken for {names[fits[0]]}: no other unit gives a plausible speed")
    return fits[0]


def _ratio(values: pd.DataFrame) -> float:
    """Return busbw over size/time, median of the larger half; nan without busbw."""
    if "busbw" not in values:
        return math.nan
    large = values[values["nbytes"] >= values["nbytes"].median()]
    return float((large["busbw"] * large["time"] / large["nbytes"]).median())


def _workers(values: pd.DataFrame, ticks: float, frame: pd.DataFrame, problems: list[str]):
    ratio = _ratio(values) / ticks
    if n_workers := workers_told("all_reduce", ratio):
        problems.append(
            f"n_workers = {n_workers} follows from busbw = {ratio:.3f} size/time, taking the table "
            "for an all-reduce's: the text does not say either"
        )
        return n_workers
    columns = ", ".join(map(str, frame.columns))
    problems.append(
        f"{NO_WORKERS}, or rename its column: found {columns}; known are {accepted('n_workers')}"
    )
    return pd.NA
