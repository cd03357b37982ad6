"""What ran where in one iteration: spans by lane add up to ITERATIONS, on real traces too."""

import pandas as pd
import pytest
from conftest import ROOT, complete, launched, refusal

from workbench import US
from workbench.base.intervals import measure
from workbench.traces import iterations, lanes, load_run
from workbench.traces.tracks import MOST_LANES

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
HTML = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def two_steps(name: str = "gemm") -> list[dict]:
    """Two steps 1 ms apart; us of each: compute 100-130, 200-240, all-reduce 120-180, a copy."""
    events = []
    for step, at in enumerate((1000, 2000)):
        n = 10 * step
        copy = launched("Memcpy DtoH (Device -> Pageable)", at + 250, 5, at + 30, n + 4)
        events += [
            complete("user_annotation", f"ProfilerStep#{step}", at, 500),
            *launched(name, at + 100, 30, at + 10, n + 1, stream=7),
            *launched(NCCL, at + 120, 60, at + 20, n + 2, stream=20),
            *launched("relu", at + 200, 40, at + 25, n + 3, stream=7),
            *(copy[0], copy[1] | {"cat": "gpu_memcpy"}),
        ]
    return events


@pytest.fixture
def run(write_trace):
    return load_run(write_trace(two_steps(), distributedInfo={"rank": 0}))


def in_us(spans: pd.DataFrame) -> list[tuple]:
    """Lane, kind, start and end in whole us."""
    times = (spans[["start_s", "end_s"]] / US).round().astype(int)
    return list(zip(spans["lane"], spans["kind"], times["start_s"], times["end_s"], strict=True))


def test_spans_are_those_of_the_streams_with_communication_hidden_or_exposed(run):
    first, last = lanes(run), lanes(run, 0, 1)
    assert (first.iteration, last.iteration) == (0, 1)
    assert first.duration_s == pytest.approx(1000 * US)
    assert last.duration_s == pytest.approx(140 * US)  # to the end of the last kernel, no copy
    assert in_us(first.spans) == [
        ("stream 7", "compute", 0, 30),
        ("stream 7", "compute", 100, 140),
        ("stream 7", "memory", 150, 155),
        ("stream 20", "comm", 20, 30),
        ("stream 20", "exposed", 30, 80),
    ]


def test_time_spent_counts_what_is_shown(run):
    spent = lanes(run).spent(20 * US, 110 * US)
    expected = {"compute": 20, "comm": 10, "exposed": 50, "memory": 0, "idle": 20}
    assert {kind: s / US for kind, s in spent.items()} == pytest.approx(expected, abs=1e-6)


def test_the_longest_names_are_those_of_the_part_shown(run):
    alone = lanes(run).of("stream 20")
    assert set(alone.spans["kind"]) == {"comm", "exposed"}
    assert list(alone.longest()["name"]) == [NCCL]
    table = lanes(run).longest(25 * US, 120 * US)
    assert list(table["name"]) == [NCCL, "relu", "gemm"]
    assert list(table["seconds"] / US) == pytest.approx([55, 20, 5])
    assert list(table["n_rows"]) == [1, 1, 1]


@pytest.mark.parametrize(
    "name", ["resnet50-cpu-2", "transformer-cpu-2", "transformer-cpu-1", "horovod-cpu-2"]
)
def test_spans_add_up_to_the_iterations_of_recorded_runs(name):
    run = load_run(ROOT / "data" / "runs" / name)
    for row in iterations(run).itertuples():
        spent = lanes(run, row.rank, row.iteration).spent()
        found = [spent[kind] for kind in ("compute", "exposed", "memory", "idle")]
        found.append(spent["comm"] + spent["exposed"])
        parts = [row.compute_s, row.exposed_comm_s, row.memory_s, row.idle_s, row.comm_s]
        assert found == pytest.approx(parts, abs=1e-9), (row.rank, row.iteration)


def test_many_threads_become_one_lane_per_kind():
    run = load_run(ROOT / "data" / "runs" / "horovod-cpu-2")
    busy = run.events[run.events["kind"].isin(["comm", "memory"])]
    assert busy["thread"].nunique() > MOST_LANES
    for number in (0, 1, 2):
        spans = lanes(run, iteration=number).spans
        assert list(spans["lane"].unique()) == ["communication", "copies"]


@pytest.mark.filterwarnings("ignore:.*no rank in the file")
def test_a_run_that_names_no_rank_has_one(write_trace):
    run = load_run(write_trace(two_steps()))
    assert lanes(run).rank is None
    assert measure(*lanes(run).spans[["start_s", "end_s"]].to_numpy().T) == pytest.approx(125 * US)


def test_what_is_not_there_is_refused_with_what_is(run):
    for rank in (7, "none", [0]):
        assert "one of 0" in refusal(lambda rank=rank: lanes(run, rank), "rank", rank)
    for number in ([1], 9):
        assert "0, 1" in refusal(lambda n=number: lanes(run, iteration=n), "iteration", number)
    refusal(lambda: lanes(run.events.drop(columns="iteration")), "events", "iteration")
    refusal(lambda: lanes(run.events[run.events["kind"] == "host"]), "events", "GPU kernel")
