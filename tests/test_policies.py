"""Policies: what each framework groups, checked on torch itself and on published traces."""

import numpy as np
import pandas as pd
import pytest
from conftest import published
from hypothesis import given, settings
from hypothesis import strategies as st
from timings import gradients

from workbench import MIB, MS
from workbench.costs import Affine, Link, Ring
from workbench.fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    MergedGradients,
    OneMessage,
    OptimalFusion,
    PerTensor,
    Plan,
    Timed,
    fuse,
)
from workbench.timeline import Scenario, predict

T1 = {"resnet50": 0.128086, "resnet101": 0.192006, "vgg16": 0.194524}  # s, NetAI 2020, V100

repeatable = settings(deadline=None, derandomize=True, max_examples=40)


POLICIES = [
    PerTensor(),
    OneMessage(),
    FixedBuffer(2000),
    FixedBuffer(2000, timeout_s=2.5),
    FixedBuffer(2000, 2.5, "after"),
    DDPBuckets(1024, 3000),
    DDPBuckets(caps=(1024, 5000)),
    DeepSpeedBuckets(500),
    HorovodFusion(4096, cycle_s=1.0, version="0.20.3"),
    HorovodFusion(4096, cycle_s=1.0, phase_s=-0.4),
    MergedGradients(Ring(Link(0.1, 1e-4)), 4),
    OptimalFusion(Ring(Link(0.1, 1e-4)), 4),
]
ONE_TYPE = (PerTensor, OneMessage, FixedBuffer, DeepSpeedBuckets, MergedGradients, OptimalFusion)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("mixed", [False, True])
def test_every_policy_cuts_the_backward_order_and_loses_nothing(policy, mixed, rng):
    for n in (1, 2, 40):
        table = gradients(rng.integers(0, 1500, n), np.sort(rng.uniform(0, 20, n)))
        kinds = rng.choice(["float", "half"], n) if mixed else np.full(n, "")
        table = table.assign(dtype=kinds) if mixed else table
        before, buckets = table.copy(), fuse(table, policy)
        pd.testing.assert_frame_equal(table, before)
        made = policy(table)
        numbers = made.numbers if isinstance(made, Timed) else made
        assert numbers.max() + 1 == len(buckets) == len(np.unique(numbers))
        split = not isinstance(policy, ONE_TYPE)  # frameworks that send one type per message
        groups = [numbers[kinds == kind] for kind in np.unique(kinds)] if split else [numbers]
        assert all((np.diff(each) >= 0).all() for each in groups)
        if split:
            assert (pd.Series(kinds).groupby(numbers).nunique() == 1).all()
        assert buckets["nbytes"].sum() == table["nbytes"].sum()
        assert buckets["n_gradients"].sum() == n and (buckets["n_gradients"] > 0).all()
        ready = table["ready_s"].groupby(numbers).max()
        assert buckets["ready_s"].tolist() == ready.tolist()
        assert ("launch_s" in buckets) == isinstance(made, Timed)


def test_types_that_are_not_known_are_one_type():
    for unknown in ([None, "a", None], pd.array([pd.NA, "a", pd.NA], dtype="string")):
        table = gradients([10, 10, 10]).assign(dtype=unknown)
        assert fuse(table, DDPBuckets())["n_gradients"].tolist() == [2, 1]


def test_the_simplest_policies_by_hand():
    alone = fuse(gradients([5, 7, 9]), PerTensor())
    assert alone["nbytes"].tolist() == [5, 7, 9] and alone["ready_s"].tolist() == [1, 2, 3]
    buckets = fuse(gradients([5, 7, 9]), OneMessage())
    assert buckets.to_dict("list") == {"n_gradients": [3], "nbytes": [21], "ready_s": [3.0]}


def v100(model: str) -> pd.DataFrame:
    """The gradients of a public V100 trace (NetAI 2020)."""
    trace = published("netai20_backward_trace.csv").query("model == @model")
    return gradients(trace["bytes"].to_list(), trace["wait_us"].cumsum().to_numpy() / 1e6)


def factor(table: pd.DataFrame, one_worker_s: float, n_workers: int, cost, policy) -> float:
    backward_s = table["ready_s"].iloc[-1]
    scenario = Scenario(table, one_worker_s, backward_s, n_workers, cost, policy)
    return predict(scenario).scaling_factor


