"""The study on emulated networks: its tables by hand, the shipped study, a short one made here."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import netlab
import numpy as np
import pandas as pd
import pytest
import study
from conftest import refusal

from workbench.base.tables import check
from workbench.validation.cells import VALIDATION
from workbench.validation.gain import GAIN
from workbench.validation.study import (
    CELLS,
    PROFILES,
    Study,
    errors,
    gains,
    paired_gains,
    policies,
    predicted,
    read_study,
    speedups,
    without_overlap,
)
from workbench.validation.study import scenario as scenario_of

SHIPPED = Path(__file__).parents[1] / "data" / "runs" / "study"
SCRIPT = Path(study.__file__)
# Two gradients of 0.1 s on the wire each, ready at 0.1 and 0.2 s of a backward of 0.2 s; T1 0.3 s,
# the wrapper's 0.01 s. Each alone: the second ends 0.1 s after backward. In one: 0.2 s after it.
APART_S, TOGETHER_S = 0.3 + 0.1 + 0.01, 0.3 + 0.2 + 0.01
BY_HAND = {
    "per tensor": APART_S,
    "one message": TOGETHER_S,
    "DDP": APART_S,  # 100 MB pass the first limit of 1 MiB
    "64 MiB": APART_S,  # 100 MB pass it, so each travels alone
    "64 MiB to scale": APART_S,
    "adaptive": APART_S,
}


def study_by_hand(**seconds):
    profiles = pd.DataFrame({"name": ["a", "b"], "nbytes": [10**8] * 2, "ready_s": [0.1, 0.2]})
    profiles = profiles.assign(
        model="two", scale=4, one_worker_s=0.3, backward_s=0.2, wrapper_s=0.01
    )
    sizes = np.array([10**3, 10**6, 10**9])
    timed = pd.DataFrame({"nbytes": sizes, "seconds": sizes * 1e-9, "network": "net"})
    timed = timed.assign(op="all_reduce", n_workers=2, n_nodes=2)
    rows = [
        ("net", 2, "two", policy, 2, s, 0.99 * s, 1.01 * s)
        for policy, s in (BY_HAND | seconds).items()
    ]
    return Study(profiles[list(PROFILES)], timed, pd.DataFrame(rows, columns=list(CELLS)), {})


def test_predictions_are_those_by_hand():
    study = study_by_hand()
    assert list(policies(scenario_of(study.profiles, study.collectives, 2), 4)) == list(BY_HAND)
    other = study.collectives.assign(op="broadcast", seconds=9.0)  # which prices nothing
    study = replace(study, collectives=pd.concat([other, study.collectives]))
    table = check(predicted(study), VALIDATION, "study")
    assert table["error"].to_numpy() == pytest.approx(np.zeros(6), abs=1e-12)
    one = table.set_index("method").loc["one message"]
    assert (one["measured"], one["low"]) == pytest.approx((0.3 / 0.51, 0.3 / 0.51 / 1.01))
    assert table.set_index("method")["predicted_messages"].to_dict() == dict(
        zip(BY_HAND, (2, 1, 2, 2, 2, 2), strict=True)
    )


def test_errors_count_every_cell_and_measurements_do_not_change_predictions():
    table = predicted(study_by_hand(DDP=2 * APART_S))  # one of six is off by 100 %
    slower = table.set_index("method").loc["DDP"]
    assert (slower["predicted"], slower["error"]) == pytest.approx((0.3 / APART_S, 1.0))
    assert errors(table, by="case").equals(errors(table, by=("case",)))
    row = errors(table).iloc[0]
    assert (row["cells"], row["mean_absolute"], row["largest"]) == pytest.approx((6, 1 / 6, 1.0))
    assert row["p95"] == pytest.approx(0.75)  # a quarter of the way down from the largest of six


def test_gains_are_over_every_other_policy():
    table = check(gains(predicted(study_by_hand())), GAIN, "gains").set_index("baseline")
    assert list(table.index) == [name for name in BY_HAND if name != "adaptive"]
    gain = TOGETHER_S / APART_S - 1
    one = table.loc["one message", ["gain", "predicted_gain"]].tolist()
    assert one == pytest.approx([gain, gain])
    assert table.loc["one message", "verdict"] == "below"
    assert table.loc["DDP", "verdict"] == "no headroom"


def test_noise_of_a_gain_joins_both_intervals():
    noise = gains(predicted(study_by_hand()))["noise"].to_numpy()
    half = (1 / 0.99 - 1 / 1.01) / 2  # of each interval, relative to the median
    assert noise == pytest.approx(np.full(5, half * np.sqrt(2)))


def test_paired_gains_have_each_baseline_as_measured_and_as_predicted():
    table = check(paired_gains(predicted(study_by_hand(DDP=2 * APART_S))), GAIN, "gains")
    rows = table.set_index("baseline").loc[["DDP: measured", "DDP: predicted"]]
    assert rows["gain"].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert rows["verdict"].tolist() == ["inside", "no headroom"]
    names = [name for name in BY_HAND if name != "adaptive"]
    expected = [f"{name}: {what}" for name in names for what in ("measured", "predicted")]
    assert table["baseline"].tolist() == expected


def test_without_overlap_all_methods_are_one_message_after_backward():
    table = without_overlap(predicted(study_by_hand()))
    assert table["predicted"].tolist() == pytest.approx([0.3 / TOGETHER_S] * 6)
    expected = [0.0 if name == "one message" else APART_S / TOGETHER_S - 1 for name in BY_HAND]
    assert table["error"].tolist() == pytest.approx(expected, abs=1e-12)


def test_speedups_are_geometric_means_over_models():
    one, other = predicted(study_by_hand()), predicted(study_by_hand(DDP=4 * APART_S))
    table = speedups(pd.concat([one, other.assign(model="three")]))
    assert list(table.index) == [("net", 2, "measured"), ("net", 2, "predicted")]
    assert list(table.columns) == [name for name in BY_HAND if name != "one message"]
    gain = TOGETHER_S / APART_S
    found = table["DDP"].tolist(), table["adaptive"].tolist()
    assert found[0] == pytest.approx([gain / 2, gain])  # of gain and a quarter of it
    assert found[1] == pytest.approx([gain, gain])
    assert speedups(one, over="DDP")["one message"].tolist() == pytest.approx([1 / gain] * 2)


def test_rows_may_come_in_any_order():
    one = predicted(study_by_hand())
    table = pd.concat([one, one.assign(model="three", measured=0.5 * one["measured"])])
    mixed = table.sample(frac=1, random_state=1)
    for function, key in ((gains, ["model", "baseline"]), (without_overlap, ["model", "method"])):
        found = [function(each).set_index(key).sort_index() for each in (table, mixed)]
        pd.testing.assert_frame_equal(*found)
    pd.testing.assert_frame_equal(speedups(table), speedups(mixed)[speedups(table).columns])


def change(**columns):
    return lambda table: table.assign(**columns)


@pytest.mark.parametrize(
    ("part", "change", "argument", "value"),
    [
        ("cells", lambda cells: cells[:0], "cells", "no row"),
        ("cells", lambda cells: pd.concat([cells, cells[:1]]), "cells", "per tensor"),
        ("cells", lambda cells: cells.replace("DDP", "DPP"), "cells policy", "DPP"),
        ("cells", change(iteration_s=0), "iteration_s", 0),
        ("cells", change(low_s=np.nan), "low_s", np.nan),
        ("cells", change(model="x"), "profiles", "x"),
        ("cells", change(network="x"), "collectives", "x"),
        ("cells", change(n_workers=3), "collectives", "3"),
        ("profiles", change(one_worker_s=[0.3, 0.6]), "profile", "2"),
        ("profiles", change(scale=0), "profile", 0),
        ("collectives", change(op="broadcast"), "collectives", "2"),
    ],
)
def test_what_a_study_lacks_or_has_twice_is_named(part, change, argument, value):
    study = study_by_hand()
    changed = replace(study, **{part: change(getattr(study, part))})
    refusal(lambda: predicted(changed), argument, value)


@pytest.mark.parametrize("function", [gains, without_overlap])  # the others check alike
def test_a_table_with_a_cell_missing_twice_or_without_a_number_is_refused(function):
    one = predicted(study_by_hand())
    table = pd.concat([one, one.assign(model="three")], ignore_index=True)
    over = "adaptive" if function is gains else "one message"
    for wrong, value in (
        (table[:0], "no row"),
        (table[:-1], "adaptive"),
        (table[table["method"] != over], over),
        (pd.concat([table, table[-1:]]), "three"),
        (table.assign(measured=0.0), 0),
        (table.assign(predicted=np.nan), np.nan),
        (table.assign(case=None), "an empty one"),
        (None, "NoneType"),
    ):
        refusal(lambda wrong=wrong: function(wrong), function.__name__, value)


def test_errors_and_gains_are_of_numbers_and_over_something():
    table = predicted(study_by_hand())
    refusal(lambda: gains(table[table["method"] == "adaptive"]), "gains", "none")
    refusal(lambda: paired_gains(table[:0]), "paired_gains", "no row")
    refusal(lambda: speedups(table, over="DPP"), "speedups", "DPP")
    refusal(lambda: errors(table.assign(error=np.nan)), "error", np.nan)
    refusal(lambda: errors(table, by=("net",)), "errors", "net")
    refusal(lambda: errors(table, by=()), "by")
    refusal(lambda: predicted(table), "study", "DataFrame")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("profiles.csv", b""),
        ("collectives.csv", b"\x00\xff"),
        ("cells.csv", b"a,b\n1,2,3\n1,2,3,4\n"),
        ("run.json", b"\x00"),
        ("run.json", None),
    ],
)
def test_a_damaged_or_missing_file_is_named(tmp_path, name, content):
    study = study_by_hand()
    for table in ("profiles", "collectives", "cells"):
        getattr(study, table).to_csv(tmp_path / f"{table}.csv", index=False)
    (tmp_path / "run.json").write_text("{}")
    assert predicted(read_study(tmp_path)).equals(predicted(study))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refusal(lambda: read_study(tmp_path), name)


@pytest.fixture(scope="module")
def shipped():
    if not (SHIPPED / "run.json").exists():
        pytest.skip("data/runs/study: no study is shipped; `make study` measures one")
    return predicted(read_study(SHIPPED))


def test_the_shipped_study_is_small_and_has_every_cell_once_with_its_messages(shipped):
    cell = ["case", "n_workers", "model", "method"]
    found = set(shipped[cell].itertuples(index=False, name=None))
    assert len(shipped) == len(found)
    assert found == set(itertools.product(*(shipped[name].unique() for name in cell)))
    assert [shipped[name].nunique() for name in cell] == [6, 2, 4, 6]
    assert (shipped["n_messages"] == shipped["predicted_messages"]).all()
    assert sum(path.stat().st_size for path in SHIPPED.glob("*")) < 1e6


def test_two_workers_are_predicted_within_the_errors_of_the_abstract(shipped):
    table = shipped[shipped["n_workers"] == 2]
    row = errors(table).iloc[0]
    assert row["mean_absolute"] < 0.05
    assert row["p95"] < 0.084
    # Adaptive is as fast as the best constant buffer within noise.
    over = gains(table)
    assert (over["gain"] > -np.maximum(over["noise"], 0.01)).all()


@pytest.mark.parametrize(
    ("known", "kind", "text", "said"),
    [
        (range(6), int, "0,9", "some of 0, 1, 2, 3, 4, 5.* 9"),
        (range(6), int, "-1", "-1"),
        (range(2, 9), int, "two", "two"),
        (["lstm", "resnet50"], str, "lstm,", "some of lstm, resnet50"),
    ],
)
def test_other_parts_are_refused_and_one_asked_for_twice_is_measured_once(known, kind, text, said):
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        study.chosen(known, kind)(text)
    assert study.chosen(range(2, 9), int)("4,2,4") == [4, 2]


def test_rows_measured_again_replace_those_of_a_table_that_was_cut(tmp_path):
    path, key = tmp_path / "cells.csv", ("network", "n_workers", "model")
    first, other = (["a, b", n, "m", "DDP", 1, 0.5, 0.4, 0.6] for n in (2, 4))
    study.append(path, [first, first], key)
    study.append(path, [other], key)
    study.append(path, [first], key)
    assert study.rows_of(path)["n_workers"].tolist() == ["4", "2"]
    assert path.read_text().startswith("# source: make study")


def test_a_table_of_another_kind_is_not_written_over(tmp_path):
    (tmp_path / "cells.csv").write_text("a,b\n1,2\n")
    refusal(lambda: study.measure(tmp_path, [], [], [], study.Effort()), "cells.csv")
    assert (tmp_path / "cells.csv").read_text() == "a,b\n1,2\n"


def test_a_folder_takes_one_study_at_a_time(tmp_path):
    with study.alone_in(tmp_path):
        refusal(lambda: study.alone_in(tmp_path).__enter__(), tmp_path.name)
    with study.alone_in(tmp_path):  # free again
        pass


@pytest.fixture
def networks():
    if why := netlab.missing():
        pytest.skip(f"no emulated networks: {why}")


def namespaces_of(pid):
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if name.startswith(f"osfwb-{pid}-")]


def started(tmp_path, *options):
    command = [sys.executable, str(SCRIPT), "--quick", "--out", str(tmp_path), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_short_study_measures_goes_on_and_leaves_nothing_behind(networks, tmp_path):
    options = ("--networks", "2", "--models", "lstm")
    first = started(tmp_path, *options)
    _, said = first.communicate(timeout=1200)
    assert first.returncode == 0, said
    assert namespaces_of(first.pid) == []
    table = predicted(read_study(tmp_path))
    assert len(table) == len(BY_HAND)
    assert (table["n_messages"] == table["predicted_messages"]).all()
    assert table["measured"].between(0, 1.05).all()  # T1 is a median, so may be a little high
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["networks"] == {"1 Gbit/s, 0.1 ms": "switch"}
    before = {path: path.read_text() for path in tmp_path.glob("*.*")}
    _, said = started(tmp_path, *options).communicate(timeout=600)
    assert {path: path.read_text() for path in before} == before, said  # nothing measured twice


@pytest.mark.all
def test_an_ended_study_leaves_nothing_behind(networks, tmp_path):
    process = started(tmp_path, "--networks", "0")
    while process.poll() is None and not namespaces_of(process.pid):
        time.sleep(0.1)
    process.terminate()
    process.communicate(timeout=600)
    assert process.returncode != 0
    assert namespaces_of(process.pid) == []


@pytest.mark.all
def test_a_study_whose_switch_is_killed_ends_and_says_so(networks, tmp_path):
    process = started(tmp_path, "--networks", "2")
    while process.poll() is None and not (tmp_path / "collectives.csv").exists():
        time.sleep(0.1)
    listed = subprocess.run(
        ["pgrep", "-P", str(process.pid), "delay_switch"], capture_output=True, text=True
    )
    os.kill(int(listed.stdout), signal.SIGKILL)
    _, said = process.communicate(timeout=1200)
    assert process.returncode != 0
    assert "study: work: exit codes by rank" in said
    assert namespaces_of(process.pid) == []


ECHO = """
import socket
with socket.create_server(("{address}", 7)) as server:
    print("listens", flush=True)
    connection, _ = server.accept()
    connection.sendall(connection.recv(1))
    left = {nbytes}
    while left:
        left -= len(connection.recv(2**20))
    connection.sendall(b"x")
