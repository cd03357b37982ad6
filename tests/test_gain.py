"""The gain of adaptive fusion over a constant buffer: by hand, and over published traces."""

import numpy as np
import pandas as pd
import pytest

from workbench import MIB
from workbench.validation.gain import BASELINES, CLAIMED_GAIN, NOISE, fusion_gain, verdict

LINKS = pd.DataFrame(
    {"source": "made", "network": "net", "n_workers": [8, 8], "alpha": [0.0, 1e-3], "beta": 1e-9}
)


def two_gradients(nbytes):
    return pd.DataFrame({"name": ["a", "b"], "nbytes": [nbytes] * 2, "ready_s": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("nbytes", "constant_s", "adaptive_s", "verdict"),
    [
        # 0.1 s each: neither fits the buffer with the other, and each alone ends at 0.3 s
        (10**8, 0.4, 0.4, "no headroom"),
        # 0.05 s each: one message ends at 0.3 s, two at 0.25 s
        (50 * 10**6, 0.4, 0.35, "below"),
    ],
)
def test_gain_over_one_buffer_by_hand(nbytes, constant_s, adaptive_s, verdict):
    table = fusion_gain({"two": (two_gradients(nbytes), 0.3)}, LINKS[:1])
    row = table.set_index("baseline").loc["buffer 128 MiB"]
    assert (row["constant"], row["adaptive"]) == pytest.approx((0.3 / constant_s, 0.3 / adaptive_s))
    assert row["gain"] == pytest.approx(constant_s / adaptive_s - 1)
    assert row["verdict"] == verdict


def test_adaptive_is_never_worse_than_a_constant_buffer(rng):
    sizes = rng.integers(1, 20 * MIB, 30)
    ready = rng.uniform(0, 0.1, 30).cumsum()
    names = list(map(str, range(30)))
    own = pd.DataFrame({"name": names, "nbytes": sizes, "ready_s": ready})
    table = fusion_gain({"random": (own, 2 * ready[-1])}, LINKS)
    assert len(table) == 2 * len(BASELINES)
    assert (table["gain"] >= -1e-12).all()


@pytest.mark.parametrize(
    ("edge", "below", "at", "above"),
    [
        (NOISE, "no headroom", "below", "below"),
        (CLAIMED_GAIN[0], "below", "inside", "inside"),
        (CLAIMED_GAIN[1], "inside", "inside", "above"),
    ],
)
def test_verdicts_at_their_edges(edge, below, at, above):
    gains = np.array([np.nextafter(edge, 0), edge, np.nextafter(edge, 2)])
    assert verdict(gains).tolist() == [below, at, above]
    assert verdict(edge) == at
    assert verdict(-0.5) == "no headroom"


@pytest.mark.filterwarnings("ignore:all_reduce. an empty message")
def test_ticks_on_a_link_of_latency_only_lose_more_than_claimed():
    own = pd.DataFrame({"name": list("abcdefgh"), "nbytes": 1024})
    own["ready_s"] = [0.01 * k for k in range(1, 9)]
    table = fusion_gain({"many": (own, 0.2)}, LINKS[:1].assign(alpha=5.0, beta=0.0))
    row = table.set_index("baseline").loc["Horovod 128 MiB, 1 ms"]
    assert row["adaptive"] == pytest.approx(0.2 / 5.2)  # one message, after backward
    assert row["gain"] > CLAIMED_GAIN[1]
    assert row["verdict"] == "above"
