"""A timeline step by step: which term of the maximum starts each message, and its delay."""

import numpy as np
import pandas as pd

from ..base.units import format_bytes, format_seconds

EXPLANATION = {
    "n_gradients": "gradients fused",
    "nbytes": "bytes of the message",
    "ready_s": "s since backward began, when its last gradient is ready",
    "previous_end_s": "s, end of the message before it in its queue; -inf for the first",
    "launch_s": "s, the host's launch; 0 when unknown",
    "start_s": "s, the largest of the three",
    "branch": "ready, previous or launch: the largest",
    "waited_s": "s from ready to start",
    "seconds": "s, duration of the message when alone",
    "shared_s": "s added because other messages use the link",
    "end_s": "s since backward began",
    "exposed_s": "s of the message after backward",
    "critical": "True if a later end would lengthen the iteration",
    "why": "the same in words",
}


def explain(timeline: pd.DataFrame, launch_s, seconds, backward_end_s: float, n_streams: int):
    """Return EXPLANATION, one row per bucket.

    `ready` wins a tie, then `previous`. The critical buckets are the last one to end, if it ends
    after backward, and the chain of buckets it waited for: the first of them started when it was
    ready or launched, and from then on the link was busy.
    """
    start, end = (timeline[name].to_numpy() for name in ("start_s", "end_s"))
    previous = np.r_[np.full(min(n_streams, len(end)), -np.inf), end[:-n_streams]]
    branches = np.stack([timeline["ready_s"].to_numpy(), previous, launch_s])
    # with several queues the replay adds up steps, which rounds
    rounding = 1e-12 * np.abs(end).max()
    late = start - branches <= rounding
    names = np.array(["ready", "previous", "launch"])[late.argmax(axis=0)]
    longer = end - start - seconds
    table = timeline.assign(
        previous_end_s=previous,
        launch_s=launch_s,
        branch=pd.array(names, dtype="str"),
        waited_s=np.where(names == "ready", 0.0, start - branches[0]),
        seconds=seconds,
        shared_s=np.where(longer > rounding, longer, 0.0),
        exposed_s=np.clip(end - backward_end_s, 0.0, end - start),
        critical=_critical(end, names, backward_end_s, n_streams),
    )
    words = [_words(k, row, n_streams) for k, row in enumerate(table.to_dict("records"))]
    return table.assign(why=pd.array(words, dtype="str"))[list(EXPLANATION)]


def _critical(end: np.ndarray, branch: np.ndarray, backward_end_s: float, n_streams: int):
    critical = np.zeros(len(end), dtype=bool)
    k = int(end.argmax())
    while end[k] > backward_end_s or critical.any():
        critical[k] = True
        if branch[k] != "previous":
            break
        k -= n_streams
    return critical


def _words(k: int, row: dict, n_streams: int) -> str:
    start, waited = format_seconds(row["start_s"]), format_seconds(row["waited_s"])
    because = {
        "ready": "as soon as its last gradient is ready",
        "previous": f"when message {k - n_streams} ends, {waited} after it is ready",
        "launch": f"when the host launches it, {waited} after it is ready",
    }[row["branch"]]
    parts = [
        f"message {k}, {format_bytes(row['nbytes'])}: starts at {start}, {because}",
        f"takes {format_seconds(row['end_s'] - row['start_s'])}",
    ]
    if row["shared_s"] > 0:
        parts[-1] += f", {format_seconds(row['shared_s'])} of it because it shares the link"
    exposed = format_seconds(row["exposed_s"])
    parts.append(f"{exposed} of it exposed" if row["exposed_s"] > 0 else "all of it hidden")
    return "; ".join(parts) + (" (critical)" if row["critical"] else "")
