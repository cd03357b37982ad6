"""Iterations over placements: both models by hand, and what fits recover."""

import numpy as np
import pandas as pd
import pytest

from workbench import MIB
from workbench.costs import Link, Ring
from workbench.fusion import DDPBuckets, fuse
from workbench.timeline import NormalJitter, Scenario, predict
from workbench.validation.cells import evenly_ready, one_link_or_own, summary, validate_pollux
from workbench.validation.pollux import (
    Cluster,
    Placed,
    PolluxModel,
    fit_placements,
    fit_pollux,
    fitted_parameters,
)

PLACES = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 6), (2, 8), (3, 3), (3, 9), (4, 4), (4, 16), (8, 32)]
LINK = Cluster(alpha=1e-4, inside=4e-10, pair=2e-9, between=1.5e-9)


def evenly(n, nbytes):
    return evenly_ready(pd.DataFrame({"name": list(map(str, range(n))), "nbytes": nbytes}), 1.0)


GRADIENTS = {"wide": evenly(20, 8 * MIB), "small": evenly(12, 9 * MIB)}


def by_scenario(gradients, n_nodes, n_workers, compute_s, backward, jitter):
    """Tn of one placement by the recursion of timeline, nothing of pollux in it."""
    beta = {1: LINK.inside, 2: LINK.pair}.get(n_nodes, LINK.between)
    cost = Ring(Link(LINK.alpha if n_nodes > 1 else 0.0, beta))
    backward_s = backward * compute_s
    own = gradients.assign(ready_s=gradients["ready_s"] * backward_s)
    late = NormalJitter(jitter * compute_s)
    scenario = Scenario(
        own, compute_s, backward_s, n_workers, cost, DDPBuckets(), jitter=late if jitter else None
    )
    return predict(scenario).iteration_s


@pytest.fixture(scope="module")
def synthetic():
    own = {"wide": (0.6, 0.02), "small": (0.7, 0.01)}
    rows = [
        (name, nodes, n, batch, by_scenario(GRADIENTS[name], nodes, n, 0.01 * batch, *own[name]))
        for name in own
        for nodes, n in PLACES
        for batch in (4, 32)
    ]
    table = pd.DataFrame(rows, columns=["application", "n_nodes", "n_workers", "batch", "step_s"])
    return table.assign(sync_s=table["step_s"] - 0.01 * table["batch"])


@pytest.fixture(scope="module")
def revalidated(synthetic):
    return validate_pollux(synthetic, GRADIENTS)


def test_iterations_are_those_of_a_scenario():
    compute = pd.Series([0.05, 0.3], index=[4, 30])
    placed = Placed(LINK, fuse(GRADIENTS["wide"], DDPBuckets()), compute, 0.6, 0.02)
    for nodes, n in PLACES:
        expected = by_scenario(GRADIENTS["wide"], nodes, n, 0.3, 0.6, 0.02)
        assert placed([nodes], [n], [30])[0] == pytest.approx(expected, rel=1e-12)


def test_fit_recovers_the_link_that_two_applications_share(synthetic):
    found = fitted_parameters(fit_placements(synthetic, GRADIENTS))
    for name in ("alpha", "inside", "pair", "between"):
        assert found[name].tolist() == pytest.approx([getattr(LINK, name)] * 2, rel=1e-3)
    assert found["backward"].to_dict() == pytest.approx({"wide": 0.6, "small": 0.7}, rel=1e-3)
    assert found["jitter"].to_dict() == pytest.approx({"wide": 0.02, "small": 0.01}, rel=1e-2)


@pytest.mark.parametrize(
    ("gamma", "placement", "expected"),
    [
        (1.0, (1, 1), 0.3),  # T_grad = 0.1 + 0.02 * 10
        (1.0, (1, 2), 0.3 + 0.05),
        (1.0, (1, 4), 0.3 + 0.05 + 2 * 0.01),
        (1.0, (4, 6), 0.3 + 0.4 + 4 * 0.03),
        (2.0, (2, 2), 0.5),  # 0.3 and 0.4 at right angles
    ],
)
def test_the_model_of_pollux_by_hand(gamma, placement, expected):
    model = PolluxModel(0.1, 0.02, 0.4, 0.03, 0.05, 0.01, gamma)
    assert model(*placement, 10) == pytest.approx(expected, rel=1e-12)


def test_fit_of_pollux_comes_back_to_times_that_it_made(rng):
    places = np.array([(*p, b) for p in PLACES for b in (4, 8, 16, 32)])
    known = PolluxModel(0.1, 0.02, 0.4, 0.004, 0.05, 0.0005, 1.4)
    rows = pd.DataFrame(places, columns=["n_nodes", "n_workers", "batch"])
    noise = np.exp(0.02 * rng.standard_normal((2, len(rows))))
    rows = rows.assign(application="one", step_s=known(*places.T) * noise[0])
    rows["sync_s"] = rows["step_s"] - known.compute_s(rows["batch"]) * noise[1]
    # 2 % of noise, and what keeps gamma and the betas small, move the times by a few per cent
    found = fit_pollux(rows)
    np.testing.assert_allclose(found(*places.T), known(*places.T), rtol=0.04)


def test_iterations_made_by_osf_are_predicted_by_it_from_few_nodes(synthetic):
    one = synthetic[synthetic["application"] == "wide"]
    table = validate_pollux(one, GRADIENTS)
    found = summary(table).set_index("method")
    assert found.loc["OSF", "mean_absolute"] < 1e-3 < found.loc["Pollux", "mean_absolute"]
    # Rows beyond 4 nodes move no prediction.
    changed = one.assign(step_s=one["step_s"].mask(one["n_nodes"] > 4, 9.0))
    again = validate_pollux(changed, GRADIENTS)["predicted"]
    assert table["predicted"].tolist() == again.tolist()


@pytest.mark.all
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_one_link_is_as_good_as_own_ones_only_where_applications_share_it(synthetic, factor):
    slower = synthetic["step_s"].where(
        synthetic["application"] == "wide", factor * synthetic["step_s"]
    )
    errors = one_link_or_own(synthetic.assign(step_s=slower), GRADIENTS).xs("OSF", level=1)
    cases = [
        f"{case}, {link}" for case in ("from 4", "4 from 3") for link in ("one link", "own links")
    ]
    assert list(errors.columns) == cases
    if factor == 1.0:
        assert errors.max().max() < 0.01
    else:
        assert errors.loc["wide", "from 4, own links"] < 0.01  # whatever happens to the other
        assert errors.loc["wide", "from 4, one link"] > 0.1