def test_ddp_closes_a_bucket_after_the_gradient_that_crosses_its_limit():
    # limits 10 K then 20 K: 6+6 crosses 10; 19+30 crosses 20; 20 reaches 20 alone; 1 is left over
    sizes = [6000, 6000, 19000, 30000, 20000, 1000]
    buckets = fuse(gradients(sizes), DDPBuckets(first_bytes=10_000, cap_bytes=20_000))
    assert buckets["nbytes"].tolist() == [12000, 49000, 20000, 1000]
    assert buckets["n_gradients"].tolist() == [2, 2, 1, 1]
    assert buckets["ready_s"].tolist() == [2, 4, 5, 6]


LIMITS = {
    "default: first 1 MiB then 25 MiB": DDPBuckets(),
    "explicit bucket_cap_mb=25": DDPBuckets(25 * MIB, 25 * MIB),
    "1 MiB then 50 MiB": DDPBuckets(1 * MIB, 50 * MIB),
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("model", ["alexnet", "resnet50", "bert_base"])
def test_ddp_buckets_equal_those_of_torch(model, limits):
    # torch 2.14.1's own _compute_bucket_assignment_by_size, in reverse registration order
    oracle = published("oracle_ddp_buckets_torch.csv")
    row = oracle.query("model == @model and limits == @limits").squeeze()
    tensors = published("model_tensors_torch.csv")
    sizes = tensors.query("model == @model")["bytes_fp32"].to_list()[::-1]
    buckets = fuse(gradients(sizes), LIMITS[limits])
    assert buckets["nbytes"].tolist() == [int(size) for size in row["bucket_bytes"].split(";")]
    counts = [int(count) for count in row["bucket_tensor_counts"].split(";")]
    assert buckets["n_gradients"].tolist() == counts


def ddp_by_search(sizes, first_bytes, cap_bytes) -> list[int]:
    """Bucket bytes found the other way round: search each bucket's end in the cumulative bytes."""
    total, done, buckets, limit = np.cumsum(sizes), 0, [], first_bytes
    while done < total[-1] or len(buckets) == 0:
        end = min(np.searchsorted(total, done + limit), len(total) - 1)
        buckets.append(int(total[end] - done))
        done, limit = total[end], cap_bytes
    return buckets


SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=60)
LIMIT = st.integers(1024, 3 * 10**6)


@repeatable
@given(sizes=SIZES, first_bytes=LIMIT, cap_bytes=LIMIT)
def test_ddp_buckets_equal_an_independent_search(sizes, first_bytes, cap_bytes):
    buckets = fuse(gradients(sizes), DDPBuckets(first_bytes, cap_bytes))
    assert buckets["nbytes"].tolist() == ddp_by_search(sizes, first_bytes, cap_bytes)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (DDPBuckets(first_bytes=25), "DDPBuckets"),
        (DDPBuckets(cap_bytes=25), "DDPBuckets"),
        (DDPBuckets(caps=(8 * MIB, 25)), "DDPBuckets"),
        (FixedBuffer(25), "FixedBuffer buffer_bytes"),
        (HorovodFusion(25), "HorovodFusion threshold_bytes"),
    ],
)
def test_a_limit_that_looks_like_mebibytes_is_warned_of(policy, name):
    with pytest.warns(UserWarning, match=rf"{name}: .*25 \* MIB"):
        fuse(gradients([9 * MIB, 100]), policy)
    fuse(gradients([10, 10, 10]), policy)  # small gradients: no warning


def test_caps_are_taken_one_a_bucket_and_the_last_for_all_that_follow():
    sizes = [6000, 6000, 3000, 3000, 3000, 3000, 1000]
    buckets = fuse(gradients(sizes), DDPBuckets(caps=(10_000, 2000, 5000)))
    assert buckets["nbytes"].tolist() == [12000, 3000, 6000, 4000]


@repeatable
@given(
    tensors=st.lists(
        st.tuples(st.integers(1, 2000), st.sampled_from(["float32", "float16", "float64"])),
        min_size=1,
        max_size=60,
    ),
    caps=st.lists(st.integers(1024, 20_000), min_size=1, max_size=3),
)
def test_buckets_of_mixed_types_equal_those_of_torch(tensors, caps):
    torch = pytest.importorskip("torch")
    from torch.distributed import _compute_bucket_assignment_by_size as by_size

    tensors = [torch.empty(n, dtype=getattr(torch, dtype)) for n, dtype in tensors]
    torchs, _ = by_size(tensors, caps, [False] * len(tensors), list(range(len(tensors))))
    table = gradients(
        [tensor.nbytes for tensor in tensors], dtype=[str(tensor.dtype) for tensor in tensors]
    )
    numbers = DDPBuckets(caps=tuple(caps))(table)
    ours = [np.flatnonzero(numbers == k).tolist() for k in range(numbers.max() + 1)]
    # torch keeps buckets left open in a hash map, whose order is not defined
    assert sorted(ours) == sorted(torchs)
    left_open = len({str(tensor.dtype) for tensor in tensors})
    n_closed = max(0, len(ours) - left_open)
    assert ours[:n_closed] == torchs[:n_closed]


