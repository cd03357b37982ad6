from workbench.traces.readers.pairs import Pairs


def ended(*steps):
    """What each end returns, and how many intervals stay open."""
    pairs, found = Pairs(), []
    for number, (phase, lane, name) in enumerate(steps):
        if phase == "B":
            pairs.begin(lane, name, number)
        else:
            found.append(pairs.end(lane, name))
    return found, pairs.n_open


def test_an_end_without_a_name_ends_the_latest_of_its_lane():
    steps = [
        ("B", 1, "a"),
        ("B", 2, "b"),
        ("B", 1, "c"),
        ("E", 1, None),
        ("E", 1, ""),
        ("E", 2, None),
    ]
    assert ended(*steps) == ([2, 0, 1], 0)


def test_an_end_with_a_name_ends_the_latest_of_that_name():
    steps = [("B", 1, "a"), ("B", 1, "a"), ("B", 1, "b"), ("E", 1, "a"), ("E", 1, None)]
    assert ended(*steps) == ([1, 2], 1)


def test_nothing_ends_twice():
    steps = [("B", 1, "a"), ("E", 1, None), ("E", 1, "a"), ("E", 1, None), ("E", 2, "a")]
    assert ended(*steps) == ([0, None, None, None], 0)
