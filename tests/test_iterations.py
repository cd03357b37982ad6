"""Where the time goes: by hand, by counting, and on real traces with an independent breakdown."""

import warnings

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, at_hand, complete, launched, refusal

from workbench.base.tables import COLLECTIVES, ITERATIONS, MEASUREMENTS
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

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
ACCUMULATES = "torch::autograd::AccumulateGrad"
RESNET50 = [2049000, 7875584, 6563840, 6637568, 2431040]  # float32 elements of DDP's messages


def load(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some real traces have no rank
        return load_run(path)


def events_of(kinds_and_spans):
    """EVENTS of one rank and iteration: (kind, start, end) in whole seconds."""
    table = pd.DataFrame(kinds_and_spans, columns=["kind", "start_s", "end_s"])
    fixed = {"rank": 0, "iteration": 0, "nbytes": pd.NA, "n_workers": pd.NA}
    fixed |= dict.fromkeys(("stream", "thread", "correlation"), -1) | {"name": "", "op": ""}
    return table.assign(**fixed).astype({"rank": "Int64", "start_s": float, "end_s": float})


def test_the_parts_of_an_iteration_by_hand():
    spans = [("compute", 0, 4), ("comm", 3, 6), ("memory", 5, 9), ("compute", 10, 12)]
    events = events_of(spans)
    before = events.copy(deep=True)
    row = iterations(events).iloc[0]
    assert row[list(ITERATIONS)[2:]].tolist() == [12, 6, 3, 2, 4, 3, 1]
    collectives(events), all_reduces(events)
    pd.testing.assert_frame_equal(events, before)


@pytest.mark.parametrize("seed", range(30))
def test_random_iterations_equal_counting_whole_seconds(seed):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 40, 15)
    end = start + rng.integers(1, 9, 15)
    kinds = rng.choice(["compute", "comm", "memory"], 15)
    kinds[:2] = ["compute", "comm"]
    row = iterations(events_of(list(zip(kinds, start, end, strict=True)))).iloc[0]
    kernels = kinds != "memory"
    window = set(range(start[kernels].min(), end[kernels].max()))
    on = {kind: set() for kind in kinds}
    for kind, low, high in zip(kinds, start, end, strict=True):
        on[kind] |= set(range(low, high)) & window
    compute, comm, memory = on["compute"], on["comm"], on.get("memory", set())
    sets = [window, compute, comm, comm - compute, memory, memory - compute - comm]
    sets.append(window - compute - comm - memory)
    assert row[list(ITERATIONS)[2:]].tolist() == list(map(len, sets))


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


def test_every_real_trace_is_met_to_the_nanosecond(shared):
    reference = pd.read_csv(shared / "traces/breakdown.csv")
    for row in reference[~reference["file"].str.contains("tar")].itertuples():
        run = load(shared / "traces" / row.file)
        assert run.ledger["n_events"].sum() == row.n_events, row.file
        assert run.ledger.loc[run.ledger["kept"], "n_events"].sum() == len(run.events), row.file
        kinds = run.events.loc[run.events["stream"] >= 0, "kind"]
        assert kinds.isin(["compute", "comm"]).sum() == row.n_kernels, row.file
        assert (kinds == "comm").sum() == row.n_comm, row.file
        if row.n_kernels:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # tiny-pair has calls without kernels
                total = iterations(run).sum(numeric_only=True)
            total["hidden_s"] = total["comm_s"] - total["exposed_comm_s"]
            found = total[["duration_s", "compute_s", "comm_s", "exposed_comm_s", "hidden_s"]]
            expected = row.window_ns, row.compute_ns, row.comm_ns, row.exposed_ns, row.hidden_ns
            # Sums of float64 seconds: far below half a ns, so rounding gives the whole number.
            assert tuple((found * 1e9).round().astype(int)) == expected, row.file


def on_ranks(write_trace, *spans, **facts):
    """A run of one folder whose ranks hold all-reduces (start, end) in us."""
    for rank, mine in enumerate(spans):
        kernels = [
            complete("kernel", ALL_REDUCE, low, high - low, stream=20, **facts)
            for low, high in mine
        ]
        step = complete("user_annotation", "ProfilerStep#1", 0, 90_000)
        info = {"rank": rank, "world_size": len(spans), "backend": "nccl"}
        base = {"baseTimeNanoseconds": 1_700_000_000 * 10**9}
        path = write_trace([step, *kernels], f"run/{rank}.json", distributedInfo=info, **base)
    return load(path.parent)


