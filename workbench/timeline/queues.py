"""When messages run: one queue by recursion and in closed form, several by replay of events."""

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.checks import require
from ..base.tables import BUCKETS, check
from .replay import COMPUTE, Task, replay
from .scenario import one_each


def schedule(buckets: pd.DataFrame, seconds, launch_s=0.0, slowdown: float = 0.0) -> pd.DataFrame:
    """Return the TIMELINE of buckets sent one after another, in the table's order.

        start_k = max(R_k + f/(1+f) sum of C_j (j < k), end_{k-1}, launch_k)
        end_k = start_k + C_k

    C_k is `seconds`, launch_k the host's launch of the message (0 if unknown); each is one number
    or one per bucket, launch_s on the clock of ready_s. f is `slowdown`: while a message is in
    flight compute runs 1 + f times slower, so a message lasting C_j delays compute by f/(1+f) C_j.
    A bucket that becomes ready after all earlier messages have ended is delayed by exactly that
    sum; one that is ready sooner starts at end_{k-1} in any case. The ready_s returned are those
    of the slowed compute. This is our reconstruction of OSF's recursion, which for f = 0 is

        start_k = max(R_k, end_{k-1}, launch_k)

    Raises ValueError if lengths differ or a time is not a finite number.
    """
    check(buckets, BUCKETS, "buckets")
    ready = one_each(buckets["ready_s"], len(buckets), "ready_s of buckets")
    costs = one_each(seconds, len(buckets), "seconds")
    launches = one_each(launch_s, len(buckets), "launch_s")
    require(not (costs < 0).any(), "seconds", "costs from 0 s up", costs.min())
    starts, ends, end, lost = [], [], -np.inf, 0.0
    for ready_k, cost_k, launch_k in zip(
        ready.tolist(), costs.tolist(), launches.tolist(), strict=True
    ):
        start = max(ready_k + lost, end, launch_k)
        end = start + cost_k
        lost += slowdown / (1 + slowdown) * cost_k
        starts.append(start)
        ends.append(end)
    return on_the_clock(buckets, starts, ends, slowdown)


def on_the_clock(buckets: pd.DataFrame, start_s, end_s, slowdown: float) -> pd.DataFrame:
    """Return the TIMELINE of messages with ready times delayed like the slowed compute."""
    if slowdown:
        buckets = buckets.assign(ready_s=slowed(buckets["ready_s"], start_s, end_s, slowdown))
    return buckets.assign(start_s=start_s, end_s=end_s)


def slowed(work_s, start_s, end_s, slowdown: float) -> np.ndarray:
    """Return when compute of work_s ends while messages run from start_s to end_s.

    work_s is its time without messages. Compute begins at 0 and runs 1 + slowdown times slower
    while a message is in flight.
    """
    start, end = intervals.union(np.asarray(start_s, float), np.asarray(end_s, float))
    lost = slowdown / (1 + slowdown) * np.cumsum(end - start)
    wall = np.r_[0.0, np.column_stack([start, end]).ravel()]
    done = wall - np.r_[0.0, np.column_stack([np.r_[0.0, lost][:-1], lost]).ravel()]
    work_s = np.asarray(work_s, float)
    return np.where(work_s < done[-1], np.interp(work_s, done, wall), work_s + wall[-1] - done[-1])


def last_end(arrival_s, seconds) -> np.ndarray:
    """Return the end of the last message in closed form: max over k of (R_k + sum of C_j, j >= k).

    The recursion unrolled, which is linear in max-plus algebra. arrival_s, shape (K, ...), is
    max(R_k, launch_k); seconds, shape (K, ...), is C_k; the result has the remaining shape.
    """
    remaining = np.cumsum(np.flip(seconds, axis=0), axis=0)
    return np.max(np.flip(arrival_s, axis=0) + remaining, axis=0)


def idle(start_s, end_s, backward_end_s) -> np.ndarray:
    """Return the s after backward in which no message runs, messages in order of their starts.

    start_s and end_s have shape (K, ...), backward_end_s and the result the remaining shape.
    """
    ends = np.maximum.accumulate(np.concatenate([backward_end_s[None], end_s[:-1]]), axis=0)
    return np.maximum(0.0, start_s - ends).sum(axis=0)


def after_backward(start_s, end_s, backward_s: float, slowdown: float) -> tuple:
    """Return exposed, idle and slowed s of messages that ran from start_s to end_s, shape (K,)."""
    backward_end = np.float64(
        slowed(backward_s, start_s, end_s, slowdown) if slowdown else backward_s
    )
    order = np.argsort(start_s, kind="stable")
    waiting = float(idle(start_s[order], end_s[order], backward_end))
    after = max(0.0, float(end_s.max() - backward_end))
    return max(0.0, after - waiting), waiting, float(backward_end - backward_s)


def beyond_compute(ready_s, launch_s, seconds, backward_s, slowdown):
    """Return exposed, idle and slowed s of one queue in closed form.

        end_K = max over k of (max(R_k + f/(1+f) sum of C_j (j < k), launch_k) + sum of C_j, j >= k)

    ready_s, launch_s and seconds broadcast to (K, ...); backward_s and slowdown to the rest.
    """
    before = np.cumsum(seconds, axis=0) - seconds
    share = slowdown / (1 + slowdown)
    arrival = np.maximum(ready_s + share * before, launch_s)
    if not (np.any(slowdown) or np.any(launch_s > backward_s)):
        exposed = np.maximum(0.0, last_end(arrival, seconds) - backward_s)
        return exposed, np.zeros_like(exposed), np.zeros_like(exposed)
    start = before + np.maximum.accumulate(arrival - before, axis=0)
    left = backward_s - start + share * before  # of backward when the message starts
    lost = share * np.clip((1 + slowdown) * left, 0.0, seconds).sum(axis=0)
    waiting = idle(start, start + seconds, backward_s + lost)
    after = np.maximum(0.0, last_end(arrival, seconds) - backward_s - lost)
    return np.maximum(0.0, after - waiting), waiting, lost


def side_by_side(ready_s, latency_s, transfer_s, launch_s, n_streams: int, slowdown: float = 0.0):
    """Return start_s and end_s of messages in n_streams queues that share a link, shape (K,) each.

    Message k waits for its bucket, its launch and message k - n_streams. Its latency is
    the same whatever else runs; then, while m messages transfer, each has 1/m of the bandwidth
    (processor sharing); transfer_s is its time when alone. While any message is in flight, compute
    runs 1 + slowdown times slower, which delays the ready times. See replay.replay.
    """
    # with several types of data a later bucket may be ready first
    moments, at = np.unique(np.asarray(ready_s, float), return_inverse=True)
    work = np.diff(moments, prepend=0.0).tolist()
    columns = (np.asarray(each).tolist() for each in (latency_s, transfer_s, at, launch_s))
    messages = [
        Task(k % n_streams, latency, transfer, (ready,), launch)
        for k, (latency, transfer, ready, launch) in enumerate(zip(*columns, strict=True))
    ]
    start, end = replay([*(Task(COMPUTE, seconds) for seconds in work), *messages], slowdown)
    return start[len(work) :], end[len(work) :]
