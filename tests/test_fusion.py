"""Fusion: what each policy groups, torch's own buckets, and nothing lost on the way."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.fusion import DDPBuckets, OneMessage, PerTensor, fuse
from workbench.units import MIB

PUBLISHED = Path(__file__).parents[2] / "shared" / "published"


repeatable = settings(deadline=None, derandomize=True)


def gradients(sizes, ready=None) -> pd.DataFrame:
    ready = np.arange(1.0, len(sizes) + 1) if ready is None else ready
    return pd.DataFrame(
        {"name": [f"g{i}" for i in range(len(sizes))], "nbytes": sizes, "ready_s": ready}
    )


def test_per_tensor_sends_every_gradient_alone():
    table = gradients([5, 7, 9])
    buckets = fuse(table, PerTensor())
    assert buckets["n_gradients"].tolist() == [1, 1, 1]
    assert buckets["nbytes"].tolist() == [5, 7, 9]
    assert buckets["ready_s"].tolist() == [1, 2, 3]


def test_one_message_is_ready_with_the_last_gradient():
    buckets = fuse(gradients([5, 7, 9]), OneMessage())
    assert buckets.to_dict("list") == {"n_gradients": [3], "nbytes": [21], "ready_s": [3.0]}


def test_ddp_closes_a_bucket_after_the_gradient_that_crosses_its_limit():
    # limits 10 K then 20 K: 6+6 crosses 10; 19+30 crosses 20; 20 reaches 20 alone; 1 is left over
    sizes = [6000, 6000, 19000, 30000, 20000, 1000]
    buckets = fuse(gradients(sizes), DDPBuckets(first_bytes=10_000, cap_bytes=20_000))
    assert buckets["nbytes"].tolist() == [12000, 49000, 20000, 1000]
    assert buckets["n_gradients"].tolist() == [2, 2, 1, 1]
    assert buckets["ready_s"].tolist() == [2, 4, 5, 6]


def test_ddp_defaults_are_torchs():
    # kDefaultFirstBucketBytes and kDefaultBucketBytesCap, torch/csrc/distributed/c10d/reducer.hpp
    assert DDPBuckets() == DDPBuckets(first_bytes=1_048_576, cap_bytes=26_214_400)


LIMITS = {
    "default: first 1 MiB then 25 MiB": DDPBuckets(),
    "explicit bucket_cap_mb=25": DDPBuckets(25 * MIB, 25 * MIB),
    "1 MiB then 50 MiB": DDPBuckets(1 * MIB, 50 * MIB),
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("model", ["alexnet", "resnet50", "bert_base"])
def test_ddp_buckets_equal_those_of_torch(model, limits):
    # torch 2.14.1's own _compute_bucket_assignment_by_size, in reverse registration order
    if not PUBLISHED.exists():
        pytest.skip(f"{PUBLISHED} is not at hand")
    oracle = pd.read_csv(PUBLISHED / "oracle_ddp_buckets_torch.csv", comment="#")
    row = oracle.query("model == @model and limits == @limits").squeeze()
    tensors = pd.read_csv(PUBLISHED / "model_tensors_torch.csv", comment="#")
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


@repeatable
@given(sizes=SIZES, first_bytes=LIMIT, cap_bytes=LIMIT)
def test_only_the_last_ddp_bucket_is_below_its_limit(sizes, first_bytes, cap_bytes):
    nbytes = fuse(gradients(sizes), DDPBuckets(first_bytes, cap_bytes))["nbytes"]
    limits = np.array([first_bytes] + [cap_bytes] * (len(nbytes) - 1))
    assert (nbytes[:-1] >= limits[:-1]).all()


@st.composite
def groupings(draw):
    """Any consecutive grouping: sizes, and whether each gradient opens a bucket."""
    sizes = draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=40))
    opens = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return sizes, np.cumsum([False] + opens[1:])


@repeatable
@given(groupings())
def test_bytes_and_gradients_survive_any_grouping(grouping):
    sizes, numbers = grouping
    buckets = fuse(gradients(sizes), lambda table: numbers)
    assert buckets["nbytes"].sum() == sum(sizes)
    assert buckets["n_gradients"].sum() == len(sizes)


@repeatable
@given(groupings())
def test_a_bucket_is_ready_with_its_last_gradient(grouping):
    sizes, numbers = grouping
    buckets = fuse(gradients(sizes), lambda table: numbers)
    # gradient i is ready at i + 1, so the last of a bucket is the number of gradients so far
    assert buckets["ready_s"].tolist() == buckets["n_gradients"].cumsum().tolist()


def test_the_gradients_are_left_as_they_were():
    table = gradients([5, 7, 9])
    before = table.copy(deep=True)
    fuse(table, DDPBuckets(2000, 2000))
    pd.testing.assert_frame_equal(table, before)


def test_nullable_sizes_without_gaps_are_fine():
    table = gradients([5, 7]).astype({"nbytes": "Int64", "ready_s": "Float64"})
    assert fuse(table, OneMessage())["nbytes"].tolist() == [12]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (DDPBuckets, r"fusion: got the class DDPBuckets; write DDPBuckets\(\)"),
        (PerTensor, r"fusion: got the class PerTensor; write PerTensor\(\)"),
        ("ddp", r"fusion: expected a callable, got 'ddp'; write DDPBuckets\(\)"),
    ],
)
def test_a_policy_without_brackets_is_told_to_be_called(policy, message):
    with pytest.raises(ValueError, match=message):
        fuse(gradients([5, 7]), policy)


def test_unknown_sizes_name_the_call_that_sizes_them():
    table = gradients(pd.array([pd.NA], dtype="Int64"))
    with pytest.raises(ValueError, match=r"gradients\(run, sizes=table of data/models\)"):
        fuse(table, OneMessage())


def test_unknown_sizes_ask_for_a_model_table():
    table = gradients(pd.array([5, pd.NA, pd.NA], dtype="Int64"))
    with pytest.raises(ValueError, match="unknown for 2 of 3 gradients, first 'g1'.*model table"):
        fuse(table, OneMessage())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (gradients([]), "at least one gradient"),
        (gradients([5, -7]), "nbytes of row 1: expected whole bytes from 0 up; got -7"),
        (gradients([5, 2.5]), "nbytes of row 1: expected whole bytes"),
        (gradients(["5", "7"]), "nbytes of row 0: expected whole bytes from 0 up; got 5"),
        (gradients([5, "7 MiB"]), "nbytes of row 1: expected whole bytes from 0 up; got 7 MiB"),
        (gradients([5, 7], [0.0, "1 s"]), "ready_s of row 1: expected finite s from 0 up; got 1 s"),
        (gradients([5, 7], [0.0, np.nan]), "ready_s of row 1: expected finite s"),
        (gradients([5, 7], [-1.0, 0.0]), "ready_s of row 0: expected finite s from 0 up"),
        (gradients([5, 7, 9], [1.0, 3.0, 2.0]), "ready_s of row 2: .*sort first"),
        (gradients([5]).drop(columns="ready_s"), "missing column ready_s"),
    ],
)
def test_gradients_that_cannot_be_sent_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        fuse(table, PerTensor())


@pytest.mark.parametrize(
    "numbers", [[1, 2, 3], [0, 2, 3], [0, 1, 0], [0, 0.5, 1], [0, np.nan, 1], list("abc")]
)
def test_a_policy_that_skips_or_mixes_buckets_is_refused(numbers):
    with pytest.raises(ValueError, match="bucket numbers 0, 1, 2 ... over consecutive gradients"):
        fuse(gradients([5, 7, 9]), lambda table: numbers)


def test_a_policy_that_forgets_gradients_is_refused():
    with pytest.raises(ValueError, match=r"each of 3 gradients, got shape \(2,\)"):
        fuse(gradients([5, 7, 9]), lambda table: [0, 1])


@pytest.mark.parametrize("limits", [{"first_bytes": 0}, {"cap_bytes": -1}, {"cap_bytes": np.nan}])
def test_a_bucket_limit_is_above_zero(limits):
    name = next(iter(limits))
    with pytest.raises(ValueError, match=f"DDPBuckets {name}: expected bytes above 0"):
        DDPBuckets(**limits)


@pytest.mark.parametrize("limit", ["25MiB", None, True, [25 * MIB]])
def test_a_bucket_limit_is_a_number(limit):
    with pytest.raises(ValueError, match=r"DDPBuckets first_bytes: .*write 25 MiB as 25 \* MIB"):
        DDPBuckets(limit)


@pytest.mark.parametrize(
    ("limits", "name"), [({"first_bytes": 25}, "first_bytes"), ({"cap_bytes": 25}, "cap_bytes")]
)
def test_a_bucket_limit_that_looks_like_mebibytes_is_warned_of(limits, name):
    advice = rf"DDPBuckets {name}: 25 bytes: sizes are bytes, 25 MiB is 25 \* MIB"
    with pytest.warns(UserWarning, match=advice):
        DDPBuckets(**limits)
