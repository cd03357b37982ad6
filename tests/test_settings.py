"""Settings: the text a person pastes makes the policy that was priced."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timings import gradients

from workbench import MIB
from workbench.fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    Plan,
    fuse,
)
from workbench.fusion.frameworks import as_given, cap_list, phases, variations

SIZES = [3 * MIB, 40 * MIB, 1000, 17 * MIB]


def test_ddps_text_names_the_cap_in_mib_of_both_limits():
    for row in variations(gradients(SIZES), DDPBuckets()):
        cap = float(re.fullmatch(r"Distri\w+\(model, bucket_cap_mb=(.+)\)", row.setting)[1])
        assert row.policy == DDPBuckets(cap * MIB, cap * MIB)
        assert row.value == cap


def test_horovods_text_is_in_bytes_and_milliseconds_and_keeps_the_version():
    for row in variations(gradients(SIZES), HorovodFusion(version="0.20.3", local_size=4)):
        found = re.fullmatch(r"HOROVOD_FUSION_THRESHOLD=(\d+) HOROVOD_CYCLE_TIME=(.+)", row.setting)
        assert row.policy == HorovodFusion(int(found[1]), float(found[2]) / 1000, "0.20.3", 4)
        assert (row.value * MIB, row.cycle_ms) == (int(found[1]), float(found[2]))


def test_deepspeeds_text_is_json_and_counts_elements():
    for row in variations(gradients(SIZES), DeepSpeedBuckets(element_bytes=2)):
        zero = json.loads(row.setting)["zero_optimization"]
        assert row.policy == DeepSpeedBuckets(zero["reduce_bucket_size"], element_bytes=2)
        # "stage" is 0, disabled, and "overlap_comm" false by default: docs/_pages/config-json.md.
        # "Overlap and contiguous grads are meaningless in stage 1 and are ignored": engine.py
        assert zero.pop("reduce_bucket_size")
        assert zero == {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (DDPBuckets(), "DistributedDataParallel(model)"),
        (HorovodFusion(), "HOROVOD_FUSION_THRESHOLD=134217728 HOROVOD_CYCLE_TIME=1"),
        (
            HorovodFusion(version="0.20.3"),
            "HOROVOD_FUSION_THRESHOLD=67108864 HOROVOD_CYCLE_TIME=5",
        ),
        (FixedBuffer(MIB), repr(FixedBuffer(MIB))),
    ],
)
def test_a_default_has_a_text_of_its_own(policy, text):
    assert as_given(policy) == text


def test_deepspeeds_default_is_the_documented_number_of_elements():
    assert json.loads(as_given(DeepSpeedBuckets()))["zero_optimization"]["reduce_bucket_size"] == (
        500_000_000
    )


@pytest.mark.parametrize(
    "policy", [DDPBuckets(), HorovodFusion(), DeepSpeedBuckets(), FixedBuffer(MIB)]
)
def test_settings_reach_up_to_one_message(policy):
    last = variations(gradients(SIZES), policy)[-1].policy
    table = gradients(SIZES).assign(enqueued_s=0.0)
    assert len(fuse(table, last)) == 1


def test_settings_may_be_given():
    rows = variations(gradients(SIZES), FixedBuffer(MIB, closes="after"), values=[2, 8])
    assert [row.policy for row in rows] == [FixedBuffer(n * MIB, closes="after") for n in (2, 8)]


def test_horovod_is_looked_at_in_four_phases_of_a_cycle():
    assert [p.phase_s for p in phases(HorovodFusion(cycle_s=4.0))] == [0, 1, 2, 3]
    assert phases(DDPBuckets()) == [DDPBuckets()]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    sizes=st.lists(st.integers(1024, 10**8), min_size=1, max_size=30),
    opens=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_a_list_of_caps_makes_the_plan(sizes, opens):
    table = gradients(sizes)
    plan = Plan(counts=np.bincount(np.cumsum([False, *opens[1 : len(sizes)]])))
    text, policy = cap_list(table, plan)
    assert fuse(table, policy)["n_gradients"].tolist() == list(plan.counts)
    caps = json.loads(re.fullmatch(r"Distri\w+\(model, bucket_cap_mb_list=(.+)\)", text)[1])
    # torch: int(cap_mb * 1024 * 1024)
    assert policy.caps == tuple(int(cap * 1024 * 1024) for cap in caps)


def test_caps_are_the_roundest_that_make_the_plan():
    # 3.5 MiB in all, 0.7 MiB of it in the last gradient: any cap above 2.8 does
    sizes = [int(2.8 * MIB), int(0.7 * MIB), 5 * MIB]
    assert "[3, 5]" in cap_list(gradients(sizes), Plan((2, 3)))[0]
