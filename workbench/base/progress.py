"""A progress bar for what takes longer than two seconds; it disappears at the end."""

import os
from collections.abc import Iterable

from tqdm.auto import tqdm


def bar(items: Iterable, what: str, total: int | None = None) -> Iterable:
    """Return the items with a progress bar, unless TQDM_DISABLE is set in the environment.

    tqdm's bar for notebooks ignores that variable, and a page executed in advance would keep the
    bar as last drawn.
    """
    off = "TQDM_DISABLE" in os.environ
    return tqdm(items, desc=what, total=total, unit=what, delay=2.0, leave=False, disable=off)
