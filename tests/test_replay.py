"""Tasks in lanes: what each waits for, and what two running side by side do to each other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.timeline.replay import COMPUTE, Task, replay

repeatable = settings(deadline=None, derandomize=True, max_examples=40)


def test_a_lane_runs_one_task_after_another():
    start, end = replay([Task("a", 2.0), Task("a", 1.0)])
    assert (start.tolist(), end.tolist()) == ([0, 2], [2, 3])


def test_a_task_waits_for_others_and_for_its_release():
    tasks = [Task(COMPUTE, 2.0), Task("a", 1.0, after=(0,)), Task("b", 1.0, release_s=5.0)]
    assert replay(tasks)[0].tolist() == [0, 2, 5]


def test_compute_is_slowed_while_a_message_flies():
    # the message flies from 1 to 3; 1 s of compute before, 2/1.5 s in it, 5/3 s after it
    tasks = [Task(COMPUTE, 4.0), Task("a", 0.5, 1.5, release_s=1.0)]
    assert replay(tasks, slowdown=0.5)[1].tolist() == pytest.approx([3 + 5 / 3, 3])


def test_three_transfers_get_a_third_each():
    _, end = replay([Task(lane, 0.0, 1.0) for lane in "abc"])
    assert end.tolist() == pytest.approx([3, 3, 3])


def test_tasks_that_take_no_time_end_when_they_start():
    start, end = replay([Task("a", 0.0), Task("a", 0.0, after=(0,)), Task("a", 1.0)])
    assert (start.tolist(), end.tolist()) == ([0, 0, 0], [0, 0, 1])


@st.composite
def graphs(draw):
    """Tasks of latency only, in three lanes, each waiting for some of those before it."""
    tasks = []
    for number in range(draw(st.integers(1, 12))):
        after = draw(st.lists(st.integers(0, max(0, number - 1)), max_size=3)) if number else []
        lane = draw(st.sampled_from([COMPUTE, "a", "b"]))
        tasks.append(Task(lane, draw(st.floats(0, 5)), 0.0, tuple(after), draw(st.floats(0, 5))))
    return tasks


@repeatable
@given(graphs())
def test_without_sharing_each_task_starts_with_the_last_it_waits_for(tasks):
    # the longest path: in the order given every task comes after all that it waits for
    ends, free = [], {}
    for task in tasks:
        begin = max([task.release_s, free.get(task.lane, 0.0), *(ends[k] for k in task.after)])
        ends.append(begin + task.seconds)
        free[task.lane] = ends[-1]
    np.testing.assert_allclose(replay(tasks)[1], ends, atol=1e-9)