def test_waiting_for_another_rank_is_separate_from_transfer(write_trace):
    facts = {"Collective name": "allreduce", "In msg nelems": 256, "dtype": "Float"}
    run = on_ranks(write_trace, [(100, 1100)], [(1000, 1100)], **facts, **{"Group size": 2})
    row = collectives(run).iloc[0]
    assert row["n_ranks_seen"] == 2
    times = row[["end_s", "wait_s", "transfer_s"]] - [row["start_s"], 0, 0]
    assert times.tolist() == pytest.approx([1000e-6, 900e-6, 100e-6])
    table = all_reduces(run)
    assert list(table) == list(MEASUREMENTS)
    assert table[["op", "n_workers", "nbytes"]].values.tolist() == [["all_reduce", 2, 1024]]
    assert table["seconds"].tolist() == pytest.approx([100e-6])


def test_a_message_that_one_rank_misses_does_not_shift_the_others(write_trace):
    starts = (10_000, 20_000, 30_000)
    ranks = [(at, at + 60) for at in starts], [(at + 10, at + 60) for at in starts[1:]]
    table = collectives(on_ranks(write_trace, *ranks))
    assert table["n_ranks_seen"].tolist() == [1, 2, 2]
    assert table["wait_s"].to_numpy() == pytest.approx([0, 10e-6, 10e-6])
    assert table["transfer_s"].to_numpy() == pytest.approx([60e-6, 50e-6, 50e-6])


def test_messages_on_two_threads_are_joined_by_size_in_whatever_order_ranks_begin_them():
    # rank 0 begins 100 B, then 200 B; rank 1 the other way round; their ends alternate
    spans = [("comm", 0, 10), ("comm", 1, 13), ("comm", 0, 11), ("comm", 2, 12)]
    events = events_of(spans).assign(op="all_reduce", nbytes=[100, 200, 200, 100], n_workers=2)
    table = collectives(events.assign(rank=pd.array([0, 0, 1, 1], "Int64")))
    assert table["n_ranks_seen"].tolist() == [2, 2]
    found = table.set_index("nbytes")[["start_s", "end_s", "wait_s", "transfer_s"]]
    assert found.loc[100].tolist() == [0, 12, 2, 10]
    assert found.loc[200].tolist() == [0, 13, 1, 12]


def test_the_rank_that_comes_last_causes_the_waiting(write_trace):
    ends = (210, 590, 950)  # 50 us after the last arrival
    ranks = [list(zip(starts, ends, strict=True)) for starts in ((100, 500, 900), (160, 540, 890))]
    table = stragglers(on_ranks(write_trace, *ranks)).set_index("rank")
    assert table.index.tolist() == [1, 0]
    assert table["n_last"].tolist() == [2, 1]
    assert table["caused_wait_s"].to_numpy() == pytest.approx([100e-6, 10e-6])
    assert table["waited_s"].to_numpy() == pytest.approx([10e-6, 100e-6])
    assert table["transfer_s"].to_numpy() == pytest.approx([150e-6, 150e-6])


def test_ranks_that_tie_for_last_share_what_they_cause(write_trace):
    table = stragglers(on_ranks(write_trace, *([(at, 1200)] for at in (100, 1100, 1100))))
    assert table["caused_wait_s"].tolist() == pytest.approx([5e-4, 5e-4, 0])
    assert table["waited_s"].sum() == pytest.approx(1e-3)


def test_the_real_straggler_makes_the_others_wait(shared):
    run = load(shared / "traces/kineto/torchrec-4rank-straggler")
    table = collectives(run)
    assert (table["n_ranks_seen"] <= 4).all()
    whole = table[table["n_ranks_seen"] == 4]
    assert whole["wait_s"].sum() > 2.9  # one rank sleeps for 1 s in each of 3 iterations
    assert whole["transfer_s"].sum() < 0.2
    table = stragglers(run)
    assert table["rank"].iloc[0] == 2
    others = table.set_index("rank").drop(2)
    assert ((others["waited_s"] > 2.95) & (others["waited_s"] < 3.07)).all()
    assert (others["transfer_s"] < 0.1).all()
    parts = [mine.reset_index(drop=True) for _, mine in run.events.groupby("rank")]
    pd.testing.assert_frame_equal(iterations(pd.concat(parts)), iterations(run))


