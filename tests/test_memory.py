"""Explorers keep nothing of the pictures they have shown."""

import gc
import random
import weakref

import pytest
from bench_explore import explorers, figures_alive, moved
from explorers import handful

from workbench.explore.pictures import swept

WIDGETS = dict(explorers())


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self):
        self.itself = self


def test_what_a_picture_leaves_is_gone_at_its_end():
    with swept():
        left = weakref.ref(Cycle())
        assert left() is not None
    assert left() is None


def test_old_objects_are_not_gone_through_meanwhile():
    generations = []
    watch = lambda phase, info: generations.append(info["generation"])  # noqa: E731
    gc.callbacks.append(watch)
    try:
        with swept():
            kept = [[number] for number in range(100_000)]
    finally:
        gc.callbacks.remove(watch)
    assert len(kept) == 100_000
    assert set(generations) == {0, 1}


def test_collection_is_left_as_it_was():
    with pytest.raises(KeyError), swept():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with swept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of fits that a random setting makes odd
@pytest.mark.parametrize("name", handful(WIDGETS, "timeline"))
def test_no_figure_outlives_30_moves(name):
    explorer = WIDGETS[name]()
    before = figures_alive()
    assert sum(1 for _ in moved(explorer, 30, random.Random(20220425))) == 30
    assert figures_alive() <= before
    for cache in [each for each in vars(explorer).values() if hasattr(each, "cache_info")]:
        assert 0 < cache.cache_info().currsize <= cache.cache_info().maxsize <= 256
