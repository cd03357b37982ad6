"""The model as a whole: published oracles, and identities that hold for any scenario."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import published
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.costs import Affine, Link, Ring
from workbench.fusion import DDPBuckets, HorovodFusion, OneMessage, PerTensor, fuse
from workbench.timeline import NormalJitter, SampleJitter, Scenario, predict, schedule, sweep
from workbench.timeline.queues import last_end
from workbench.traces import collectives, gradients_by_iteration, iterations, load_run

ROOT = Path(__file__).parents[1]
repeatable = settings(deadline=None, derandomize=True, max_examples=50)
# random scenarios include links that no cluster has, of which a Scenario warns
pytestmark = pytest.mark.filterwarnings("ignore:all_reduce. :UserWarning")

# the NetAI '20 what-if simulator's one-worker iterations on a V100, s (netx-repo/
# training-bottleneck, simulation/sim_with_compression_*.py, Apache-2.0)
ONE_WORKER_S = {"resnet50": 0.128086, "resnet101": 0.192006, "vgg16": 0.194524}
POLICIES = {
    "per tensor": PerTensor(),
    "whole model after backward": OneMessage(),
    "DDP default [1 MiB, 25 MiB]": DDPBuckets(),
}


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
def test_bounds_of_any_scenario(scenario):
    def changed(**changes):
        return predict(replace(scenario, **changes))

    total, prediction = total_cost(scenario), predict(scenario)
    assert changed(all_reduce=Ring(Link(0, 0))).scaling_factor == 1
    assert changed(n_workers=1).scaling_factor == 1
    without, with_overlap = (changed(overlap=each) for each in (False, True))
    assert without.exposed_comm_s == pytest.approx(total)
    assert 0 <= prediction.exposed_comm_s <= total * (1 + 1e-9) + 1e-12
    assert with_overlap.scaling_factor >= without.scaling_factor - 1e-12
    factors = sweep(scenario, n_workers=range(1, 200))["scaling_factor"]
    assert factors.diff().max() <= 1e-12
    row = sweep(scenario, n_workers=[scenario.n_workers]).squeeze()
    assert row["scaling_factor"] == pytest.approx(prediction.scaling_factor, rel=1e-12)


@repeatable
@given(scenarios())
def test_the_timeline_is_the_max_plus_closed_form_and_a_fixed_point(scenario):
    timeline = predict(scenario).timeline
    seconds = scenario.all_reduce(timeline["nbytes"], scenario.n_workers)
    begin = 0.0 if scenario.overlap else scenario.backward_s
    arrivals = timeline["ready_s"].clip(lower=begin).to_numpy()
    by_hand = max(arrivals[k] + seconds[k:].sum() for k in range(len(seconds)))
    assert timeline["end_s"].iloc[-1] == pytest.approx(by_hand)
    assert last_end(arrivals, seconds) == pytest.approx(by_hand)
    again = schedule(timeline, timeline["end_s"] - timeline["start_s"], timeline["start_s"])
    np.testing.assert_allclose(again["start_s"], timeline["start_s"], rtol=1e-12, atol=1e-12)


RESULTS = ["iteration_s", "exposed_comm_s", "scaling_factor"]


@st.composite
def rich_scenarios(draw) -> Scenario:
    """Any small training run with whatever a Scenario may add to the plain model."""
    plain = draw(scenarios())
    late = st.floats(0, 0.05)
    launch_s = draw(late)
    fusion = draw(st.sampled_from([plain.fusion, HorovodFusion(cycle_s=2e-3)]))
    if isinstance(fusion, PerTensor) and draw(st.booleans()):
        n = len(plain.gradients)
        launch_s = np.array(draw(st.lists(late, min_size=n, max_size=n)))
    durations = draw(st.lists(st.floats(0.1, 0.2), min_size=2, max_size=9))
    jitters = [None, NormalJitter(draw(st.floats(0, 1e-2))), SampleJitter(durations)]
    m = draw(st.integers(1, 3))
    return replace(
        plain,
        fusion=fusion,
        one_worker_s=max(plain.one_worker_s, m * plain.backward_s),
        micro_batches=m,
        n_streams=draw(st.integers(1, 3)),
        slowdown=draw(st.sampled_from([0.0, 0.05, 0.5])),
        jitter=draw(st.sampled_from(jitters)),
        launch_s=launch_s,
        fixed_s=draw(st.sampled_from([0.0, 2e-3])),
    )


@repeatable
@given(rich_scenarios())
def test_every_field_is_swept_as_it_is_predicted(scenario):
    prediction = predict(scenario)
    for field in ("one_worker_s", "n_workers", "slowdown", "jitter", "launch_s", "n_streams"):
        row = sweep(scenario, **{field: [getattr(scenario, field)]}).iloc[0]
        expected = [getattr(prediction, name) for name in RESULTS]
        assert row[RESULTS].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@repeatable
@given(rich_scenarios())
def test_every_field_measures_back_to_the_nanosecond(scenario):
    prediction = predict(scenario)
    measured = iterations(prediction.to_events()).squeeze()
    fixed_s = scenario.fixed_s if scenario.n_workers > 1 else 0.0
    compute_s = scenario.one_worker_s + prediction.slowed_s + prediction.jitter_s
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s, abs=1e-9)
    assert measured["duration_s"] == pytest.approx(prediction.iteration_s, abs=1e-9)
    assert measured["compute_s"] == pytest.approx(compute_s, abs=1e-9)
    assert measured["idle_s"] == pytest.approx(prediction.idle_s + fixed_s, abs=1e-9)


@repeatable
@given(rich_scenarios(), st.sampled_from(["alpha", "beta"]), st.floats(1, 100))
def test_bounds_hold_for_every_field(scenario, parameter, factor):
    prediction = predict(scenario)
    assert 0 < prediction.scaling_factor <= 1
    assert 0 <= prediction.exposed_comm_s <= total_cost(scenario) * (1 + 1e-9) + 1e-9
    assert predict(replace(scenario, n_workers=1)).scaling_factor == 1
    free = replace(scenario, all_reduce=Ring(Link(0, 0)), jitter=None, launch_s=0.0, fixed_s=0.0)
    free = replace(free, fusion=DDPBuckets())  # Horovod's clock takes time whatever the link
    assert predict(free).scaling_factor == 1
    one = replace(scenario, n_streams=1)
    assert sweep(one, n_workers=range(1, 100))["scaling_factor"].diff().max() <= 1e-12
    link = one.all_reduce.link
    dearer = replace(link, **{parameter: factor * getattr(link, parameter)})
    worse = predict(replace(one, all_reduce=Ring(dearer)))
    assert worse.scaling_factor <= predict(one).scaling_factor + 1e-12


@repeatable
@given(scenarios(), st.floats(0, 1))
def test_slowed_compute_has_the_closed_form_of_the_shifted_ready_times(scenario, f):
    # each s of message before a bucket keeps compute back by f / (1 + f)
    prediction = predict(replace(scenario, slowdown=f, overlap=True))
    table = fuse(scenario.gradients, scenario.fusion)
    costs = scenario.all_reduce(table["nbytes"].to_numpy(), scenario.n_workers)
    ready, lost = table["ready_s"].to_numpy(), f / (1 + f)
    ends = [ready[k] + lost * costs[:k].sum() + costs[k:].sum() for k in range(len(costs))]
    end = max(scenario.backward_s + lost * costs.sum(), *ends)
    tail_s = scenario.one_worker_s - scenario.backward_s
    assert prediction.iteration_s == pytest.approx(tail_s + end)


@repeatable
@given(rich_scenarios())
def test_the_explanation_accounts_for_every_start_and_end(scenario):
    table = predict(scenario).explain()
    reasons = table[["ready_s", "previous_end_s", "launch_s"]]
    assert table["start_s"].tolist() == pytest.approx(reasons.max(axis=1).tolist(), abs=1e-9)
    took = table["end_s"] - table["start_s"]
    assert took.tolist() == pytest.approx((table["seconds"] + table["shared_s"]).tolist(), abs=1e-9)


@repeatable
@given(rich_scenarios())
def test_fields_at_their_defaults_give_the_plain_model(scenario):
    defaults = dict(micro_batches=1, n_streams=1, slowdown=0.0, jitter=None, launch_s=0.0)
    prediction = predict(replace(scenario, **defaults, fixed_s=0.0, fusion=DDPBuckets()))
    seconds = [2 * (scenario.n_workers - 1) * scenario.all_reduce.link.alpha] * len(
        prediction.timeline
    )
    link, n = scenario.all_reduce.link, scenario.n_workers
    end = -np.inf
    for latency, row in zip(seconds, prediction.timeline.itertuples(), strict=True):
        begin = row.ready_s if scenario.overlap else scenario.backward_s
        end = max(begin, end) + latency + 2 * (n - 1) / n * row[2] * link.beta
    exposed = max(0.0, end - scenario.backward_s)
    assert prediction.iteration_s == pytest.approx(scenario.one_worker_s + exposed)


def test_launch_times_place_the_messages_of_a_real_run(shared):
    # two V100, DDP: sizes of the model, ready times and launches of the trace; only the costs of
    # the five messages are taken as measured
    path = shared / "traces/kineto/ddp-resnet50-2gpu"
    run = load_run(path)
    sizes = pd.read_csv(ROOT / "data/models/gradients.csv", comment="#")
    sizes = sizes[sizes["model"] == "resnet50"].reset_index(drop=True)
    messages = collectives(run.events).query("op == 'all_reduce'")
    for number, found in gradients_by_iteration(run.events).groupby("iteration"):
        begin = found["backward_start_s"].iloc[0]
        ready_s = found["ready_s"].to_numpy()
        table = fuse(sizes[["name", "nbytes"]].assign(ready_s=ready_s), DDPBuckets())
        real = messages[messages["iteration"] == number].reset_index(drop=True)
        assert table["nbytes"].tolist() == real["nbytes"].tolist()
        seconds = real["end_s"] - real["start_s"]
        errors = {}
        for name, launch_s in {"known": real["launch_s"] - begin, "unknown": 0.0}.items():
            start = schedule(table, seconds, launch_s)["start_s"]
            errors[name] = (start - (real["start_s"] - begin)).abs().max()
        assert errors["known"] < 40e-6 and errors["unknown"] > 400e-6