def test_a_buffer_closes_before_it_overflows_or_after_it_is_full():
    buckets = fuse(gradients([4000, 5000, 2000, 9000, 500]), FixedBuffer(9000))
    assert buckets["nbytes"].tolist() == [9000, 2000, 9000, 500]
    buckets = fuse(gradients([4000, 5000, 2000, 9000, 500]), FixedBuffer(9000, closes="after"))
    assert buckets["nbytes"].tolist() == [9000, 11000, 500]


def test_a_bucket_whose_time_is_up_leaves_then():
    # 2.5 s from 1: gradient 2, ready at 3, still joins; the bucket of 4 leaves at 6.5
    table = gradients([10, 10, 10, 10, 10], [1.0, 2.0, 3.0, 4.0, 8.0])
    buckets = fuse(table, FixedBuffer(MIB, timeout_s=2.5))
    assert buckets["n_gradients"].tolist() == [3, 1, 1]
    assert buckets["launch_s"].tolist() == [3.5, 6.5, 8.0]
    # closes="after" checks the time when a gradient is ready, from the closing before
    table = gradients([10, 10, 10, 10, 10], [1.0, 2.5, 3.0, 4.0, 8.0])
    buckets = fuse(table, FixedBuffer(MIB, timeout_s=2.0, closes="after"))
    assert buckets["n_gradients"].tolist() == [2, 3]
    assert buckets["launch_s"].tolist() == [2.5, 8.0]


def test_defaults_are_those_of_the_frameworks():
    # kDefaultFirstBucketBytes and kDefaultBucketBytesCap, torch/csrc/distributed/c10d/reducer.hpp
    assert DDPBuckets() == DDPBuckets(first_bytes=1_048_576, cap_bytes=26_214_400)
    # reduce_bucket_size, deepspeed/runtime/zero/config.py
    assert DeepSpeedBuckets() == DeepSpeedBuckets(elements=500_000_000, element_bytes=4)


def test_deepspeed_counts_elements_and_sends_when_the_next_does_not_fit():
    # 2 bytes an element, 1000 elements: 600 + 400 fit, 100 does not; 3000 travel alone
    buckets = fuse(gradients([1200, 800, 200, 6000, 20]), DeepSpeedBuckets(1000, element_bytes=2))
    assert buckets["nbytes"].tolist() == [2000, 200, 6000, 20]
    # launched by the hook of the gradient that does not fit, the last by the end of backward
    assert buckets["launch_s"].tolist() == [3, 4, 5, 5]


@pytest.mark.parametrize(
    ("version", "threshold_mib", "cycle_ms"), [("0.20.3", 64, 5), ("0.21.0", 128, 1)]
)
def test_horovods_defaults_changed_with_version_0_21(version, threshold_mib, cycle_ms):
    # CHANGELOG of Horovod, 0.21.0 (#2468)
    policy = HorovodFusion(version=version)
    assert policy.threshold_bytes == threshold_mib * MIB
    assert policy.cycle_s == cycle_ms * MS


def test_horovod_waits_for_the_device_up_to_0_22_and_not_from_0_23():
    table = gradients([8] * 4, [10.0, 11.0, 12.0, 13.0], enqueued_s=[0.0, 1.0, 2.0, 3.0])
    waits = fuse(table, HorovodFusion(cycle_s=1.0, version="0.22.1"))
    assert waits["n_gradients"].tolist() == [1, 3]
    assert waits["launch_s"].tolist() == [10, 13]
    free = fuse(table, HorovodFusion(cycle_s=1.0, version="0.23.0"))
    assert free["n_gradients"].tolist() == [1, 1, 1, 1]
    assert free["launch_s"].tolist() == [0, 1, 2, 3]


def at_once(sizes, **columns) -> pd.DataFrame:
    """Gradients that one tick finds together."""
    return gradients(sizes, enqueued_s=[0.0] * len(sizes), **columns)


def test_horovod_rounds_the_threshold_up_to_512_bytes_a_worker_of_the_node():
    assert len(fuse(at_once([1000, 536]), HorovodFusion(1025, version="0.20.3"))) == 1
    assert len(fuse(at_once([1000, 537]), HorovodFusion(1025, version="0.20.3"))) == 2
    assert len(fuse(at_once([1500, 548]), HorovodFusion(1025, local_size=4, version="0.20.3"))) == 1


