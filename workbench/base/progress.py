"""A bar of progress for what takes longer than two seconds, gone when it is done."""

import os
from collections.abc import Iterable

from tqdm.auto import tqdm


def bar(items: Iterable, what: str, total: int | None = None) -> Iterable:
    """Return the items to go through; the environment's TQDM_DISABLE keeps the bar away.

    That is tqdm's own variable, which its bar for notebooks does not heed: on a page executed
    ahead a bar would stand still where it was last seen.
    """
    off = "TQDM_DISABLE" in os.environ
    return tqdm(items, desc=what, total=total, unit=what, delay=2.0, leave=False, disable=off)
