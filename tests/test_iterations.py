import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, complete, launched

from workbench.base.tables import COLLECTIVES, EVENTS, ITERATIONS, MEASUREMENTS
from workbench.fusion import DDPBuckets, fuse
from workbench.timeline import schedule
from workbench.traces import (
    all_reduces,
    collectives,
    gradients,
    gradients_by_iteration,
    iterations,
    load_run,
    medians,
    stragglers,
)
from workbench.traces.breakdown import repeating, split

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
RESNET50 = [2049000, 7875584, 6563840, 6637568, 2431040]  # float32 elements of DDP's messages


def load(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some real traces tell no rank
        return load_run(path)


def events_of(kinds_and_spans, rng=None):
    """EVENTS of one rank and iteration: (kind, stream, start, end) in whole seconds."""
    rows = [
        {
            "rank": 0,
            "stream": stream,
            "thread": -1,
            "iteration": 0,
            "kind": kind,
            "op": "all_reduce" if kind == "comm" else "",
            "name": kind,
            "nbytes": pd.NA,
            "n_workers": pd.NA,
            "correlation": -1,
            "start_s": float(start),
            "end_s": float(end),
        }
        for kind, stream, start, end in kinds_and_spans
    ]
    return pd.DataFrame(rows, columns=list(EVENTS)).astype({"rank": "Int64"})


def test_the_parts_of_an_iteration_by_hand():
    spans = [("compute", 7, 0, 4), ("comm", 20, 3, 6), ("memory", 8, 5, 9), ("compute", 7, 10, 12)]
    row = iterations(events_of(spans)).iloc[0]
    assert row[list(ITERATIONS)[2:]].tolist() == [12, 6, 3, 2, 4, 3, 1]


@pytest.mark.parametrize("seed", range(100))
def test_random_iterations_equal_counting_whole_seconds(seed):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 40, 15)
    end = start + rng.integers(1, 9, 15)
    kinds = rng.choice(["compute", "comm", "memory"], 15)
    kinds[:2] = ["compute", "comm"]
    row = iterations(events_of(zip(kinds, [7] * 15, start, end, strict=True))).iloc[0]
    kernels = kinds != "memory"
    window = range(start[kernels].min(), end[kernels].max())
    on = {
        kind: {
            t for k, a, b in zip(kinds, start, end, strict=True) if k == kind for t in range(a, b)
        }
        & set(window)
        for kind in ("compute", "comm", "memory")
    }
    compute, comm, memory = on["compute"], on["comm"], on["memory"]
    expected = [len(window), len(compute), len(comm), len(comm - compute)]
    expected += [len(memory), len(memory - compute - comm)]
    expected += [len(set(window) - compute - comm - memory)]
    assert row[list(ITERATIONS)[2:]].tolist() == expected


def test_no_time_between_iterations_is_lost(write_trace):
    steps = [complete("user_annotation", f"ProfilerStep#{i}", 1000 * i, 900) for i in range(3)]
    kernels = [
        event
        for i in range(3)
        for event in launched(f"k{i}", 1000 * i + 300, 100, 1000 * i + 10, correlation=i)
    ]
    table = iterations(load(write_trace(steps + kernels)).events)
    assert table["duration_s"].to_numpy() == pytest.approx([1e-3, 1e-3, 1e-4])
    assert table["idle_s"].to_numpy() == pytest.approx([9e-4, 9e-4, 0], abs=1e-12)


def test_a_trace_without_device_rows_says_what_to_do(write_trace):
    events = [complete("cuda_runtime", "cudaLaunchKernel", 1, 2)]
    with pytest.raises(ValueError, match="no GPU kernel: record again with ProfilerActivity.CUDA"):
        iterations(load(write_trace(events)).events)


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="events: missing column kind"):
        iterations(events_of([("compute", 7, 0, 1)]).drop(columns="kind"))


def test_the_argument_is_not_changed():
    events = events_of([("compute", 7, 0, 4), ("comm", 20, 3, 6)])
    before = events.copy(deep=True)
    iterations(events), collectives(events), all_reduces(events)
    pd.testing.assert_frame_equal(events, before)


