"""Ways of cutting the backward order into messages, on plain arrays; policies give them names.

Gradients are numbered in the order backward makes them. Each function returns lists of members, one
per message in sending order, or the position of each message's first gradient.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator

import numpy as np

_ROWS = 64  # rows of a block of the optimum's triangle: few calls of the cost, little waste


def close_after(sizes: list, limits: tuple, kinds: list) -> list[list[int]]:
    """Cut after the gradient that brings a bucket to its limit; each kind has its own buckets.

    The k-th bucket of a kind has the k-th limit, later ones the last. Buckets come in the order
    they close; those still open at the end follow in the order of their first gradients.
    """
    closed, waiting, held, counts = [], {}, Counter(), Counter()
    for member, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        waiting.setdefault(kind, []).append(member)
        held[kind] += size
        if held[kind] >= limits[min(counts[kind], len(limits) - 1)]:
            closed.append(waiting.pop(kind))
            counts[kind] += 1
            held[kind] = 0
    return closed + list(waiting.values())


def fill_before(sizes: list, ready: list, limit: float, timeout_s: float) -> tuple[list, list]:
    """Return each bucket's first gradient and launch, cutting before the limit is exceeded.

    A gradient that would exceed the limit, or is ready more than timeout_s after the first of the
    bucket, opens the next. A bucket cut by time leaves at its time-out, others with their last
    gradient.
    """
    first, launches, held = [0], [], 0
    for member, size in enumerate(sizes):
        late = ready[member] > ready[first[-1]] + timeout_s
        if member > first[-1] and (late or held + size > limit):
            launches.append(ready[first[-1]] + timeout_s if late else ready[member - 1])
            first.append(member)
            held = 0
        held += size
    return first, [*launches, ready[-1]]


def fill_after(sizes: list, ready: list, limit: float, timeout_s: float) -> tuple[list, list]:
    """Return each bucket's first gradient and launch, cutting after the limit is reached.

    A bucket closes with the gradient that brings it to the limit, or that is ready timeout_s or
    more after the bucket before closed (after backward began, for the first).
    """
    first, launches, held, closed_s = [], [], 0, 0.0
    for member, size in enumerate(sizes):
        if len(launches) == len(first):
            first.append(member)
        held += size
        if held >= limit or ready[member] - closed_s >= timeout_s:
            launches.append(ready[member])
            held, closed_s = 0, ready[member]
    return first, (launches + [ready[-1]])[: len(first)]


def pack(batch, sizes: list, limit: float, kinds: list) -> Iterator[list[int]]:
    """Pack a batch as Horovod's FuseResponses does, closing before the limit is exceeded.

    A gradient that does not fit is skipped, and later ones may still join, while bytes held and
    skipped together stay within the limit; then the skipped go back to the front. With one kind
    nothing is ever skipped, since a gradient that does not fit exceeds the limit. A gradient above
    the limit travels alone. Source: horovod/common/controller.cc, FuseResponses.
    """
    waiting = deque(batch)
    while waiting:
        members, skipped = [waiting.popleft()], []
        held, passed_over = sizes[members[0]], 0
        while waiting:
            size = sizes[waiting[0]]
            if kinds[waiting[0]] == kinds[members[0]] and held + size <= limit:
                members.append(waiting.popleft())
                held += size
                continue
            passed_over += size
            if held + passed_over > limit:
                break
            skipped.append(waiting.popleft())
        waiting.extendleft(reversed(skipped))
        yield members


def cycles(
    enqueued: np.ndarray,
    ready: np.ndarray,
    packed: Callable,
    cycle_s: float,
    phase_s: float,
    negotiation_s: float,
    blocks: bool,
) -> tuple[list[list[int]], list[float]]:
    """Return the messages of a background thread that wakes in cycles, and when it launches each.

    At a tick the thread packs everything enqueued. If it blocks, it waits before each message
    until the last member is ready, and the next tick is not before the last of these waits ends.
    Ticks fall on phase_s + k cycle_s until a wait moves them; a cycle of 0 ticks at every gradient.
    """
    order = np.argsort(enqueued, kind="stable")
    host = enqueued[order]
    messages, launches, done, tick = [], [], 0, phase_s
    while done < len(order):
        if messages == [] or host[done] > tick:  # the thread ticked while nothing was enqueued
            passed = math.ceil((host[done] - tick) / cycle_s) if cycle_s else 0
            tick = max(host[done], tick + passed * cycle_s if cycle_s else -np.inf)
        now = int(np.searchsorted(host, tick, side="right"))
        time = tick + negotiation_s
        for members in packed(order[done:now].tolist()):
            time = max(time, float(ready[members].max())) if blocks else time
            messages.append(members)
            launches.append(time)
        done, tick = now, max(tick + cycle_s, time)
    return messages, launches


def merge(ready: np.ndarray, sizes: np.ndarray, price: Callable) -> np.ndarray:
    """Return each message's first gradient by the rule of MG-WFBP.

    From the first gradient on, the next joins the open message if it is ready before that
    message ends, and either the message has not started by then or it would have run for less
    time than joining saves, C(a) + C(b) - C(a + b), which is alpha for an alpha-beta cost.
    Source: the rule of HKBU-HPML/MG-WFBP, distributed_optimizer.py, restated for any cost.
    """
    alone = price(sizes).tolist()
    first, held, start, cost, free = [0], int(sizes[0]), float(ready[0]), alone[0], -np.inf
    rows = zip(ready[1:].tolist(), sizes[1:].tolist(), alone[1:], strict=True)
    for member, (ready_s, size, own) in enumerate(rows, start=1):
        end = start + cost
        joined = float(price(np.array([held + size]))[0]) if ready_s < end else np.inf
        if ready_s < end and (start > ready_s or ready_s - start < cost + own - joined):
            held, cost, start = held + size, joined, max(free, ready_s)
        else:
            first.append(member)
            held, cost, start, free = size, own, max(end, ready_s), end
    return np.array(first)


def optimum(ready: np.ndarray, sizes: np.ndarray, price: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Return each message's first gradient in the best grouping, and the earliest ends E(1..L).

        E(i) = min over j <= i of max(E(j - 1), R_i) + C(S(j..i)),        E(0) = -inf

    Exact over all consecutive groupings on one serial queue, for any cost, since a queue that is
    free earlier is never worse. O(L^2) costs, priced in blocks. Ties go to the longest message.
    """
    n, sums = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    ends, best = np.full(n + 1, -np.inf), np.zeros(n, dtype="int64")
    for low in range(0, n, _ROWS):
        high = min(low + _ROWS, n)
        held = np.maximum(sums[low + 1 : high + 1, None] - sums[None, :high], 0)
        costs = price(held.ravel()).reshape(held.shape)
        for i in range(low, high):
            total = np.maximum(ends[: i + 1], ready[i]) + costs[i - low, : i + 1]
            best[i] = total.argmin()
            ends[i + 1] = total[best[i]]
    first = [int(best[n - 1])]
    while first[-1] > 0:
        first.append(int(best[first[-1] - 1]))
    return np.array(first[::-1]), ends[1:]


