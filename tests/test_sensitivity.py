"""Elasticities: by hand, against finite differences of the prediction, and against autograd."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_whatif import MB, scenario

from workbench import KIB
from workbench.costs import Affine, Hierarchical, Interpolated, Link, Piecewise, Ring
from workbench.fits import fit_all_reduce
from workbench.fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    OneMessage,
    PerTensor,
)
from workbench.timeline import Scenario, predict
from workbench.whatif import Compression, FasterLink, Together, sensitivity
from workbench.whatif.elasticities import SENSITIVITY


def elasticities(run: Scenario) -> pd.Series:
    return sensitivity(run).set_index("parameter")["elasticity"]


def test_the_critical_bucket_gives_the_elasticities_worked_out_by_hand():
    # the first bucket is critical: it starts at 1, and 3 messages and 6 MB follow one another.
    # 1 % of backward is 0.05 s of T1 and of Tn, less 0.04 s as the messages start only 0.01 s later
    assert elasticities(scenario()).to_dict() == pytest.approx(
        {
            "alpha": -3 / 15,
            "beta": -6 / 15,
            "bytes": -6 / 15,
            "backward": 5 / 10 - 1 / 15,
            "compute": 10 / 10 - (10 - 4) / 15,
        }
    )


def test_the_largest_elasticity_comes_first():
    table = sensitivity(scenario(fusion=DDPBuckets(MB, 2 * MB)))
    assert list(table) == list(SENSITIVITY)
    assert table["elasticity"].abs().is_monotonic_decreasing


@pytest.mark.parametrize(
    "changes", [{"n_workers": 1}, {"all_reduce": Affine(Link(0.01, 0.01 / MB))}]
)
def test_nothing_moves_the_scaling_factor_where_all_is_hidden(changes):
    run = scenario(**changes, backward_s=6.0)
    assert elasticities(run).to_numpy() == pytest.approx(np.zeros(5))


def stretched(run: Scenario, factor: float, forward: float) -> Scenario:
    """The scenario with backward, and with the rest of T1, some times longer."""
    backward_s = run.backward_s * factor
    rest_s = run.one_worker_s - run.micro_batches * run.backward_s
    return replace(
        run,
        gradients=run.gradients.assign(ready_s=run.gradients["ready_s"] * factor),
        backward_s=backward_s,
        one_worker_s=run.micro_batches * backward_s + rest_s * forward,
    )


def dearer(run: Scenario, name: str, factor: float) -> Scenario:
    cost = run.all_reduce
    return replace(run, all_reduce=cost.with_parameters(**{name: cost.parameters[name] * factor}))


def heavier(run: Scenario, factor: float) -> Scenario:
    cost = run.all_reduce  # the same messages, each with factor times the bytes
    return replace(run, all_reduce=lambda nbytes, n: cost(factor * np.asarray(nbytes, float), n))


def by_differences(run: Scenario) -> dict:
    """Elasticities as central differences of the logarithm of the predicted scaling factor."""

    def slope(changed) -> float:
        step = 1e-5
        up, down = (np.log(predict(changed(np.exp(s))).scaling_factor) for s in (step, -step))
        return (up - down) / (2 * step)

    names = [name for name, value in getattr(run.all_reduce, "parameters", {}).items() if value]
    return {name: slope(lambda x, n=name: dearer(run, n, x)) for name in names} | {
        "bytes": slope(lambda x: heavier(run, x)),
        "backward": slope(lambda x: stretched(run, x, 1.0)),
        "compute": slope(lambda x: stretched(run, x, x)),
    }


COSTS = [
    Ring(Link(2e-4, 2e-9)),
    Ring(Link(5e-5, 2e-10)),
    Hierarchical(Link(1e-5, 1e-10), Link(1e-4, 3e-9), 4),
    Piecewise(Ring, 1e-4, (4e-9, 1e-9), (50_000.0,), 2e-3),
]
POLICIES = [PerTensor(), OneMessage(), DDPBuckets(MB, 5 * MB), DeepSpeedBuckets(2 * MB)]


def random_run(seed: int) -> Scenario:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30))
    gradients = pd.DataFrame(
        {
            "name": [str(k) for k in range(n)],
            "nbytes": rng.integers(1000, 4 * MB, n),
            "ready_s": np.cumsum(rng.exponential(2e-3, n)),
        }
    )
    backward_s = gradients["ready_s"].iloc[-1] + 1e-4
    m = int(rng.integers(1, 3))
    return Scenario(
        gradients,
        one_worker_s=1.4 * m * backward_s,
        backward_s=backward_s,
        n_workers=int(rng.choice([2, 8, 64])),
        all_reduce=COSTS[seed % 4],
        fusion=POLICIES[seed // 4 % 4],
        overlap=bool(rng.integers(0, 4)),
        micro_batches=m,
        fixed_s=float(rng.choice([0.0, 1e-3])),
    )


@pytest.mark.parametrize("seed", range(16))
def test_elasticities_equal_finite_differences_of_the_prediction(seed):
    run = random_run(seed)
    found, expected = elasticities(run), by_differences(run)
    # of second order in the step, and of rounding
    assert {n: found[n] for n in expected} == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_a_message_that_waits_for_the_host_does_not_move_with_backward():
    run = scenario(launch_s=[0.0, 0.0, 7.0])
    # the last from 7 to 11, after 2 s of idle: 6 s beyond backward
    assert elasticities(run)["backward"] == pytest.approx(5 / 10 - (5 - 5) / 16)
    assert elasticities(run)["alpha"] == pytest.approx(-1 / 16)
    assert by_differences(run)["backward"] == pytest.approx(elasticities(run)["backward"])


def test_a_cost_without_parameters_has_a_latency_and_a_rest():
    sizes = np.array([0.001, 1.0, 2.0, 3.0]) * MB
    timed = pd.DataFrame({"n_workers": 2, "nbytes": sizes, "seconds": [1.0, 2.0, 3.0, 4.0]})
    found = elasticities(scenario(all_reduce=Interpolated(timed)))
    assert found["latency"] == pytest.approx(-3 / 15)
    assert found["transfer"] == pytest.approx(-6 / 15)


def test_prices_within_an_optimisation_are_those_of_the_link_itself():
    run = Together((FasterLink(2, 4), Compression(2)))(scenario(fixed_s=1.0))
    # hops of 0.25 s, 0.25 s a MB: 1 to 1.5, 2 to 2.75, 4 to 5; another 0.25 s beyond with more hops
    slower = replace(run, backward_s=4.5)
    assert elasticities(slower)["alpha"] == pytest.approx(-0.25 / 11.5)
    assert elasticities(slower)["beta"] == pytest.approx(-0.75 / 11.5)


def test_the_buffer_is_halved_and_doubled():
    # 3 MB, closing before: c and b, a: 2 to 6, 6 to 10. Half of it: 15 s; doubled, one message: 16
    run = scenario(fusion=FixedBuffer(3 * MB))
    row = sensitivity(run).set_index("parameter").loc["buffer"]
    assert (row["value"], row["note"]) == (3 * MB, "buffer_bytes")
    assert row["elasticity"] == pytest.approx(np.log(15 / 16) / np.log(4))


@pytest.mark.parametrize("policy", [DDPBuckets(), HorovodFusion(), DeepSpeedBuckets()])
def test_every_framework_has_its_buffer(policy):
    assert "buffer" in set(sensitivity(scenario(fusion=policy))["parameter"])


@pytest.mark.parametrize("policy", [FixedBuffer(np.inf), DeepSpeedBuckets(1), HorovodFusion(0)])
def test_a_buffer_at_the_end_of_its_scale_moves_nothing(policy):
    row = sensitivity(scenario(fusion=policy)).set_index("parameter").loc["buffer"]
    assert row["elasticity"] == 0


def test_autograd_agrees():
    torch = pytest.importorskip("torch")
    run = random_run(4)
    n, link = run.n_workers, run.all_reduce.link
    link = Link(2e-4, 2e-9)
    run = replace(run, all_reduce=Ring(link), fusion=PerTensor(), overlap=True)
    logs = {n: torch.zeros((), dtype=torch.float64, requires_grad=True) for n in "abcd"}
    alpha, beta, compute, nbytes = (torch.exp(each) for each in logs.values())
    end = torch.tensor(-np.inf, dtype=torch.float64)
    for row in run.gradients.itertuples():
        hop = link.alpha * alpha + row[2] / n * nbytes * link.beta * beta
        end = torch.maximum(end, row.ready_s * compute) + 2 * (n - 1) * hop
    exposed = torch.relu(end - run.backward_s * compute)
    assert exposed > 0
    one_worker_s = run.one_worker_s * compute
    torch.log(one_worker_s / (one_worker_s + exposed + run.fixed_s)).backward()
    found = elasticities(run)[["alpha", "beta", "compute", "bytes"]]
    expected = [each.grad.item() for each in logs.values()]
    assert found.to_numpy() == pytest.approx(expected, rel=1e-7)


def test_a_price_that_a_fit_does_not_determine_is_noted():
    sizes = [KIB * 4**k for k in range(8)]
    seconds = [30 * 5e-6 + 2e-9 * size * (1 + 0.02 * (-1) ** k) for k, size in enumerate(sizes)]
    table = pd.DataFrame({"op": "all_reduce", "n_workers": 16, "n_nodes": 2, "nbytes": sizes})
    fit = fit_all_reduce(table.assign(seconds=seconds))
    run = scenario(all_reduce=fit.model, n_workers=16)
    notes = sensitivity(run, fit).set_index("parameter")["note"]
    assert notes["alpha"].startswith("not determined apart from a constant") and notes["beta"] == ""
    pd.testing.assert_frame_equal(sensitivity(run, fit).drop(columns="note"),
                                  sensitivity(run).drop(columns="note"))  # fmt: skip