def test_every_real_breakdown_is_met_to_the_nanosecond(shared):
    reference = pd.read_csv(shared / "traces/breakdown.csv")
    reference = reference[(reference["n_kernels"] > 0) & ~reference["file"].str.contains("tar")]
    assert len(reference) == 22
    for row in reference.itertuples():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # tiny-pair has calls without kernels
            total = iterations(load(shared / "traces" / row.file).events).sum(numeric_only=True)
        found = total[["duration_s", "compute_s", "comm_s", "exposed_comm_s"]] * 1e9
        expected = [row.window_ns, row.compute_ns, row.comm_ns, row.exposed_ns]
        # Sums of float64 seconds: far below half a ns, so rounding gives the whole number.
        assert found.round().astype(int).tolist() == expected, row.file
        hidden = total["comm_s"] - total["exposed_comm_s"]
        assert round(hidden * 1e9) == row.hidden_ns, row.file


def test_kinds_of_every_real_trace_count_its_kernels(shared):
    reference = pd.read_csv(shared / "traces/breakdown.csv")
    for row in reference[~reference["file"].str.contains("tar")].itertuples():
        events = load(shared / "traces" / row.file).events
        device = events[events["stream"] >= 0]["kind"]
        assert device.isin(["compute", "comm"]).sum() == row.n_kernels, row.file
        assert (device == "comm").sum() == row.n_comm, row.file


def test_the_parts_add_up_on_every_real_rank(shared):
    table = iterations(load(shared / "traces/kineto/torchrec-4rank-half-hidden").events)
    parts = ["compute_s", "exposed_comm_s", "exposed_memory_s", "idle_s"]
    assert len(table) == 12
    assert table[parts].sum(axis=1).to_numpy() == pytest.approx(table["duration_s"], abs=1e-12)
    assert (table[parts] >= -1e-12).all(axis=None)


def test_waiting_and_transfer_of_two_ranks(write_trace):
    def rank(number, start):
        step = complete("user_annotation", "ProfilerStep#1", 0, 2000)
        kernel = complete("kernel", ALL_REDUCE, start, 1100 - start, stream=20)
        info = {"rank": number, "world_size": 2, "backend": "nccl"}
        return write_trace([step, kernel], f"run/{number}.json", distributedInfo=info)

    folder = [rank(0, 100), rank(1, 1000)][0].parent
    row = collectives(load(folder).events).iloc[0]
    assert row["n_ranks_seen"] == 2
    times = row[["start_s", "end_s", "wait_s", "transfer_s"]].tolist()
    assert times == pytest.approx([100e-6, 1100e-6, 900e-6, 100e-6])


def test_an_all_reduce_is_priced_by_its_transfer_alone(write_trace):
    step = complete("user_annotation", "ProfilerStep#1", 0, 2000)
    facts = {"Collective name": "allreduce", "In msg nelems": 256, "dtype": "Float"}
    for rank, start in enumerate((100, 1000)):
        kernel = complete("kernel", ALL_REDUCE, start, 1100 - start, **facts, **{"Group size": 2})
        info = {"rank": rank, "world_size": 2}
        path = write_trace([step, kernel], f"run/{rank}.json", distributedInfo=info)
    table = all_reduces(load(path.parent).events)
    assert list(table) == list(MEASUREMENTS)
    assert table[["op", "n_workers", "nbytes"]].values.tolist() == [["all_reduce", 2, 1024]]
    assert table["seconds"].tolist() == pytest.approx([100e-6])


def test_medians_keep_each_message_of_an_iteration_with_its_spread(ddp_run):
    with pytest.warns(UserWarning, match="medians: 15 of 15 messages are seen from some"):
        table = medians(ddp_run)
    with pytest.warns(UserWarning, match="all_reduces: 15 of 15"):
        each = all_reduces(ddp_run)
    assert list(table) == [*MEASUREMENTS, "n_iterations", "seconds_min", "seconds_max"]
    times = each["seconds"].to_numpy().reshape(3, 5)  # iteration by message
    assert table["seconds"].tolist() == pytest.approx(np.median(times, axis=0).tolist())
    assert table["seconds_max"].tolist() == pytest.approx(times.max(axis=0).tolist())
    assert table["n_iterations"].tolist() == [3] * 5


def test_medians_of_messages_of_unknown_size_say_so(shared):
    run = load(shared / "traces/kineto/v100-2rank-small-allreduces")
    with pytest.raises(ValueError, match="all_reduce with a size.* got 2020, 2020 of unknown size"):
        medians(run)


