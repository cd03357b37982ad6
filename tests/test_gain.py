"""The gain of adaptive fusion over a constant buffer: by hand, and over published traces."""

import pandas as pd
import pytest

from workbench import MIB
from workbench.validation.gain import BASELINES, CLAIMED, fusion_gain

LINKS = pd.DataFrame(
    {"source": "made", "network": "net", "n_workers": [8, 8], "alpha": [0.0, 1e-3], "beta": 1e-9}
)


def two_gradients(nbytes):
    return pd.DataFrame({"name": ["a", "b"], "nbytes": [nbytes] * 2, "ready_s": [0.1, 0.2]})


def test_gain_over_one_buffer_by_hand():
    # two gradients of 10**8 bytes, 0.1 s each: both in one buffer end at 0.4 s, each alone at 0.3 s
    table = fusion_gain({"two": (two_gradients(10**8), 0.3)}, LINKS[:1])
    table = table.set_index("baseline")
    assert table.loc["buffer 128 MiB", "constant"] == pytest.approx(0.3 / 0.4)  # neither fits both
    assert table.loc["buffer 128 MiB", "adaptive"] == pytest.approx(0.3 / 0.4)


def test_a_buffer_that_holds_all_starts_late():
    nbytes = 50 * 10**6  # 0.05 s each: one message ends at 0.3 s, two at 0.25 s
    row = fusion_gain({"two": (two_gradients(nbytes), 0.3)}, LINKS[:1]).set_index("baseline")
    row = row.loc["buffer 128 MiB"]
    assert (row["constant"], row["adaptive"]) == pytest.approx((0.3 / 0.4, 0.3 / 0.35))
    assert row["gain"] == pytest.approx(0.4 / 0.35 - 1)
    assert row["verdict"] == "below"


def test_adaptive_is_never_worse_than_a_constant_buffer(rng):
    sizes = rng.integers(1, 20 * MIB, 30)
    ready = rng.uniform(0, 0.1, 30).cumsum()
    names = list(map(str, range(30)))
    own = pd.DataFrame({"name": names, "nbytes": sizes, "ready_s": ready})
    table = fusion_gain({"random": (own, 2 * ready[-1])}, LINKS)
    assert len(table) == 2 * len(BASELINES)
    assert (table["gain"] >= -1e-12).all()


@pytest.mark.parametrize(
    ("message_s", "verdict"), [(0.001, "no headroom"), (0.05, "below"), (0.1, "inside")]
)
def test_verdicts_compare_with_the_claim(message_s, verdict):
    # T1 = backward = 0.2 s; one message ends 2 c after it, two end c after it
    links = LINKS[:1].assign(beta=message_s / 50e6)
    table = fusion_gain({"two": (two_gradients(50 * 10**6), 0.2)}, links).set_index("baseline")
    row = table.loc["buffer 128 MiB"]
    assert row["gain"] == pytest.approx((0.2 + 2 * message_s) / (0.2 + message_s) - 1)
    assert row["verdict"] == verdict


@pytest.mark.filterwarnings("ignore:all_reduce. an empty message")
def test_ticks_on_a_link_of_latency_only_lose_more_than_claimed():
    own = pd.DataFrame({"name": list("abcdefgh"), "nbytes": 1024})
    own["ready_s"] = [0.01 * k for k in range(1, 9)]
    table = fusion_gain({"many": (own, 0.2)}, LINKS[:1].assign(alpha=5.0, beta=0.0))
    row = table.set_index("baseline").loc["Horovod 128 MiB, 1 ms"]
    assert row["adaptive"] == pytest.approx(0.2 / 5.2)  # one message, after backward
    assert row["gain"] > CLAIMED[1]
    assert row["verdict"] == "above"
