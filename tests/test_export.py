"""Predictions as a run would be recorded: EVENTS, and a trace that load_run reads back."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_timeline import scenario

from workbench.base.tables import EVENTS
from workbench.costs import Affine, Link
from workbench.fusion import OneMessage
from workbench.timeline import NormalJitter, as_events, chrome_trace, predict, predict_sharded
from workbench.timeline.export import event, message
from workbench.traces import collectives, iterations, load_run

# 1 ms in place of 1 s, so that times are those of a run
LINK = {"one_worker_s": 1e-2, "backward_s": 5e-3}
VARIED = {
    "plain": {},
    "no overlap": {"overlap": False},
    "one message": {"fusion": OneMessage()},
    "micro-batches": {"micro_batches": 2},
    "streams": {"n_streams": 2},
    "slowdown": {"slowdown": 0.15},
    "jitter": {"jitter": NormalJitter(1e-4)},
    "launches": {"launch_s": [1.5e-3, 2.5e-3, 2e-2]},
    "fixed time": {"fixed_s": 3e-4},
    "a lone worker": {"n_workers": 1},
}


def short(**changes):
    gradients = scenario().gradients
    gradients = gradients.assign(ready_s=gradients["ready_s"] * 1e-3 + 1e-7 / 3)
    return scenario(gradients=gradients, all_reduce=Affine(Link(1e-3, 1e-6)), **LINK | changes)


def reload(tmp_path, trace: str):
    path = tmp_path / "predicted.json"
    path.write_text(trace)
    return load_run(path)


@pytest.mark.parametrize("changes", VARIED.values(), ids=VARIED)
def test_a_trace_reads_back_with_the_same_times_to_the_nanosecond(tmp_path, changes):
    prediction = predict(short(**changes))
    (measured,) = iterations(reload(tmp_path, prediction.to_chrome_trace()).events).to_dict(
        "records"
    )
    # each of two ends of an interval is rounded to the ns
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s, abs=4e-9)
    assert measured["duration_s"] == pytest.approx(prediction.iteration_s, abs=2e-9)


def test_a_trace_keeps_messages_sizes_workers_and_launches(tmp_path):
    events = predict(short(n_streams=2)).to_events()
    again = reload(tmp_path, chrome_trace(events)).events
    ours, theirs = collectives(events), collectives(again)
    for name in ("op", "nbytes", "n_workers"):
        assert ours[name].tolist() == theirs[name].tolist()
    for name in ("ready_s", "launch_s", "start_s", "end_s"):
        assert theirs[name].tolist() == pytest.approx(ours[name].tolist(), abs=1e-9)


def test_sharded_training_reads_back_too(tmp_path):
    prediction = predict_sharded(short())
    run = reload(tmp_path, prediction.to_chrome_trace())
    measured = iterations(run.events).squeeze()
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s, abs=2e-8)
    assert set(collectives(run.events)["op"]) == {"all_gather", "reduce_scatter"}


def test_nothing_of_a_trace_is_dropped_but_the_names_of_its_lanes(tmp_path):
    ledger = reload(tmp_path, predict(short()).to_chrome_trace()).ledger
    assert set(ledger.loc[~ledger["kept"], "what"]) == {"ph M"}


def test_a_trace_is_json_of_complete_events_in_named_lanes():
    trace = json.loads(predict(short(n_streams=2)).to_chrome_trace())
    rows = trace["traceEvents"]
    assert {row["ph"] for row in rows} == {"X", "M"}
    names = {row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert names == {"stream 0", "stream 1", "stream 2", "host thread 0"}
    assert trace["distributedInfo"] == {"rank": 0, "world_size": 2}
    assert all(row["dur"] >= 0 for row in rows if row["ph"] == "X")


def test_rows_that_no_launch_joins_stay_apart():
    rows = [*message(3, "all_reduce", 8, 2, 1, (0.0, 1.0, 2.0)), event("compute", "k", 0, 1, 0)]
    events = as_events(rows)
    assert list(events) == list(EVENTS)
    assert events["correlation"].tolist() == [3, 3, -1]
    found = [row["args"] for row in json.loads(chrome_trace(events))["traceEvents"][-3:]]
    assert ["correlation" in args for args in found] == [True, True, False]


def test_unknown_sizes_and_ranks_stay_unknown(tmp_path):
    events = predict(short()).to_events()
    bare = events.assign(rank=pd.NA, nbytes=pd.NA, n_workers=pd.NA)
    again = reload(tmp_path, chrome_trace(bare)).events
    assert again.loc[again["kind"] == "comm", ["nbytes"]].isna().all(axis=None)


def test_accumulated_passes_are_compute_before_the_last():
    prediction = predict(replace(short(), micro_batches=2))
    compute = prediction.to_events().query("kind == 'compute'")
    # two passes of 5 ms backward fill T1, so forward takes no time; the second is cut thrice
    assert compute["name"].tolist() == ["forward", "backward", "forward", *["backward"] * 4]
    spans = (compute["end_s"] - compute["start_s"]).to_numpy()
    assert np.isclose(spans.sum(), 1e-2)