def test_horovod_pads_gradients_to_16_bytes_from_0_21():
    # 1009 + 527 = 1536 bytes, three times 512; padded 1024 + 528
    table = at_once([1009, 527])
    assert len(fuse(table, HorovodFusion(1536, version="0.20.3"))) == 1
    padded = fuse(table, HorovodFusion(1536, version="0.21.0"))
    assert padded["nbytes"].tolist() == [1009, 527]


def test_look_ahead_makes_a_message_ready_with_its_last_member():
    table = at_once([100, 50, 100, 50], dtype=["float", "half", "float", "half"])
    buckets = fuse(table, HorovodFusion(version="0.28.1"))
    assert buckets["nbytes"].tolist() == [200, 100]
    assert buckets["ready_s"].tolist() == [3, 4]


def test_without_fusion_horovod_sends_every_gradient_alone():
    # the runs of huyutuo/horovod-test-data with threshold 0: 161 and 58 messages an iteration
    off = HorovodFusion(0, version="0.20.3")
    assert len(fuse(v100("resnet50"), off)) == 161
    assert len(fuse(v100("vgg16"), off)) == 58


def horovod_messages(phases=20, **settings) -> list[int]:
    """Messages of ResNet-50 under Horovod 0.20.3, 64 MiB, 5 ms, over the phases of its ticks."""
    table = v100("resnet50")
    at = np.linspace(0, 5 * MS, phases, endpoint=False)
    policies = (HorovodFusion(version="0.20.3", phase_s=phase, **settings) for phase in at)
    return [len(fuse(table, policy)) for policy in policies]


def test_two_clocks_give_the_measured_number_of_messages():
    # 4.3 an iteration in the runs of huyutuo/horovod-test-data, at whatever phase
    counts = horovod_messages()
    assert set(counts) == {4, 5}
    assert np.mean(counts) == pytest.approx(4.3, abs=0.5)


def test_ticks_that_see_the_devices_clock_would_send_three_times_as_many():
    assert min(horovod_messages(host_share=1.0)) >= 13


def test_the_host_of_a_public_trace_takes_half_the_time_of_backward(shared):
    # where the default host_share comes from: ResNet-50 on a V100, one file of six iterations
    from workbench.traces import gradients as gradients_of
    from workbench.traces import load_run

    run = load_run(shared / "traces" / "kineto" / "old-format-resnet50")
    host = run.events.query("kind == 'host' and name == 'torch::autograd::AccumulateGrad'")
    spans = host.groupby("iteration").agg(first=("end_s", "min"), last=("end_s", "max"))
    share = (spans["last"] - spans["first"]) / gradients_of(run)["ready_s"].iloc[-1]
    assert len(share) == 6
    assert share.between(0.45, 0.60).all()


def merged_as_published(ready, sizes, alpha, beta) -> list[int]:
    """MG-WFBP's loop in its own terms: layers numbered forward, all starts found anew each time.

    Source: the rule of HKBU-HPML/MG-WFBP, distributed_optimizer.py. Returns gradients a message.
    """
    n = len(sizes)
    done = list(ready[::-1])  # when layer l is ready; layer n - 1 is the first
    held = list(sizes[::-1])
    cost = [alpha + beta * size for size in held]

    def starts():
        start = [0.0] * n
        start[n - 1] = done[n - 1]
        for layer in range(n - 2, -1, -1):
            start[layer] = max(start[layer + 1] + cost[layer + 1], done[layer])
        return start

    counts = [1]
    for layer in range(n - 1, 0, -1):
        start = starts()
        arrives = done[layer - 1]
        if arrives < start[layer] + cost[layer] and (
            start[layer] > arrives or arrives - start[layer] < alpha
        ):
            held[layer - 1] += held[layer]
            cost[layer], cost[layer - 1] = 0.0, alpha + beta * held[layer - 1]
            counts[-1] += 1
        else:
            counts.append(1)
    return counts


@pytest.mark.parametrize("seed", range(10))
def test_merged_gradients_equal_the_published_loop(seed):
    rng = np.random.default_rng(seed)
    ready, sizes = np.cumsum(rng.exponential(1.0, 30)), rng.integers(1, 1000, 30)
    alpha, beta = rng.exponential(1.0), rng.exponential(2e-3)
    policy = MergedGradients(Affine(Link(alpha, beta)), 8)
    counts = fuse(gradients(sizes, ready), policy)["n_gradients"].tolist()
    assert counts == merged_as_published(ready, sizes.tolist(), alpha, beta)


