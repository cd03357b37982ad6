"""Each factor alone moves the scaling factor as its closed form says, and nothing else changes."""

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Link, Ring
from workbench.fusion import OneMessage, PerTensor
from workbench.timeline import Scenario, predict
from workbench.whatif import factors
from workbench.whatif.one_at_a_time import FACTORS, VARIED

SIZES, READY = [6_000_000, 1_000_000, 3_000_000], [0.02, 0.05, 0.1]
LINK, N, T1 = Link(1e-4, 1e-9), 8, 0.2


def scenario(**changes):
    gradients = pd.DataFrame({"name": list("abc"), "nbytes": SIZES, "ready_s": READY})
    plain = {
        "gradients": gradients,
        "one_worker_s": T1,
        "backward_s": 0.1,
        "n_workers": N,
        "all_reduce": Ring(LINK),
        "fusion": OneMessage(),
    }
    return Scenario(**(plain | changes))


LATENCY_S = 2 * (N - 1) * LINK.alpha
MOVED_S = 2 * (N - 1) / N * sum(SIZES) * LINK.beta


def curve(factor, values, **changes):
    table = factors(scenario(**changes), {factor: values})
    return table.set_index("value")["scaling_factor"]


@pytest.mark.parametrize(
    ("factor", "by_hand"),
    [  # one message after backward: T1 and its cost, each changed by the factor
        ("bandwidth", lambda x: T1 / (T1 + LATENCY_S + MOVED_S / x)),
        ("latency", lambda x: T1 / (T1 + LATENCY_S * x + MOVED_S)),
        ("batch", lambda x: T1 * x / (T1 * x + LATENCY_S + MOVED_S)),
        ("GPU speed", lambda x: T1 / x / (T1 / x + LATENCY_S + MOVED_S)),
    ],
)
def test_a_factor_moves_one_message_as_its_formula_says(factor, by_hand):
    values = np.array([0.25, 1.0, 4.0])
    np.testing.assert_allclose(curve(factor, values), by_hand(values), rtol=1e-12)


def test_stragglers_of_two_workers_cost_their_expected_maximum():
    # E[max of 2 normals] = sigma / sqrt(pi): David and Nagaraja, Order Statistics, section 2.1
    found = curve("stragglers", [0.0, 0.1], n_workers=2)
    exposed_s = 2 * LINK.alpha + sum(SIZES) * LINK.beta
    late_s = 0.1 * T1 / np.sqrt(np.pi)
    assert found[0.1] == pytest.approx(T1 / (T1 + exposed_s + late_s), rel=1e-8)
    assert found[0.0] == pytest.approx(T1 / (T1 + exposed_s), rel=1e-12)


def test_the_largest_gradient_grows_at_the_cost_of_the_others():
    vary, unit = VARIED["largest gradient"]
    assert unit == "share of all bytes"
    table = factors(scenario(), {"largest gradient": []})
    assert table["value"].tolist() == pytest.approx([0.6])  # the present share
    sizes = vary(scenario(), 0.8).gradients["nbytes"].tolist()
    assert sizes == [8_000_000, 500_000, 1_500_000]


def test_one_message_of_all_does_not_see_how_bytes_are_spread():
    found = curve("largest gradient", [0.5, 0.6, 0.9])
    assert found.nunique() == 1


def test_a_large_gradient_that_is_ready_last_hurts_and_one_ready_first_does_not():
    gradients = scenario().gradients
    last = gradients.assign(nbytes=SIZES[::-1])
    early = curve("largest gradient", [0.5, 0.9], fusion=PerTensor())
    late = curve("largest gradient", [0.5, 0.9], fusion=PerTensor(), gradients=last)
    assert late[0.9] < late[0.5]
    assert early[0.9] > early[0.5]


def test_the_scenario_itself_is_in_every_curve():
    table = factors(scenario(fusion=PerTensor()))
    assert set(table["factor"]) == set(VARIED)
    assert list(table) == list(FACTORS)
    now = table[table["as_it_is"]]
    assert len(now) == len(VARIED)
    expected = predict(scenario(fusion=PerTensor())).scaling_factor
    np.testing.assert_array_equal(now["scaling_factor"], expected)


def test_values_run_in_order_and_move_the_factor_one_way():
    table = factors(scenario(fusion=PerTensor()))
    for factor, sign in (("bandwidth", 1), ("latency", -1), ("batch", 1), ("GPU speed", -1)):
        moved = np.diff(table.loc[table["factor"] == factor, "scaling_factor"])
        assert (sign * moved >= -1e-12).all(), factor


def test_a_lone_gradient_has_all_bytes_at_every_value():
    table = factors(scenario(gradients=scenario().gradients.tail(1)))
    assert table.loc[table["factor"] == "largest gradient", "value"].tolist() == [1.0]