"""
CALL = """
import socket, time
connection = socket.create_connection(("{address}", 7))
for message in (b"x", bytes({nbytes})):
    began = time.perf_counter()
    connection.sendall(message)
    connection.recv(1)
    print(time.perf_counter() - began)
"""


@pytest.mark.all
@pytest.mark.parametrize("network", [netlab.Network(100, 2000), netlab.Network(100)])
def test_no_network_is_faster_than_its_rate_and_delay(networks, network):
    nbytes = 2_000_000
    with netlab.hosts(network, 2) as (one, other):
        enter = [
            ["ip", "netns", "exec", host.namespace, sys.executable, "-c"] for host in (one, other)
        ]
        told = {"address": one.address, "nbytes": nbytes}
        with subprocess.Popen([*enter[0], ECHO.format(**told)], stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"listens\n"
            done = subprocess.run(
                [*enter[1], CALL.format(**told)], capture_output=True, text=True, timeout=600
            )
    there_and_back_s, transfer_s = map(float, done.stdout.split())
    assert there_and_back_s > 2 * network.delay_us * 1e-6
    assert transfer_s > nbytes * 8 / (network.mbit * 1e6)


def test_networks_are_named_by_rate_and_delay():
    named = [netlab.Network(*each) for each in ((50, 1000), (10_000, 0), (200, 500))]
    assert [each.name for each in named] == ["50 Mbit/s, 1 ms", "10 Gbit/s", "200 Mbit/s, 0.5 ms"]
    assert [each.made_by for each in named] == ["switch", "tbf", "switch"]