def test_boundaries_and_counts_are_the_same_plan():
    assert Plan(boundaries=(2, 5)) == Plan(counts=(2, 3))
    assert fuse(gradients([1, 2, 3, 4, 5]), Plan((2, 5)))["nbytes"].tolist() == [3, 12]
    assert Plan(np.array([2, 5])) == eval(repr(Plan(boundaries=[2, 5])))


NETAI20 = {
    "per tensor": PerTensor(),
    "whole model after backward": OneMessage(),
    "DDP default [1 MiB, 25 MiB]": DDPBuckets(),
    **{
        f"constant buffer {n} MiB (wait until full)": FixedBuffer(n * MIB) for n in (4, 16, 64, 128)
    },
    # The two Horovod rows are idealised: ticks see the device's clock, so host and device are one,
    # and the thread never waits, as from 0.23. Real Horovod of that time packs by the host's clock
    # and waits up to 0.22, so it sends 4 to 5 messages, not 13 (see above).
    "Horovod 64 MiB 5 ms": HorovodFusion(64 * MIB, 5 * MS, "0.23.0", host_share=1.0),
    "Horovod 128 MiB 1 ms": HorovodFusion(128 * MIB, 1 * MS, "0.23.0", host_share=1.0),
    # The greedy row restates MG-WFBP's rule as it is stated here, so the two agree; the authors'
    # code was not run, and later copies of it also merge all messages below 8,192 elements.
    "MG-style greedy (restated)": MergedGradients,
    "optimal contiguous fusion (O(L^2) DP)": OptimalFusion,
}


@pytest.mark.parametrize("name", NETAI20)
def test_fusion_on_v100_traces_equals_an_independent_replay(name):
    rows = published("oracle_netai20_fusion_derived.csv").query("policy == @name")
    assert len(rows) == 7
    for row in rows.itertuples():
        cost, policy = Affine(Link(row.alpha_s, row.beta_s_per_B)), NETAI20[name]
        policy = policy(cost, 32) if isinstance(policy, type) else policy
        found = factor(v100(row.model), T1[row.model], 32, cost, policy)
        assert found == pytest.approx(row.scaling_factor, abs=1e-4)


def test_fusion_of_googlenet_equals_an_independent_replay():
    log = published("bcaffe_googlenet_layer_trace.csv").query("file == 'tmp8comm' and `pass` == 0")
    # weights and bias of a layer are logged apart, with the time of the layer on both
    layers = log.groupby(log["param_id"] // 2).agg({"numel": "sum", "layer_backward_us": "first"})
    layers = layers.sort_index(ascending=False)
    table = gradients(
        (4 * layers["numel"]).to_list(), layers["layer_backward_us"].cumsum().to_numpy() / 1e6
    )
    for row in published("oracle_googlenet_fusion_derived.csv").itertuples():
        cost = Affine(Link(row.alpha_s, row.beta_s_per_B))
        policy = {
            "WFBP per tensor": PerTensor(),
            "single fused after backward": OneMessage(),
            "MG-WFBP greedy (restated)": MergedGradients(cost, 8),
            "optimal contiguous fusion (O(L^2) DP)": OptimalFusion(cost, 8),
        }.get(row.policy)
        if policy is None:  # contiguous threshold 16 MiB (close before overflow)
            policy = FixedBuffer(int(row.policy.split()[2]) * MIB)
        found = factor(table, 64 / 163.36, 8, cost, policy)
        assert found == pytest.approx(row.scaling_factor, abs=1e-4), row.policy


def test_the_what_if_simulator_of_netai20_is_replayed():
    adding = published("netai20_vector_add.csv")
    rows = published("oracle_netai20_whatif_derived.csv")
    tables = {model: v100(model) for model in rows["model"].unique()}
    for row in rows.itertuples():

        def cost(nbytes, n, row=row):
            wire = 2 * 8 * nbytes * (n - 1) / n / (row.link_gbps * 1e9) / row.compression
            return wire + (n - 1) * np.interp(nbytes / n, adding["bytes"], adding["seconds"])

        policy = FixedBuffer(64 * MIB, 5 * MS, closes="after")
        assert len(fuse(tables[row.model], policy)) == row.n_messages
        found = factor(tables[row.model], row.t1_s, row.n_workers, cost, policy)
        assert found == pytest.approx(row.scaling_factor, abs=5e-4)