def fewest(
    ready: np.ndarray, sizes: np.ndarray, price: Callable, deadline_s: float, most: int = 64
) -> np.ndarray | None:
    """Return each message's first gradient for the fewest messages that end by deadline_s.

    E_k(i), the earliest end of gradients 1 to i in k messages, follows from E_{k-1} as in
    `optimum`; the first k with E_k(L) <= deadline_s is used, with its earliest grouping. None
    if `most` messages are not enough. O(L^2) per message, with all costs in memory at once.
    """
    n, sums = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    held = np.maximum(sums[1:, None] - sums[None, :-1], 0)  # [i, j]: bytes of gradients j to i
    costs = np.where(np.tri(n, dtype=bool), price(held.ravel()).reshape(n, n), np.inf)
    before, choices = np.append(-np.inf, np.full(n - 1, np.inf)), []
    for _ in range(most):
        total = np.maximum(before[None, :], ready[:, None]) + costs
        choices.append(total.argmin(axis=1))
        ends = total[np.arange(n), choices[-1]]
        if ends[-1] <= deadline_s:
            first, i = [], n - 1
            for best in reversed(choices):
                first.append(int(best[i]))
                i = first[-1] - 1
            return np.array(first[::-1])
        before = np.append(np.inf, ends[:-1])
    return None
