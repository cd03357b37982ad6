"""A sentence in place of a result that a recording cannot provide."""

from collections.abc import Callable


class Absent(str):
    """A sentence in place of a result: why there is none. It counts as false."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return str(self)


def or_why(compute: Callable, *args, **kwargs):
    """Return the result of `compute`, or its ValueError or missing file as Absent.

    or_why(scenario_of, run, cost, 8, DDPBuckets()) or another_scenario
    """
    try:
        return compute(*args, **kwargs)
    except (FileNotFoundError, ValueError) as error:
        return Absent(error)
