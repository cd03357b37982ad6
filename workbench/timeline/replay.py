"""Compute and messages event by event: tasks in lanes wait for each other and share a link."""

from dataclasses import dataclass

import numpy as np

from ..base.checks import require

COMPUTE = "compute"


@dataclass(frozen=True)
class Task:
    """Something that takes time: compute in the lane COMPUTE, else a message in a queue.

    lane : tasks of a lane run one after another, in the order given
    seconds : s of compute when no message is in flight, or the latency of a message, which other
        messages do not change
    transfer_s : s of the rest of a message when it is alone on the link
    after : numbers of the tasks that end before it starts
    release_s : s before which it does not start
    """

    lane: object
    seconds: float
    transfer_s: float = 0.0
    after: tuple = ()
    release_s: float = 0.0


def replay(tasks: list[Task], slowdown: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each task, s, shape (len(tasks),) each.

    While m messages transfer, each has 1/m of the bandwidth (processor sharing); while any message
    is in flight, in its latency or transferring, compute runs 1 + slowdown times slower. These
    rates change only where a task starts, ends or ends its latency, so going from one such moment
    to the next is exact. Raises ValueError if tasks wait for each other.
    """
    queues: dict = {}  # lane -> numbers of its tasks
    for number, task in enumerate(tasks):
        queues.setdefault(task.lane, []).append(number)
    queues = {lane: iter(numbers) for lane, numbers in queues.items()}
    heads = {lane: next(queue) for lane, queue in queues.items()}
    running: dict = {}  # lane -> [seconds left, transfer_s left]
    start, end = np.full(len(tasks), np.nan), np.full(len(tasks), np.nan)
    over, now = [False] * len(tasks), 0.0
    while heads:
        rates = _rates(running, slowdown)
        steps = {
            lane: _until_event(running[lane], rates[lane])
            if lane in running
            else _until_start(tasks[number], over, now)
            for lane, number in heads.items()
        }
        lane = min(steps, key=steps.get)
        step, number = steps[lane], heads[lane]
        waiting = f"tasks {sorted(heads.values())} that never start"
        require(step < np.inf, "tasks", "tasks that do not wait for each other", found=waiting)
        now += step
        to_transfer = lane in running and all(running[lane])
        _pass(running, rates, step)
        if to_transfer:
            running[lane][0] = 0.0  # the latency is over, to the last bit
        elif lane in running:
            end[number], over[number] = now, True
            del running[lane]
            heads[lane] = next(queues[lane], None)
            if heads[lane] is None:
                del heads[lane]
        else:
            start[number] = now
            running[lane] = [tasks[number].seconds, tasks[number].transfer_s]
    return start, end


def _pass(running: dict, rates: dict, step: float):
    """Subtract the work done in `step` s from the work left of each running task."""
    for lane, left in running.items():
        part = 0 if left[0] else 1
        left[part] = max(0.0, left[part] - step * rates[lane])


def _rates(running: dict, slowdown: float) -> dict:
    """Return the s of work per s of each running task."""
    messages = [left for lane, left in running.items() if lane != COMPUTE]
    transferring = sum(1 for left in messages if not left[0])
    compute = 1 / (1 + slowdown) if messages else 1.0
    return {
        lane: compute if lane == COMPUTE else 1.0 if left[0] else 1 / transferring
        for lane, left in running.items()
    }


def _until_event(left: list, rate: float) -> float:
    return (left[0] or left[1]) / rate


def _until_start(task: Task, over: list, now: float) -> float:
    waits = not all(over[number] for number in task.after)
    return np.inf if waits else max(0.0, task.release_s - now)
