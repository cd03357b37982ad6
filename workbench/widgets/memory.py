"""Pictures leave their garbage young: no full collection of the session's objects amid a move."""

import gc
from contextlib import contextmanager


@contextmanager
def swept():
    """Collect what is left over by a picture at its end, at once, and nothing meanwhile.

    A figure is thousands of objects in cycles. Were they collected while it is drawn, what it still
    needs would be moved among the session's old objects, and every few pictures Python would go
    through all of those, a fifth of a second or more. At the end two young collections are enough:
    the second takes what is held by what the first has freed. Does nothing but wait for its block
    where collection is switched off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)
        gc.collect(1)