def test_the_straggler_makes_the_others_wait(shared):
    table = collectives(load(shared / "traces/kineto/torchrec-4rank-straggler").events)
    assert (table["n_ranks_seen"] <= 4).all()
    whole = table[table["n_ranks_seen"] == 4]
    assert whole["wait_s"].sum() > 2.9  # one rank sleeps for 1 s in each of 3 iterations
    assert whole["transfer_s"].sum() < 0.2


@pytest.fixture(scope="module")
def ddp_run():
    path = ROOT.parent / "shared/traces/kineto/ddp-resnet50-2gpu/nccl_data.json.gz"
    if not path.exists():
        pytest.skip("no folder of real traces beside the checkout (../shared)")
    return load(path)


@pytest.fixture(scope="module")
def messages(ddp_run):
    table = collectives(ddp_run.events)
    return table[table["op"] == "all_reduce"]


def test_a_real_ddp_run_sends_five_messages_an_iteration(messages):
    assert list(messages) == list(COLLECTIVES)
    sizes = messages.groupby("iteration")["nbytes"].apply(list)
    assert len(sizes) == 3
    for found in sizes:
        assert found == [4 * n for n in RESNET50]
    assert set(messages["n_workers"]) == {2}


def test_the_bucket_rule_gives_exactly_those_messages():
    sizes = pd.read_csv(ROOT / "data/models/gradients.csv", comment="#")
    sizes = sizes[sizes["model"] == "resnet50"].assign(ready_s=np.arange(161.0))
    assert fuse(sizes, DDPBuckets())["nbytes"].tolist() == [4 * n for n in RESNET50]


def test_closure_the_recursion_predicts_every_start_of_a_real_run(messages):
    errors = []
    for _, found in messages.groupby("iteration"):
        found = found.reset_index(drop=True)
        buckets = found[["nbytes", "ready_s"]].assign(n_gradients=1)
        seconds = (found["end_s"] - found["start_s"]).to_numpy()
        timeline = schedule(buckets, seconds, launch_s=found["launch_s"].to_numpy())
        errors += (timeline["start_s"] - found["start_s"]).abs().tolist()
    assert len(errors) == 15
    assert max(errors) < 50e-6


def test_without_the_launch_the_same_prediction_is_off_by_milliseconds(messages):
    found = messages[messages["iteration"] == 4].reset_index(drop=True)
    buckets = found[["nbytes", "ready_s"]].assign(n_gradients=1)
    timeline = schedule(buckets, (found["end_s"] - found["start_s"]).to_numpy())
    assert (timeline["start_s"] - found["start_s"]).abs().max() > 150e-6


def test_gradients_of_a_bucket_are_ready_when_their_message_is(ddp_run, messages):
    each = gradients_by_iteration(ddp_run.events).set_index(["iteration", "index"])
    ready = each["backward_start_s"] + each["ready_s"]
    last = np.cumsum([2, 15, 12, 51, 81]) - 1  # of each bucket, from torch's own rule
    for number, found in messages.groupby("iteration"):
        lead = found["ready_s"].to_numpy() - ready.loc[number].loc[last].to_numpy()
        assert len(lead) == 5
        assert (lead >= 0).all() and (lead <= 0.5e-3).all()


@pytest.mark.parametrize(
    "name, n, nbytes, first, low, high",
    [
        ("old-format-resnet50", [161] * 6, 102228128, [4000, 8192000], 65.6e-3, 66.1e-3),
        ("rccl-generic-names", [62] * 3, 11689512 * 2, [2000, 1024000], 5.235e-3, 5.275e-3),
        ("ddp-resnet50-2gpu", [161] * 3, 0, [pd.NA, pd.NA], 81e-3, 88e-3),
    ],
)
def test_gradients_of_real_runs(shared, name, n, nbytes, first, low, high):
    path = next((shared / "traces/kineto" / name).glob("*.gz"))
    groups = gradients_by_iteration(load(path).events).groupby("iteration")
    assert groups.size().tolist() == n
    for _, found in groups:
        assert found["nbytes"].sum() == nbytes
        assert found["nbytes"].head(2).tolist() == first
        assert (found["ready_s"].diff().dropna() >= 0).all()
        assert low <= found["ready_s"].iloc[-1] - found["ready_s"].iloc[0] <= high