def test_medians_of_messages_of_unknown_size_are_refused(shared):
    run = load(shared / "traces/kineto/v100-2rank-small-allreduces")
    refusal(lambda: medians(run), "events", "2020 of unknown size")


def test_medians_keep_each_message_of_an_iteration_with_its_spread(ddp_run):
    with pytest.warns(UserWarning, match="medians: 15 of 15 messages have rows of some"):
        table = medians(ddp_run)
    with pytest.warns(UserWarning, match="all_reduces: 15 of 15"):
        each = all_reduces(ddp_run)
    assert list(table) == [*MEASUREMENTS, "n_iterations", "seconds_min", "seconds_max"]
    times = each["seconds"].to_numpy().reshape(3, 5)  # iteration by message
    assert table["seconds"].tolist() == pytest.approx(np.median(times, axis=0).tolist())
    assert table["seconds_max"].tolist() == pytest.approx(times.max(axis=0).tolist())
    assert table["n_iterations"].tolist() == [3] * 5


@pytest.fixture(scope="module")
def ddp_run():
    return load(at_hand("traces", "kineto", "ddp-resnet50-2gpu", "nccl_data.json.gz"))


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
    errors, without_launch = [], []
    for _, found in messages.groupby("iteration"):
        found = found.reset_index(drop=True)
        buckets = found[["nbytes", "ready_s"]].assign(n_gradients=1)
        seconds = (found["end_s"] - found["start_s"]).to_numpy()
        for launch_s, into in ((found["launch_s"].to_numpy(), errors), (0.0, without_launch)):
            timeline = schedule(buckets, seconds, launch_s=launch_s)
            into += (timeline["start_s"] - found["start_s"]).abs().tolist()
    assert len(errors) == 15
    assert max(errors) < 50e-6
    assert max(without_launch) > 150e-6


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


def test_one_row_per_gradient_is_the_median_with_its_spread(shared):
    run = load(next((shared / "traces/kineto/old-format-resnet50").glob("*.gz")))
    each = gradients_by_iteration(run.events).pivot(columns="iteration", index="index")["ready_s"]
    table = gradients(run)
    assert table["ready_s"].to_numpy() == pytest.approx(np.median(each, axis=1), rel=1e-12)
    assert (table["ready_min_s"] <= table["ready_s"]).all()
    assert (table["ready_s"] <= table["ready_max_s"]).all()
    assert table["nbytes"].sum() == 102228128


def accumulating(*n_gradients, passes=(0,), shapes=True):
    """Steps on a GPU, each of n gradients; the kernel of each ends 50 us after its operator."""
    events, number = [], 0
    for step, n in enumerate(n_gradients, 1):
        events += [complete("user_annotation", f"ProfilerStep#{step}", 100_000 * step, 90_000)]
        for at, i in ((100_000 * step + p + 100 * i, i) for p in passes for i in range(n)):
            shape = {"Input Dims": [[8 * (i + 1)]], "Input type": ["float"]} if shapes else {}
            events += launched(f"k{i}", at + 40, 80, at + 10, number := number + 1, thread=5)
            events += [complete("cpu_op", "MulBackward0", at + 5, 60, tid=5)]
            events += [complete("cpu_op", ACCUMULATES, at + 50, 20, tid=5, **shape)]
    return events


def test_a_gradient_is_ready_when_the_last_kernel_launched_before_has_ended(write_trace):
    run = load(write_trace(accumulating(3)))
    table = gradients(run)
    assert table["nbytes"].tolist() == [32, 64, 96]
    # Backward begins with the first kernel, at 40 us; each kernel lasts 80 us.
    assert table["ready_s"].to_numpy() == pytest.approx([80e-6, 180e-6, 280e-6])
    for measure in (iterations, collectives, gradients):
        pd.testing.assert_frame_equal(measure(run), measure(run.events))


def test_the_last_of_several_accumulated_passes_is_kept(write_trace):
    run = load(write_trace(accumulating(3, passes=(1000, 9000))))
    with pytest.warns(UserWarning, match="2 backward passes in an iteration"):
        table = gradients(run)
    assert table["nbytes"].tolist() == [32, 64, 96]
    assert table["ready_s"].to_numpy() == pytest.approx([80e-6, 180e-6, 280e-6])


