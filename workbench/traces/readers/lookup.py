"""All-reduce look-up tables: sizes and times with a header, but no column for the workers.

File names are not read. If a bus bandwidth accompanies each time, its ratio to size/time determines
both the number of workers and the unit of time.
"""

import math

import numpy as np
import pandas as pd

from ...base.checks import refuse, require
from ...base.units import GB
from .columns import NO_WORKERS, accepted, delimited, header, quantities, whole_bytes, whole_within
from .nccl_rows import PER_SECOND, workers_by_ratio

_RATIO = (0.45, 2.05)  # busbw over algorithm bandwidth of any collective with 2 workers or more
_PLAUSIBLE = (1e6, 5e12)  # bytes/s of a link, from the slowest Ethernet to the fastest NVLink


def recognises(head: bytes) -> bool:
    """Return whether the first line that is not a comment names size and time, not workers."""
    found = quantities(header(head))
    return {"nbytes", "seconds"} <= set(found) and "n_workers" not in found


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS of an all-reduce, with `in_place_seconds` from a second column of times.

    Raises ValueError if neither the header nor bandwidths determine the units.
    """
    frame, problems = delimited(text, file)
    found = quantities(frame.columns)
    missing = " and ".join(sorted({"nbytes", "seconds"} - set(found)))
    require(not missing, file, f"columns for {missing}", found="none")
    values, said = _values(frame, found)
    problems += said
    timed = (values["time"] > 0) & np.isfinite(values["time"])
    good = timed & whole_within(values["nbytes"], 0, 2**62)
    problems += [
        f"line {number} left out: expected a time above 0 and a size of whole bytes, got size "
        f"{values['nbytes'][number]:g}, time {values['time'][number]:g}"
        for number in frame.index[~good]
    ][:20]
    require(good.any(), file, "a row with a size and a time above 0", found="none")
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


def _values(frame: pd.DataFrame, found: dict) -> tuple[pd.DataFrame, list[str]]:
    """Return nbytes, time, again (second time) and busbw (bytes/s) as numbers; remarks.

    Times are as written.
    """
    at, unit = found["nbytes"][0]
    columns = {"nbytes": at, "time": found["seconds"][0][0]}
    columns |= dict(zip(["again"], [place for place, _ in found["seconds"][1:]], strict=False))
    is_rate = [str(name).lower().startswith(("busbw", "bus_bw")) for name in frame.columns]
    columns |= {"busbw": is_rate.index(True)} if any(is_rate) else {}
    values = frame.iloc[:, list(columns.values())].set_axis(list(columns), axis=1)
    values = values.apply(pd.to_numeric, errors="coerce").astype("float64")
    nbytes, said = whole_bytes(values["nbytes"], unit or 1, frame.columns[at])
    return values.assign(nbytes=nbytes, busbw=values.get("busbw", math.nan) * GB), said


def _ticks(values: pd.DataFrame, found: dict, file: str, problems: list[str]) -> float:
    """Return units of time per second: those of the header unless bandwidths contradict it."""
    said = found["seconds"][0][1]
    if found["nbytes"][0][1] is None:
        problems.append("the sizes have no unit in the header: bytes are assumed")
    ratio = _ratio(values)
    by_busbw = [unit for unit, t in PER_SECOND.items() if _RATIO[0] < ratio / t < _RATIO[1]]
    in_header = next((unit for unit, t in PER_SECOND.items() if t == said), "")
    if by_busbw or said:
        unit = by_busbw[0] if by_busbw else in_header
        why = f"the header says {in_header}" if said else "the header names no unit"
        why += f", busbw implies {unit}" if by_busbw else ""
        problems.append(f"times are in {unit}: {why}")
        return PER_SECOND[unit]
    speed = float((values["nbytes"] / values["time"]).max())
    fits = [unit for unit, t in PER_SECOND.items() if _PLAUSIBLE[0] < speed * t < _PLAUSIBLE[1]]
    if len(fits) != 1:
        why = f"none; plausible ones are {', '.join(fits) or 'none'}"
        refuse(file, "a unit of the times", found=why, do="Write it in the header: time(us)")
    problems.append(f"times are assumed in {fits[0]}: no other unit gives a plausible speed")
    return PER_SECOND[fits[0]]


def _ratio(values: pd.DataFrame) -> float:
    """Return busbw over size/time, median of the larger half; nan without busbw."""
    large = values[values["nbytes"] >= values["nbytes"].median()]
    return float((large["busbw"] * large["time"] / large["nbytes"]).median())


def _workers(values: pd.DataFrame, ticks: float, frame: pd.DataFrame, problems: list[str]):
    ratio = _ratio(values) / ticks
    if n_workers := workers_by_ratio("all_reduce", ratio):
        problems.append(
            f"n_workers = {n_workers} follows from busbw = {ratio:.3f} size/time, assuming an "
            "all-reduce: the text does not name either"
        )
        return n_workers
    columns = ", ".join(map(str, frame.columns))
    problems.append(
        f"{NO_WORKERS}, or rename its column: found {columns}; known: {accepted('n_workers')}"
    )
    return pd.NA