def test_one_row_a_gradient_is_the_median_with_its_spread(shared):
    run = load(next((shared / "traces/kineto/old-format-resnet50").glob("*.gz")))
    each = gradients_by_iteration(run.events).pivot(columns="iteration", index="index")["ready_s"]
    table = gradients(run)
    assert table["ready_s"].to_numpy() == pytest.approx(np.median(each, axis=1), rel=1e-12)
    assert (table["ready_min_s"] <= table["ready_s"]).all()
    assert (table["ready_s"] <= table["ready_max_s"]).all()
    assert table["nbytes"].sum() == 102228128


def accumulating(n, *, step=1, shapes=True):
    """One iteration on a GPU: n gradients, the kernel of each ends 50 us after its operator."""
    start = 10_000 * step
    events = [complete("user_annotation", f"ProfilerStep#{step}", start, 9000)]
    for i in range(n):
        at = start + 100 * i
        shape = {"Input Dims": [[8 * (i + 1)]], "Input type": ["float"]} if shapes else {}
        name = "torch::autograd::AccumulateGrad"
        events += launched(f"k{i}", at + 40, 80, at + 10, 100 * step + i, thread=5)
        events += [complete("cpu_op", "MulBackward0", at + 5, 60, tid=5)]
        events += [complete("cpu_op", name, at + 50, 20, tid=5, **shape)]
    return events


def test_a_gradient_is_ready_when_the_last_kernel_launched_before_has_ended(write_trace):
    table = gradients(load(write_trace(accumulating(3))))
    assert table["nbytes"].tolist() == [32, 64, 96]
    # Backward begins with the first kernel, at 40 us; each kernel lasts 80 us.
    assert table["ready_s"].to_numpy() == pytest.approx([80e-6, 180e-6, 280e-6])


def test_a_table_of_sizes_fills_what_the_trace_does_not_tell(write_trace):
    run = load(write_trace(accumulating(2, shapes=False)))
    assert gradients(run)["nbytes"].isna().all()
    sizes = pd.DataFrame({"name": ["fc.bias", "fc.weight"], "nbytes": [40, 400]})
    table = gradients(run, sizes=sizes)
    assert table["name"].tolist() == ["fc.bias", "fc.weight"]
    assert table["nbytes"].tolist() == [40, 400]


def test_sizes_of_another_model_are_refused(write_trace):
    run = load(write_trace(accumulating(2)))
    with pytest.raises(ValueError, match="expected 2 gradients as in the trace, got 1"):
        gradients(run, sizes=pd.DataFrame({"name": ["a"], "nbytes": [4]}))
    with pytest.raises(ValueError, match="gradient 1 has 64 bytes in the trace and 65"):
        gradients(run, sizes=pd.DataFrame({"name": ["a", "b"], "nbytes": [32, 65]}))


def test_an_iteration_with_another_number_of_gradients_is_left_out_and_said(write_trace):
    events = accumulating(3, step=1) + accumulating(3, step=2) + accumulating(2, step=3)
    with pytest.warns(UserWarning, match=r"3 in most iterations; left out .*: 3 \(2\)"):
        table = gradients(load(write_trace(events)))
    assert len(table) == 3


def test_a_run_without_gradients_says_what_is_missing(write_trace):
    with pytest.raises(ValueError, match="no torch::autograd::AccumulateGrad operator"):
        gradients(load(write_trace([complete("kernel", "k", 1, 2)])))


