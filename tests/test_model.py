"""The model as a whole: published oracles, and identities that hold for any scenario."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.costs import Affine, Link, Ring
from workbench.fusion import DDPBuckets, OneMessage, PerTensor, fuse
from workbench.iterations import iterations
from workbench.timeline import Scenario, last_end, predict, schedule, sweep

PUBLISHED = Path(__file__).parents[2] / "shared" / "published"
repeatable = settings(deadline=None, derandomize=True)

# the NetAI '20 what-if simulator's one-worker iterations on a V100, s (netx-repo/
# training-bottleneck, simulation/sim_with_compression_*.py, Apache-2.0)
ONE_WORKER_S = {"resnet50": 0.128086, "resnet101": 0.192006, "vgg16": 0.194524}
POLICIES = {
    "per tensor": PerTensor(),
    "whole model after backward": OneMessage(),
    "DDP default [1 MiB, 25 MiB]": DDPBuckets(),
}


def published(name: str) -> pd.DataFrame:
    path = PUBLISHED / name
    if not path.exists():
        pytest.skip(f"{path} is not at hand")
    return pd.read_csv(path, comment="#")


def backward_trace(model: str) -> pd.DataFrame:
    """GRADIENTS of the published V100 backward trace: each waits for the one before it."""
    rows = published("netai20_backward_trace.csv").query("model == @model")
    return pd.DataFrame(
        {
            "name": rows["index"].astype(str),
            "nbytes": rows["bytes"],
            "ready_s": rows["wait_us"].cumsum() * 1e-6,
        }
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_scaling_factors_equal_the_published_replay_on_every_network(policy):
    # serial all-reduce alpha + beta * bytes over the NetAI '20 trace, replayed independently
    oracle = published("oracle_netai20_fusion_derived.csv").query("policy == @policy")
    assert len(oracle) >= 7
    for row in oracle.itertuples():
        gradients = backward_trace(row.model)
        prediction = predict(
            Scenario(
                gradients,
                one_worker_s=ONE_WORKER_S[row.model],
                backward_s=gradients["ready_s"].iloc[-1],
                n_workers=32,  # any number above one: the oracle's alpha and beta hold it
                all_reduce=Affine(Link(row.alpha_s, row.beta_s_per_B)),
                fusion=POLICIES[policy],
            )
        )
        assert prediction.scaling_factor == pytest.approx(row.scaling_factor, abs=1e-4)
        assert prediction.exposed_comm_s == pytest.approx(row.exposed_s, abs=1e-6)
        assert len(prediction.timeline) == row.n_messages


def test_an_ideal_ring_equals_the_oracles_message_cost():
    # the oracle's "ring 100 Gb/s ideal n=64 (20us/hop)" row: alpha 2.52 ms and beta come from it
    oracle = published("oracle_netai20_fusion_derived.csv")
    row = oracle[oracle["network"].str.startswith("ring 100 Gb/s ideal n=64")].iloc[0]
    ring = Ring(Link(20e-6, 8 / 100e9))
    nbytes = np.array([4e3, 1e6, 1e8])
    expected = row["alpha_s"] + row["beta_s_per_B"] * nbytes
    assert ring(nbytes, 64) == pytest.approx(expected, rel=1e-3)


@st.composite
def scenarios(draw) -> Scenario:
    """Any small training run over any ring, with any of the policies."""
    n = draw(st.integers(1, 25))
    waits = draw(st.lists(st.floats(0, 10e-3), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(0, 50_000_000), min_size=n, max_size=n))
    names = [str(i) for i in range(n)]
    gradients = pd.DataFrame({"name": names, "nbytes": sizes, "ready_s": np.cumsum(waits)})
    backward_s = gradients["ready_s"].iloc[-1] + draw(st.floats(1e-6, 5e-3))
    return Scenario(
        gradients,
        one_worker_s=backward_s * draw(st.floats(1, 40)),
        backward_s=backward_s,
        n_workers=draw(st.integers(2, 512)),
        all_reduce=Ring(Link(draw(st.floats(0, 1e-4)), draw(st.floats(0, 1e-8)))),
        fusion=draw(st.sampled_from([PerTensor(), OneMessage(), DDPBuckets()])),
        overlap=draw(st.booleans()),
    )


def total_cost(scenario: Scenario) -> float:
    """Sum of the costs of a scenario's messages, s, each from the ring's formula."""
    n, link = scenario.n_workers, scenario.all_reduce.link
    sizes = fuse(scenario.gradients, scenario.fusion)["nbytes"]
    return sum(2 * (n - 1) * (link.alpha + size / n * link.beta) for size in sizes)


@repeatable
@given(scenarios())
def test_a_free_link_scales_perfectly(scenario):
    assert predict(replace(scenario, all_reduce=Ring(Link(0, 0)))).scaling_factor == 1


@repeatable
@given(scenarios())
def test_one_worker_scales_perfectly(scenario):
    assert predict(replace(scenario, n_workers=1)).scaling_factor == 1


@repeatable
@given(scenarios())
def test_without_overlap_exactly_the_sum_of_the_costs_is_exposed(scenario):
    prediction = predict(replace(scenario, overlap=False))
    assert prediction.exposed_comm_s == pytest.approx(total_cost(scenario))


@repeatable
@given(scenarios())
def test_exposed_communication_lies_between_none_and_all_of_it(scenario):
    assert 0 <= predict(scenario).exposed_comm_s <= total_cost(scenario) * (1 + 1e-9) + 1e-12


@repeatable
@given(scenarios())
def test_overlap_never_hurts(scenario):
    with_overlap, without = (predict(replace(scenario, overlap=o)) for o in (True, False))
    assert with_overlap.scaling_factor >= without.scaling_factor - 1e-12


@repeatable
@given(scenarios(), st.sampled_from(["alpha", "beta"]), st.floats(1, 100))
def test_a_dearer_link_never_scales_better(scenario, parameter, factor):
    link = scenario.all_reduce.link
    dearer = replace(link, **{parameter: factor * getattr(link, parameter)})
    worse = predict(replace(scenario, all_reduce=Ring(dearer)))
    assert worse.scaling_factor <= predict(scenario).scaling_factor + 1e-12


@repeatable
@given(scenarios())
def test_more_workers_on_a_ring_never_scale_better(scenario):
    factors = sweep(scenario, n_workers=range(1, 200))["scaling_factor"]
    assert factors.diff().max() <= 1e-12


@repeatable
@given(scenarios())
def test_the_last_end_is_the_max_plus_closed_form(scenario):
    timeline = predict(scenario).timeline
    seconds = scenario.all_reduce(timeline["nbytes"], scenario.n_workers)
    begin = 0.0 if scenario.overlap else scenario.backward_s
    arrivals = timeline["ready_s"].clip(lower=begin).to_numpy()
    by_hand = max(arrivals[k] + seconds[k:].sum() for k in range(len(seconds)))
    assert timeline["end_s"].iloc[-1] == pytest.approx(by_hand)
    assert last_end(arrivals, seconds) == pytest.approx(by_hand)


@repeatable
@given(scenarios())
def test_a_sweep_equals_the_recursion(scenario):
    row = sweep(scenario, n_workers=[scenario.n_workers]).squeeze()
    prediction = predict(scenario)
    assert row["scaling_factor"] == pytest.approx(prediction.scaling_factor, rel=1e-12)


@repeatable
@given(scenarios())
def test_the_code_that_measures_a_run_measures_the_prediction(scenario):
    prediction = predict(scenario)
    measured = iterations(prediction.to_events()).squeeze()
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s, abs=1e-9)
    assert measured["duration_s"] == pytest.approx(prediction.iteration_s)


@repeatable
@given(scenarios())
def test_a_predicted_timeline_is_a_fixed_point_of_the_recursion(scenario):
    timeline = predict(scenario).timeline
    again = schedule(timeline, timeline["end_s"] - timeline["start_s"], timeline["start_s"])
    np.testing.assert_allclose(again["start_s"], timeline["start_s"], rtol=1e-12, atol=1e-12)
