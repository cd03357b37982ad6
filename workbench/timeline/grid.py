"""The combinations of a sweep: arranged in blocks that send the same buckets, and computed."""

import math
from dataclasses import dataclass, replace

import numpy as np

from ..costs import LinkCost
from ..fusion import check_gradients
from ..fusion.buckets import buckets
from .queues import after_backward, beyond_compute, side_by_side
from .scenario import (
    FIELDS,
    Scenario,
    host_launches,
    latency_alone,
    seconds_alone,
    seconds_late,
    times_are_doubtful,
    times_are_possible,
)

_BLOCK = 2**18  # messages computed at once: arrays that stay in a core's cache


@dataclass(frozen=True)
class Part:
    """Rows of a sweep that send the same buckets: the input of `exposed_and_besides`.

    nbytes, ready_s and host_s have shape (K,); `numbers` holds arrays of shape (rows,) by name.
    """

    nbytes: np.ndarray
    ready_s: np.ndarray
    host_s: np.ndarray
    n_streams: int
    costs: list
    which: np.ndarray
    numbers: dict


class Grid:
    """The combinations of a sweep: for each field the position of its value in every row, `at`."""

    def __init__(self, scenario: Scenario, grid: dict):
        self.scenario = scenario
        self.values = {name: [getattr(scenario, name)] for name in FIELDS} | grid
        shape = [len(values) for values in grid.values()]
        self.n_rows = math.prod(shape)
        at = np.indices(shape).reshape(len(grid), self.n_rows) if grid else np.empty((0, 1), int)
        self.at = dict.fromkeys(FIELDS, np.zeros(self.n_rows, int))
        self.at |= dict(zip(grid, at, strict=True))

    def numbers(self, name: str) -> np.ndarray:
        """Return a field of numbers in every row."""
        return np.array(self.values[name], dtype=float)[self.at[name]]

    def jitter_s(self) -> np.ndarray:
        """Return the jitter of every row in s, computed once per jitter and number of workers."""
        values = self.values["jitter"]
        counts = np.array(self.values["n_workers"], dtype=float)
        late = np.stack([seconds_late(jitter, counts) for jitter in values])
        return late[self.at["jitter"], self.at["n_workers"]]

    def parts(self) -> list[tuple[Part, np.ndarray]]:
        """Return the rows in blocks that send the same buckets, each with its rows' positions."""
        deciding = ["gradients", "fusion", "launch_s", "n_streams", "micro_batches"]
        shape = [len(self.values[name]) for name in deciding]
        groups = np.ravel_multi_index([self.at[name] for name in deciding], shape)
        order = np.argsort(groups, kind="stable")
        cuts = np.flatnonzero(np.diff(groups[order])) + 1
        parts, checked, cut = [], {}, {}
        for rows in np.split(order, cuts):
            table, policy = (int(self.at[name][rows[0]]) for name in deciding[:2])
            mine = [self.values[name][self.at[name][rows[0]]] for name in deciding]
            gradients, fusion, launch_s, n_streams, micro_batches = mine
            if table not in checked:
                checked[table] = check_gradients(gradients)
            if (table, policy) not in cut:
                cut[table, policy] = buckets(gradients, fusion)
            sent = cut[table, policy]
            self._refuse_times(rows, gradients["ready_s"].iloc[-1], micro_batches)
            launches = host_launches(sent, launch_s)
            size = max(1, _BLOCK // len(launches))
            for low in range(0, len(rows), size):
                block = rows[low : low + size]
                parts.append((self._part(block, sent, launches, int(n_streams)), block))
        return parts

    def _part(self, rows: np.ndarray, sent: dict, launches, n_streams: int) -> Part:
        used, which = np.unique(self.at["all_reduce"][rows], return_inverse=True)
        names = ("n_workers", "overlap", "backward_s", "slowdown")
        return Part(
            sent["nbytes"],
            sent["ready_s"],
            launches,
            n_streams,
            [self.values["all_reduce"][i] for i in used.tolist()],
            which,
            {name: self.numbers(name)[rows] for name in names},
        )

    def _refuse_times(self, rows: np.ndarray, last_s: float, micro_batches: int):
        """Let Scenario refuse the first row with impossible times, or warn of a doubtful one."""
        names = ("one_worker_s", "backward_s", "fixed_s")
        one_worker_s, backward_s, fixed_s = (self.numbers(name)[rows] for name in names)
        times = one_worker_s, backward_s, micro_batches, fixed_s
        possible = times_are_possible(last_s, *times)
        doubtful = times_are_doubtful(one_worker_s, backward_s, micro_batches)
        for row in [*rows[~possible], *rows[doubtful]][:1]:
            replace(self.scenario, **{n: v[self.at[n][row]] for n, v in self.values.items()})


def exposed_and_besides(part: Part) -> tuple[np.ndarray, np.ndarray]:
    """Return exposed communication, and idle and slowed time together, of every row in s."""
    n_workers, overlap, backward_s, slowdown = part.numbers.values()
    nbytes, ready_s, host_s = (each[:, None] for each in (part.nbytes, part.ready_s, part.host_s))
    seconds = _seconds(part.costs, part.which, nbytes, n_workers)
    launch_s = np.maximum(host_s, np.where(overlap > 0, 0.0, backward_s))
    launch_s = np.where(n_workers > 1, launch_s, 0.0)
    ready_s = np.minimum(ready_s, backward_s)
    if part.n_streams == 1:
        exposed, waiting, lost = beyond_compute(ready_s, launch_s, seconds, backward_s, slowdown)
        return exposed, waiting + lost
    found = np.empty((3, len(n_workers)))
    for row, (n, f) in enumerate(zip(n_workers, slowdown, strict=True)):
        latency = latency_alone(part.costs[part.which[row]], seconds[:, row], n)
        queue = ready_s[:, row], latency, seconds[:, row] - latency, launch_s[:, row]
        start, end = side_by_side(*queue, part.n_streams, f)
        found[:, row] = after_backward(start, end, backward_s[row], f)
    return found[0], found[1] + found[2]


def _seconds(costs: list, which: np.ndarray, nbytes: np.ndarray, n_workers: np.ndarray):
    """Return the cost of each bucket in each row, s, shape (K, rows), which has costs[which].

    Links of one kind of collective are evaluated together, as messages * alpha + moved * beta.
    """
    seconds = np.empty((len(nbytes), len(n_workers)))
    kinds: dict = {}
    for i, cost in enumerate(costs):
        linear = isinstance(cost, LinkCost) and type(cost).__call__ is LinkCost.__call__
        # by identity: equal but distinct values are computed apart, and need not be hashable
        others = [(k, id(v)) for k, v in vars(cost).items() if k != "link"] if linear else [i]
        kinds.setdefault((type(cost), *others), []).append(i)
    kind = np.empty(len(costs), dtype=int)
    for number, members in enumerate(kinds.values()):
        kind[members] = number
    for number, members in enumerate(kinds.values()):
        rows = slice(None) if len(kinds) == 1 else np.flatnonzero(kind[which] == number)
        cost = costs[members[0]]
        if len(members) > 1:
            cost = _together(cost, costs, which[rows])
        seconds[:, rows] = seconds_alone(cost, nbytes, n_workers[rows])
    return seconds


def _together(cost: LinkCost, costs: list, which: np.ndarray):
    """Return the cost of rows that differ only in the link."""
    links = [getattr(each, "link", cost.link) for each in costs]
    alpha, beta = (np.array([getattr(x, n) for x in links], float) for n in ("alpha", "beta"))

    def of_rows(nbytes, n_workers):
        return cost.messages(n_workers) * alpha[which] + cost.moved(nbytes, n_workers) * beta[which]

    return of_rows