def test_without_a_gpu_a_gradient_is_ready_when_its_operator_ends(write_trace):
    name = "torch::autograd::AccumulateGrad"
    events = [
        complete("user_annotation", "ProfilerStep#1", 0, 1000),
        complete("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 100, 50),
        complete("cpu_op", name, 160, 10),
        complete("cpu_op", name, 200, 30),
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 1}
    table = gradients(load(write_trace(events, distributedInfo=info)))
    assert table["ready_s"].to_numpy() == pytest.approx([70e-6, 130e-6])


def two_ranks(write_trace, starts_of_rank_1):
    """Three all-reduces; rank 0 comes at 100, 500, 900 us and all end 50 us after the last."""
    for rank, starts in enumerate([(100, 500, 900), starts_of_rank_1]):
        kernels = [
            complete("kernel", ALL_REDUCE, at, max(at, other) + 50 - at, stream=20)
            for at, other in zip(starts, [starts_of_rank_1, (100, 500, 900)][rank], strict=True)
        ]
        step = complete("user_annotation", "ProfilerStep#1", 0, 2000)
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        path = write_trace([step, *kernels], f"run/{rank}.json", distributedInfo=info)
    return load(path.parent).events


def test_the_rank_that_comes_last_causes_the_waiting(write_trace):
    table = stragglers(two_ranks(write_trace, (160, 540, 890))).set_index("rank")
    assert table.index.tolist() == [1, 0]
    assert table["n_last"].tolist() == [2, 1]
    assert table["caused_wait_s"].to_numpy() == pytest.approx([100e-6, 10e-6])
    assert table["waited_s"].to_numpy() == pytest.approx([10e-6, 100e-6])
    assert table["transfer_s"].to_numpy() == pytest.approx([150e-6, 150e-6])


def test_the_real_straggler_is_rank_2(shared):
    table = stragglers(load(shared / "traces/kineto/torchrec-4rank-straggler").events)
    assert table["rank"].iloc[0] == 2
    others = table.set_index("rank").drop(2)
    assert ((others["waited_s"] > 2.95) & (others["waited_s"] < 3.07)).all()
    assert (others["transfer_s"] < 0.1).all()


def test_one_rank_cannot_tell_who_waits(write_trace):
    with pytest.raises(ValueError, match="two or more ranks.*got one rank, <NA>"):
        stragglers(load(write_trace([complete("kernel", ALL_REDUCE, 1, 2)])).events)


def test_a_steady_name_is_offered_and_splits_the_window(write_trace):
    events = []
    for i in range(5):
        events += [complete("user_annotation", "train", 1000 * i, 900)]
        events += launched(f"k{i}", 1000 * i + 950, 100, 1000 * i + 20, correlation=i)
        events += [complete("cpu_op", "aten::mm", 1000 * i + 300 * (i % 2), 5)]
    events = load(write_trace(events)).events
    offered = repeating(events)
    assert offered["name"].tolist() == ["train", "cudaLaunchKernel"]
    assert offered["n"].tolist() == [5, 5]
    assert offered["period_s"].to_numpy() == pytest.approx([1e-3, 1e-3])
    kernels = split(events, "train").query("kind == 'compute'")
    assert kernels["iteration"].tolist() == [0, 1, 2, 3, 4]
    assert iterations(split(events, "train"))["duration_s"].iloc[0] == pytest.approx(1e-3)


def test_splitting_by_an_unknown_name_points_to_the_offers(write_trace):
    with pytest.raises(ValueError, match=r"no row called 'x'; repeating\(events\) lists names"):
        split(load(write_trace([complete("kernel", "k", 1, 2)])).events, "x")


def test_communication_that_was_not_recorded_is_unknown_not_zero(write_trace):
    call = complete("user_annotation", "nccl:all_reduce", 100, 900)
    events = [call, complete("kernel", "gemm", 200, 400, stream=7)]
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    with pytest.warns(UserWarning, match="recorded no communication kernel"):
        run = load_run(write_trace(events, distributedInfo=info))
    with pytest.warns(UserWarning, match="rank 0 called collectives.*<NA>, unknown"):
        row = iterations(run.events).iloc[0]
    assert row[["comm_s", "exposed_comm_s", "idle_s"]].isna().all()
    assert row["compute_s"] == pytest.approx(400e-6)


def test_a_run_is_taken_for_its_events(write_trace):
    run = load(write_trace(accumulating(2)))
    for measure in (iterations, collectives, gradients):
        pd.testing.assert_frame_equal(measure(run), measure(run.events))


def test_a_path_in_place_of_a_run_is_refused():
    with pytest.raises(ValueError, match="events: expected a DataFrame, got str. Pass load_run"):
        iterations("runs/a.json")


def three_messages(write_trace, *, missing=False, skew=0):
    """Two ranks, three all-reduces of 50 us transfer; rank 1 may lack the first."""
    for rank in range(2):
        kernels = [
            complete("kernel", ALL_REDUCE, at + 10 * rank, 60 - 10 * rank, stream=20)
            for at in (10_000, 20_000, 30_000)
        ]
        kernels = kernels[1:] if missing and rank else kernels
        step = complete("user_annotation", "ProfilerStep#1", 0, 90_000)
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        base = {"baseTimeNanoseconds": 1_700_000_000 * 10**9}
        path = write_trace([step, *kernels], f"run/{rank}.json", distributedInfo=info, **base)
    return load(path.parent).events


def test_a_message_that_one_rank_misses_does_not_shift_the_others(write_trace):
    table = collectives(three_messages(write_trace, missing=True))
    assert table["n_ranks_seen"].tolist() == [1, 2, 2]
    assert table["wait_s"].to_numpy() == pytest.approx([0, 10e-6, 10e-6])
    assert table["transfer_s"].to_numpy() == pytest.approx([60e-6, 50e-6, 50e-6])


def test_no_real_rank_leaves_a_message_before_another_has_come(shared):
    for name in ("torchrec-4rank-half-hidden", "torchrec-4rank-straggler", "sampled-2of128"):
        table = collectives(load(shared / "traces/kineto" / name).events)
        assert (table["transfer_s"] > -1e-3).all(), name


def test_times_that_include_waiting_for_ranks_not_loaded_are_warned_of(shared):
    run = load(shared / "traces/kineto/ddp-resnet50-2gpu/nccl_data.json.gz")
    with pytest.warns(UserWarning, match="15 of 15 messages are seen from some of their ranks"):
        assert len(all_reduces(run)) == 15


def test_ranks_that_tie_for_last_share_what_they_cause(write_trace):
    for rank, start in enumerate((100, 1100, 1100)):
        kernel = complete("kernel", ALL_REDUCE, start, 1200 - start, stream=20)
        step = complete("user_annotation", "ProfilerStep#1", 0, 2000)
        info = {"rank": rank, "world_size": 3}
        path = write_trace([step, kernel], f"run/{rank}.json", distributedInfo=info)
    table = stragglers(load(path.parent))
    assert table["caused_wait_s"].sum() == pytest.approx(table["waited_s"].sum()) == 1e-3


def test_the_usual_number_of_gradients_is_that_of_most_iterations(write_trace):
    events = [e for step, n in ((1, 2), (2, 2), (3, 5)) for e in accumulating(n, step=step)]
    with pytest.warns(UserWarning, match=r"2 in most iterations; left out .*: 3 \(5\)"):
        assert len(gradients(load(write_trace(events)))) == 2


def test_of_accumulated_passes_the_last_is_kept(write_trace):
    events = [complete("user_annotation", "ProfilerStep#1", 0, 90_000)]
    for i, at in enumerate((1000, 1100, 1200, 9000, 9100, 9200)):
        shape = {"Input Dims": [[8 * (i % 3 + 1)]], "Input type": ["float"]}
        name = "torch::autograd::AccumulateGrad"
        events += launched(f"k{i}", at + 40, 80, at + 10, correlation=i, thread=5)
        events += [complete("cpu_op", "MulBackward0", at + 5, 60, tid=5)]
        events += [complete("cpu_op", name, at + 50, 20, tid=5, **shape)]
    with pytest.warns(UserWarning, match="2 backward passes in an iteration"):
        table = gradients(load(write_trace(events)))
    assert table["nbytes"].tolist() == [32, 64, 96]
    assert table["ready_s"].to_numpy() == pytest.approx([80e-6, 180e-6, 280e-6])


def test_work_launched_before_the_first_step_counts_where_it_runs(write_trace):
    step = complete("user_annotation", "ProfilerStep#1", 100, 900)
    early = launched(ALL_REDUCE, 150, 300, launch_ts=10, correlation=1, stream=20)
    gemm = launched("gemm", 200, 400, launch_ts=120, correlation=2)
    row = iterations(load(write_trace([step, *early, *gemm]))).iloc[0]
    assert row["duration_s"] == pytest.approx(400e-6)
    assert row["comm_s"] == pytest.approx(250e-6)


def test_events_put_together_by_hand_count_the_same(shared):
    run = load(shared / "traces/kineto/torchrec-4rank-straggler")
    parts = [mine.reset_index(drop=True) for _, mine in run.events.groupby("rank")]
    pd.testing.assert_frame_equal(iterations(pd.concat(parts)), iterations(run))