@pytest.mark.parametrize(("counts", "usual"), [((3, 3, 2), 3), ((2, 2, 5), 2)])
def test_an_iteration_with_another_number_of_gradients_is_left_out(write_trace, counts, usual):
    run = load(write_trace(accumulating(*counts)))
    with pytest.warns(UserWarning, match=rf"{usual} in most .*: 3 \({counts[-1]}\)"):
        assert len(gradients(run)) == usual


def test_a_table_of_sizes_fills_what_the_trace_lacks(write_trace):
    run = load(write_trace(accumulating(2, shapes=False)))
    assert gradients(run)["nbytes"].isna().all()
    sizes = pd.DataFrame({"name": ["fc.bias", "fc.weight"], "nbytes": [40, 400]})
    table = gradients(run, sizes=sizes)
    assert table["name"].tolist() == ["fc.bias", "fc.weight"]
    assert table["nbytes"].tolist() == [40, 400]


def test_tables_and_runs_that_do_not_fit_are_refused(write_trace):
    run = load(write_trace(accumulating(2)))
    for nbytes, got in (([32], 1), ([32, 65], 65)):
        sizes = pd.DataFrame({"name": "a", "nbytes": nbytes})
        assert "as in the trace" in refusal(lambda s=sizes: gradients(run, sizes=s), "sizes", got)
    refusal(lambda: iterations(run.events.drop(columns="kind")), "events", "kind")
    refusal(lambda: iterations("runs/a.json"), "events", "load_run(path)")
    call = load(write_trace([complete("cuda_runtime", "cudaLaunchKernel", 1, 2)]))
    refusal(lambda: iterations(call), "events", "ProfilerActivity.CUDA")
    kernel = load(write_trace([complete("kernel", ALL_REDUCE, 1, 2)]))
    refusal(lambda: gradients(kernel), "events", ACCUMULATES)
    refusal(lambda: gradients_by_iteration(kernel), "events", ACCUMULATES)
    refusal(lambda: stragglers(kernel), "events", "1: <NA>")


def test_without_a_gpu_a_gradient_is_ready_when_its_operator_ends(write_trace):
    events = [
        complete("user_annotation", "ProfilerStep#1", 0, 1000),
        complete("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 100, 50),
        complete("cpu_op", ACCUMULATES, 160, 10),
        complete("cpu_op", ACCUMULATES, 200, 30),
    ]
    info = {"backend": "gloo", "rank": 0, "world_size": 1}
    table = gradients(load(write_trace(events, distributedInfo=info)))
    assert table["ready_s"].to_numpy() == pytest.approx([70e-6, 130e-6])


def test_communication_that_was_not_recorded_is_unknown_not_zero(write_trace):
    call = complete("user_annotation", "nccl:all_reduce", 100, 900)
    events = [call, complete("kernel", "gemm", 200, 400, stream=7)]
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    with pytest.warns(UserWarning, match="recorded no communication kernel"):
        run = load_run(write_trace(events, distributedInfo=info))
    with pytest.warns(UserWarning, match="rank 0 called collectives.*<NA>"):
        row = iterations(run.events).iloc[0]
    assert row[["comm_s", "exposed_comm_s", "idle_s"]].isna().all()
    assert row["compute_s"] == pytest.approx(400e-6)


def test_no_real_rank_leaves_a_message_before_another_has_come(shared):
    for name in ("torchrec-4rank-half-hidden", "torchrec-4rank-straggler", "sampled-2of128"):
        table = collectives(load(shared / "traces/kineto" / name).events)
        assert (table["transfer_s"] > -1e-3).all(), name


def test_work_launched_before_the_first_step_counts_where_it_runs(write_trace):
    step = complete("user_annotation", "ProfilerStep#1", 100, 900)
    early = launched(ALL_REDUCE, 150, 300, launch_ts=10, correlation=1, stream=20)
    gemm = launched("gemm", 200, 400, launch_ts=120, correlation=2)
    row = iterations(load(write_trace([step, *early, *gemm]))).iloc[0]
    assert row["duration_s"] == pytest.approx(400e-6)
    assert row["comm_s"] == pytest.approx(250e-6)
