"""Optimisations by hand, with their own cost; comparisons, ablations, and published what-ifs."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_model import backward_trace, published

from workbench import GBIT, MIB, MS, whatif
from workbench.costs import Affine, BatchTime, Link, Ring
from workbench.fusion import DDPBuckets, FixedBuffer, HorovodFusion, OneMessage, PerTensor
from workbench.timeline import NormalJitter, Scenario, predict, sweep
from workbench.traces import iterations
from workbench.whatif import (
    Accumulation,
    AdaptiveFusion,
    Compression,
    FasterCompute,
    FasterLink,
    HalfPrecision,
    HierarchicalAllReduce,
    LargerBatch,
    LocalSGD,
    OtherCollective,
    Overlap,
    PriorityScheduling,
    TensorFusion,
    Together,
    ablate,
    catalogue,
    compare,
    headroom,
    predict_with,
)

MB = 1_000_000


def scenario(**changes) -> Scenario:
    """Gradients of 1, 2 and 3 MB at 1, 2 and 4 s; a message takes 1 s and 1 s a MB.

    Per tensor: 1 to 3, 3 to 6, 6 to 10; backward ends at 5, so 5 s are exposed and Tn is 15.
    """
    gradients = pd.DataFrame(
        {"name": ["c", "b", "a"], "nbytes": [MB, 2 * MB, 3 * MB], "ready_s": [1.0, 2.0, 4.0]}
    )
    given = {"all_reduce": Affine(Link(1.0, 1 / MB)), "fusion": PerTensor()}
    return replace(Scenario(gradients, 10.0, 5.0, 2, **given), **changes)


CODING = {
    "encode_s_per_byte": 0.1 / MB,
    "encode_s_per_gradient": 0.01,
    "decode_s_per_byte": 0.01 / MB,
    "decode_s_per_gradient": 0.01,
}
# optimisation, T1, exposed, Tn, own cost, samples: each worked out by hand from `scenario`
BY_HAND = {
    # one message from 4 to 4 + 1 + 6
    "fusion": (TensorFusion(OneMessage()), 10, 6, 16, 0, 1),
    # its 6 MB are copied for 0.1 s each
    "copies": (TensorFusion(OneMessage(), copy_s_per_byte=0.1 / MB), 10, 6.6, 16.6, 0.6, 1),
    # no grouping is better: 10, 10 (2 and 3 together, or 1 and 2) or 11
    "adaptive": (AdaptiveFusion(), 10, 5, 15, 0, 1),
    # hops of 0.25 s and 0.5 s a MB: the last from 4 to 5.75
    "link": (FasterLink(bandwidth=2, latency=4), 10, 0.75, 10.75, 0, 1),
    # casts of 0.01 s a MB: ready at 1.01, 2.03, 4.06 of 5.06; messages of 1.5, 2, 2.5 end at 7.01;
    # casts take 0.06 and 0.06 back. Free, the last starts at 4.5 and ends at 7
    "fp16": (HalfPrecision(cast_s_per_byte=0.01 / MB), 10, 1.95, 12.07, 0.07, 1),
    # coding of 0.11, 0.21, 0.31: the last is ready at 4.63 of 5.63, and takes 1.3; decoding takes
    # 0.06 + 0.03. Free, it runs from 4 to 5.3
    "compression": (Compression(10, **CODING), 10, 0.3, 11.02, 0.72, 1),
    # all of 3 * 1 + 6 after four iterations
    "local": (LocalSGD(4), 40, 9, 49, 0, 4),
    "accumulation": (Accumulation(4), 40, 5, 45, 0, 4),
    # the optimiser's second is spent once, not four times
    "one update": (Accumulation(4, update_s=1.0), 37, 5, 42, 0, 4),
    # ready at 2, 4, 8 of 10: 2 to 4, 4 to 7, 8 to 12
    "batch": (LargerBatch(2), 20, 2, 22, 0, 2),
    # 5 + 10 s for 10 samples, 5 + 5 for 5: 1.5 times as long. 1.5 to 3.5, to 6.5, to 10.5 of 7.5
    "batch time": (LargerBatch(2, BatchTime(5.0, 1.0), 5), 15, 3, 18, 0, 2),
    # ready at 0.5 of 2.5: 0.5 to 2.5, to 5.5, to 9.5
    "device": (FasterCompute(2), 5, 7, 12, 0, 1),
    "no overlap": (Overlap(False), 10, 9, 19, 0, 1),
    # two workers on one node: 2 hops of 0.1 s and 0.1 s a MB; the last from 4 to 4.5
    "nodes": (HierarchicalAllReduce(Link(0.1, 0.1 / MB), 2), 10, 0, 10, 0, 1),
    # 2 hops of 1 s and 2 * 1/2 of 1 s a MB: 1 to 4, 4 to 8, 8 to 13
    "ring": (OtherCollective(Ring(Link(1.0, 1 / MB))), 10, 8, 18, 0, 1),
    # pieces of at most 2 MB: c 1 to 3, b to 6, a's to 9 and 11; forward of 1, 1, 3 s follows 11
    "priority": (PriorityScheduling(2 * MB), 10, 6, 16, 0, 1),
    # and 0.5 s each of its four pieces
    "scheduler": (PriorityScheduling(2 * MB, piece_s=0.5), 10, 8, 18, 2, 1),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_each_optimisation_takes_the_time_worked_out_by_hand(name):
    optimisation, one_worker_s, exposed_s, iteration_s, own_s, samples = BY_HAND[name]
    row = compare(scenario(), {name: optimisation}).iloc[1]
    assert row["label"] == name
    assert row["one_worker_s"] == pytest.approx(one_worker_s)
    assert row["exposed_comm_s"] == pytest.approx(exposed_s)
    assert row["iteration_s"] == pytest.approx(iteration_s)
    assert row["own_cost_s"] == pytest.approx(own_s)
    assert row["scaling_factor"] == pytest.approx(one_worker_s / iteration_s)
    assert row["speedup"] == pytest.approx(samples * 15 / iteration_s)


def test_the_baseline_row_is_the_prediction():
    row = compare(scenario(), {"fp16": HalfPrecision()}).iloc[0]
    found = predict(scenario())
    assert (row["label"], row["speedup"], row["own_cost_s"]) == ("baseline", 1, 0)
    for name in ("iteration_s", "exposed_comm_s", "scaling_factor"):
        assert row[name] == getattr(found, name)


def test_a_faster_device_scales_worse_and_trains_faster_and_the_row_says_why():
    base, row = compare(scenario(), {"device": FasterCompute(2)}).to_dict("records")
    assert row["scaling_factor"] < base["scaling_factor"]
    assert row["speedup"] > 1
    assert "5 s" in row["note"]


def test_coding_costs_something_even_on_a_free_link():
    free = scenario(all_reduce=Affine(Link(0.0, 0.0)))
    found = predict_with(free, Compression(10, **CODING))
    assert found.scaling_factor == pytest.approx(10 / (10 + 0.63 + 0.09))


def test_buffers_hold_compressed_bytes_where_gradients_are_compressed_first():
    # 4 MB: c, b and a's first third; compressed to half, all of them
    buffered = scenario(fusion=FixedBuffer(3 * MB))
    after, first = (
        predict_with(buffered, Compression(2, compress_first=each)).timeline
        for each in (False, True)
    )
    assert after["n_gradients"].tolist() == [2, 1]
    assert first["n_gradients"].tolist() == [3]
    assert first["nbytes"].tolist() == [3 * MB]


def test_coding_longer_than_forward_is_still_backward():
    # 6 s of coding within 11 s of backward, beside a T1 of 10 s: no forward is left of it
    found = predict_with(scenario(), Compression(2, encode_s_per_byte=1 / MB))
    measured = iterations(found.to_events()).squeeze()
    assert measured["duration_s"] == pytest.approx(found.iteration_s)
    assert measured["exposed_comm_s"] == pytest.approx(found.exposed_comm_s)
    assert measured["compute_s"] == pytest.approx(11)


def test_a_lone_worker_is_recorded_without_coding():
    found = predict_with(scenario(n_workers=1), Compression(2, encode_s_per_byte=1 / MB))
    measured = iterations(found.to_events()).squeeze()
    assert measured["duration_s"] == measured["compute_s"] == pytest.approx(10)


class NetAI:
    """The what-if simulator's cost: the ring's bytes, compressed, and sums of what is not.

    2 (n-1)/n S / bandwidth on the wire, and n - 1 additions of S/n, interpolated in its table.
    """

    def __init__(self, gbps: float, ratio: float, table: pd.DataFrame):
        self.bandwidth, self.ratio, self.table = gbps * GBIT, ratio, table

    def __call__(self, nbytes, n):
        sums = np.interp(self.ratio * nbytes / n, self.table["bytes"], self.table["seconds"])
        return 2 * nbytes * (n - 1) / n / self.bandwidth + (n - 1) * sums


@pytest.mark.parametrize("model", ["resnet50", "vgg16"])
def test_compression_equals_every_row_of_the_published_what_if(model):
    # netx-repo/training-bottleneck (Apache-2.0), replayed independently: 64 MiB or 5 ms
    oracle = published("oracle_netai20_whatif_derived.csv").query("model == @model")
    additions = published("netai20_vector_add.csv").sort_values("bytes")
    assert len(oracle) == 60
    gradients = backward_trace(model)
    for row in oracle.itertuples():
        run = Scenario(
            gradients,
            one_worker_s=row.t1_s,
            backward_s=gradients["ready_s"].iloc[-1],
            n_workers=row.n_workers,
            all_reduce=NetAI(row.link_gbps, row.compression, additions),
            fusion=FixedBuffer(64 * MIB, 5 * MS, closes="after"),
        )
        found = predict_with(run, Compression(row.compression))
        assert len(found.timeline) == row.n_messages
        assert found.scaling_factor == pytest.approx(row.scaling_factor, abs=2e-6)
        assert found.exposed_comm_s == pytest.approx(row.exposed_s, abs=2e-6)


SEVERAL = {
    "fusion": TensorFusion(OneMessage()),
    "fp16": HalfPrecision(0.01 / MB),
    "device": FasterCompute(2),
    "accumulation": Accumulation(2),
}


def test_a_share_by_shapley_is_the_mean_gain_over_all_orders():
    # each order replayed one optimisation after another, sets in the order of the dictionary
    gains = {label: [] for label in SEVERAL}
    for order in itertools.permutations(SEVERAL):
        before = 1.0
        for k, label in enumerate(order):
            chosen = Together(tuple(o for n, o in SEVERAL.items() if n in order[: k + 1]))
            speedup = compare(scenario(), {"so far": chosen})["speedup"].iloc[1]
            gains[label].append(speedup - before)
            before = speedup
    table = ablate(scenario(), SEVERAL, order="shapley").set_index("label")
    shares = table.loc[list(SEVERAL)]
    assert shares["gain"].sum() == pytest.approx(before - 1)
    assert table.loc["all together", "gain"] == pytest.approx(before - 1)
    assert shares["gain"].to_numpy() == pytest.approx([np.mean(v) for v in gains.values()])
    assert shares["least"].to_numpy() == pytest.approx([min(v) for v in gains.values()])
    assert shares["most"].to_numpy() == pytest.approx([max(v) for v in gains.values()])
    every = ablate(scenario(), SEVERAL, order="all").query("kind == 'optimisation'")
    for label in SEVERAL:
        found = every.loc[every["label"] == label, "gain"]
        assert found.to_numpy() == pytest.approx(gains[label])


def test_optimisations_added_one_after_another_show_their_interaction():
    # alone fp16 takes 13 s, 15/13 - 1, and the link 10.75, 15/10.75 - 1 ...
    pair = {"fp16": HalfPrecision(), "link": FasterLink(2, 4)}
    table = ablate(scenario(), pair).set_index("label")
    fp16, link, both = 12.0, 10.75, 10.0
    # fp16: 1 to 2.5, to 4.5, to 7. Both: messages of 0.5, 0.75, 1: the last from 4 to 5
    assert table.loc["fp16", "iteration_s"] == pytest.approx(fp16)
    assert table.loc["link", "iteration_s"] == pytest.approx(both)
    assert table.loc["link", "gain"] == pytest.approx(15 / both - 15 / fp16)
    assert table.loc["link", "alone"] == pytest.approx(15 / link - 1)
    interaction = 15 / both - 15 / fp16 - 15 / link + 1
    assert table.loc["link", "interaction"] == pytest.approx(interaction)
    assert table.loc["fp16", "interaction"] == 0


@pytest.mark.parametrize("order", ["given", "all", "shapley"])
def test_the_ideal_bounds_stand_beside_every_ablation(order):
    bounds = headroom(scenario()).query("kind == 'bound'").set_index("what")
    table = ablate(scenario(), SEVERAL, order).query("kind == 'bound'").set_index("label")
    assert set(table.index) == {"bandwidth only", "perfect overlap", "no communication"}
    expected = 15 / bounds["iteration_s"] - 1
    assert table["gain"].to_numpy() == pytest.approx(expected[table.index].to_numpy())
    assert not ablate(scenario(), SEVERAL, order).isna().any(axis=None)
    assert not compare(scenario(), SEVERAL).isna().any(axis=None)


EVERY = {
    "adaptive": AdaptiveFusion(copy_s_per_byte=0.01 / MB),
    "fusion": TensorFusion(DDPBuckets(MB, 2 * MB), copy_s_per_byte=0.02 / MB),
    "compression": Compression(4, **CODING),
    "link": FasterLink(2, 2),
    "ring": OtherCollective(Ring(Link(0.5, 1 / MB))),
    "batch": LargerBatch(1.5),
    "local": LocalSGD(2),
}


def test_what_is_done_together_does_not_depend_on_the_order_it_is_listed_in(rng):
    expected = predict_with(scenario(), Together(tuple(EVERY.values()))).iteration_s
    for _ in range(20):
        listed = [EVERY[label] for label in rng.permutation(list(EVERY))]
        assert predict_with(scenario(), Together(listed)).iteration_s == pytest.approx(expected)


def test_adaptive_fusion_adapts_to_all_that_is_listed_after_it():
    changed = FasterLink(8, 1)
    both = predict_with(scenario(), Together((AdaptiveFusion(), changed)))
    assert both.iteration_s == predict_with(changed(scenario()), AdaptiveFusion()).iteration_s


@pytest.mark.parametrize(
    "changes", [{}, {"overlap": False}, {"launch_s": 3.0}, {"n_workers": 1}, {"fixed_s": 1.0}]
)
def test_adaptive_fusion_is_as_good_as_any_grouping(changes):
    run = scenario(**changes)
    groupings = [
        lambda g, cut=cut: np.cumsum(cut) for cut in itertools.product(*[[0], [0, 1], [0, 1]])
    ]
    best = min(predict(replace(run, fusion=each)).iteration_s for each in groupings)
    assert predict_with(run, AdaptiveFusion()).iteration_s == pytest.approx(best)


def test_priority_scheduling_comes_last_and_only_once():
    both = Together((PriorityScheduling(), FasterLink(2)))
    assert predict_with(scenario(), both).scenario.all_reduce.bandwidth == 2


def test_an_optimised_scenario_sweeps_like_any_other():
    optimised = Together((Compression(4, **CODING), FasterLink(2)))(scenario())
    rows = sweep(optimised, n_workers=[1, 2])["iteration_s"]
    assert rows.tolist() == pytest.approx([10, predict(optimised).iteration_s])


def random_run(rng) -> Scenario:
    """Some gradients of up to 4 MB over some ms each, on a ring of 8."""
    n = int(rng.integers(1, 25))
    gradients = pd.DataFrame(
        {
            "name": [str(k) for k in range(n)],
            "nbytes": rng.integers(1000, 4 * MB, n),
            "ready_s": np.cumsum(rng.exponential(5e-3, n)),
        }
    )
    backward_s = gradients["ready_s"].iloc[-1]
    ring = Ring(Link(rng.uniform(0, 1e-3), rng.uniform(0, 5e-9)))
    policy = [PerTensor(), OneMessage(), DDPBuckets(MB, 5 * MB)][rng.integers(0, 3)]
    return Scenario(gradients, 2 * backward_s, backward_s, 8, ring, policy)


@pytest.mark.filterwarnings("ignore:all_reduce. an empty message")  # a ring of 1 s beside ms
@pytest.mark.parametrize("seed", range(8))
def test_no_optimisation_scales_better_than_perfectly(seed):
    rng = np.random.default_rng(seed)
    cheap = {name: seconds * 1e-3 for name, seconds in CODING.items()}
    several = EVERY | {"priority": PriorityScheduling(MB), "compression": Compression(4, **cheap)}
    table = compare(random_run(rng), several | {"all": Together(tuple(several.values()))})
    assert ((table["scaling_factor"] > 0) & (table["scaling_factor"] <= 1)).all()


@pytest.mark.parametrize("seed", range(8))
def test_what_is_free_and_moves_less_never_hurts(seed):
    run = random_run(np.random.default_rng(seed))
    better = {
        "adaptive": AdaptiveFusion(),
        "link": FasterLink(3, 2),
        "latency": FasterLink(1, 2),
        "compression": Compression(3),
    }
    assert compare(run, better)["speedup"].min() >= 1 - 1e-12


def test_what_is_slower_than_the_baseline_is_noted():
    # a message takes 1 s and 1 s a MB: twice the latency costs 3 s more, a free link gains 5 s
    slower = {"slow": OtherCollective(Affine(Link(2.0, 1 / MB))), "free": FasterLink(1e9, 1e9)}
    notes = compare(scenario(), slower).set_index("label")["note"]
    assert notes["slow"] == "slower than the baseline"
    assert notes["baseline"] == "" and notes["free"] == ""


def test_a_plain_function_is_an_optimisation():
    table = compare(scenario(), {"free": lambda s: replace(s, all_reduce=Affine(Link(0, 0)))})
    assert table["iteration_s"].tolist() == [15, 10]


def test_more_workers_train_more_samples():
    # the same iteration time: an Affine cost does not depend on the number of workers
    changes = {"double": lambda s: replace(s, n_workers=2 * s.n_workers)}
    row = compare(scenario(), changes).iloc[1]
    assert (row["samples"], row["speedup"]) == (2, 2)
    for order in ("given", "shapley"):
        assert ablate(scenario(), changes, order).query("label == 'double'")["gain"].item() == 1


def test_the_jitter_of_several_steps_grows_with_their_square_root():
    found = predict_with(scenario(jitter=NormalJitter(0.1)), Accumulation(9))
    assert found.jitter_s == pytest.approx(3 * float(NormalJitter(0.1)(2)))


def test_the_host_enqueues_nothing_after_a_faster_device_has_it_ready():
    table = scenario().gradients.assign(enqueued_s=[0.1, 1.5, 2.0])
    faster = FasterCompute(2)(scenario(gradients=table)).gradients
    assert faster["ready_s"].tolist() == [0.5, 1, 2]
    assert faster["enqueued_s"].tolist() == [0.1, 1, 2]


def test_fusion_with_a_clock_of_its_own_can_be_compared():
    run = scenario()
    found = predict_with(run, TensorFusion(HorovodFusion(cycle_s=1.0)))
    assert found.iteration_s == predict(replace(run, fusion=HorovodFusion(cycle_s=1.0))).iteration_s


@pytest.mark.parametrize("order", ["given", "shapley"])
def test_bounds_that_are_known_are_not_sought_again(order):
    table = headroom(scenario())
    pd.testing.assert_frame_equal(
        ablate(scenario(), SEVERAL, order, table), ablate(scenario(), SEVERAL, order)
    )
    doubled = ablate(scenario(), SEVERAL, order, table.assign(iteration_s=2 * table["iteration_s"]))
    row = doubled.set_index("label").loc["no communication"]
    assert 1 + row["gain"] == pytest.approx(
        predict(scenario()).iteration_s / (2 * scenario().one_worker_s)
    )


def test_the_catalogue_has_every_optimisation_at_a_usual_setting():
    link, inside = Link(1.0, 1 / MB), Link(0.01, 1 / (8 * MB))
    known = catalogue(link, inside, 4, 2 * CODING["decode_s_per_byte"], 0.01)
    made = {type(each) for each in known.values()}
    kinds = {getattr(whatif, name) for name in whatif.__all__ if name[0].isupper()}
    assert kinds - made == {Together}
    table = compare(scenario(all_reduce=Ring(link), n_workers=8), known).set_index("label")
    assert table.index.tolist() == ["baseline", *known]
    other = (table["one_worker_s"] != 10.0) | (table["samples"] != 1)
    assert table.index[other].tolist() == list(known)[-4:]
    costly = table["own_cost_s"] > 0
    assert table.index[costly].tolist() == ["fp16", "int8"]


def test_workers_of_a_node_share_its_adapter_in_the_catalogue():
    known = catalogue(Link(1.0, 1 / MB), Link(0.01, 1 / (8 * MB)), 4, 0.0, 0.0)
    assert known["hierarchical"].between == Link(1.0, 4 / MB)
