"""Hostile and damaged files: a sentence that names the file, or a table whose ledger adds up."""

import contextlib
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile

import pandas as pd
import pytest
from conftest import ROOT, complete, launched
from fuzz import SCRIPT, VALUES, check, loaders, mutated, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.traces import files, iterations, load_run, read_measurements
from workbench.traces.readers import batches, source

# A fixed sample where a run must mean the same tomorrow; elsewhere each run looks further.
SAMPLE = dict(
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
WORK = launched("gemm", 200, 300, launch_ts=150, correlation=1)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "file-under-test"


# Damage at random


@settings(max_examples=40, **SAMPLE)
@given(name=st.sampled_from(sorted(seeds())), rng=st.randoms(use_true_random=False))
def test_damaged_files_are_refused_or_loaded_as_promised(scratch, name, rng):
    scratch.write_bytes(mutated(seeds()[name], rng))
    check(scratch, loaders(name)[0])


@pytest.mark.all
@pytest.mark.parametrize("name", sorted(seeds()))
def test_each_format_survives_the_same_damage(scratch, name):
    for number in range(2):
        scratch.write_bytes(mutated(seeds()[name], random.Random(f"{name} {number}")))
        for load in loaders(name):
            check(scratch, load)


def test_undamaged_seeds_of_traces_load(scratch):
    for name in (n for n in seeds() if n.startswith("trace-kineto")):
        scratch.write_bytes(seeds()[name])
        assert check(scratch, load_run) == "loaded", name


ANYTHING = st.one_of(
    st.sampled_from(VALUES), st.integers(), st.floats(), st.text(max_size=5), st.none()
)
ARGS = st.dictionaries(
    st.sampled_from(
        ["stream", "correlation", "External id", "Input Dims", "Input type", "Collective name"]
        + ["In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name"]
    ),
    ANYTHING,
    max_size=4,
)
EVENT = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "B", "B", "E", "E", "i", "?"]),
        "ts": ANYTHING,
        "dur": ANYTHING,
    },
    optional={"cat": ANYTHING, "name": ANYTHING, "tid": ANYTHING, "args": ARGS},
)
HEADER = st.fixed_dictionaries(
    {"distributedInfo": st.dictionaries(st.sampled_from(["rank", "world_size"]), ANYTHING)},
    optional={"baseTimeNanoseconds": ANYTHING, "deviceProperties": ANYTHING},
)


@settings(max_examples=50, **SAMPLE)
@given(header=HEADER, events=st.lists(EVENT, max_size=4))
def test_any_values_in_the_fields_of_a_trace(scratch, header, events):
    text = json.dumps({**header, "traceEvents": [*WORK, *events]})
    scratch.write_bytes(text.encode(errors="surrogatepass"))
    assert check(scratch, load_run) == "loaded"


# Bombs


def packed(start: bytes, filling: bytes, n_megabytes: int) -> bytes:
    return gzip.compress(start) + gzip.compress(filling * (2**20 // len(filling))) * n_megabytes


BOMBS = {
    "spaces": (b"", b" "),
    "spaces before the events": (b"{", b" "),
    "fields before the events": (b"{", b'"a": 10, '),
    "spaces between events": (b'{"traceEvents": [', b" "),
    "a name": (b'{"traceEvents": [{"ph": "X", "name": "', b"a"),
    "brackets": (b'{"traceEvents": [', b"["),
    "fields behind the events": (b'{"traceEvents": [{"ph": "X"}], ', b'"a": 10, '),
    "lines": (b"", b"# size count type time algbw\n "),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("load", [load_run, read_measurements])
def test_what_unpacks_beyond_the_limit_is_refused(monkeypatch, tmp_path, bomb, load):
    monkeypatch.setattr(source, "MAX_BYTES", 2**22)
    path = tmp_path / "bomb.gz"
    path.write_bytes(packed(*BOMBS[bomb], n_megabytes=16))
    with pytest.raises(ValueError, match=r"bomb\.gz: (unpacks to more|not a trace|no timed)"):
        load(path)


CHILD = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
warnings.simplefilter("ignore")
from workbench import traces
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    getattr(traces, sys.argv[1])(sys.argv[2])
except ValueError as error:
    print("refused", error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.all
@pytest.mark.parametrize(
    ("bomb", "load"), [*((bomb, "load_run") for bomb in BOMBS), ("lines", "read_measurements")]
)
def test_a_gigabyte_out_of_a_megabyte_takes_little_memory(tmp_path, bomb, load):
    path = tmp_path / "bomb.gz"
    path.write_bytes(packed(*BOMBS[bomb], n_megabytes=1024))
    command = [sys.executable, "-c", CHILD, load, str(path)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-800:]
    *said, peak_kib = child.stdout.splitlines()
    assert "refused" in said[0] and str(path) in said[0]
    assert int(peak_kib) < 1.5 * 2**20


# More than one trace in a file


def kineto_text(rank=0, n_events=2):
    about = {"distributedInfo": {"rank": rank, "world_size": 1}}
    return json.dumps(about | {"traceEvents": WORK[:n_events]})


@pytest.mark.parametrize(
    ("more", "n"),
    [
        (kineto_text(), 2),
        ("\n" + kineto_text(1, 1), 1),
        (json.dumps(WORK), 2),
        (kineto_text()[:-40], 2),
        ("garbage", 0),
    ],
)
@pytest.mark.parametrize("piece", [7, 2**18])
def test_what_stands_behind_a_trace_is_counted(monkeypatch, tmp_path, more, n, piece):
    monkeypatch.setattr(source, "CHUNK_BYTES", piece)
    monkeypatch.setattr(batches, "FIELDS_BYTES", 128)
    path = tmp_path / "two.json"
    path.write_text(kineto_text() + more)
    with pytest.warns(UserWarning, match="behind the end") if n else contextlib.nullcontext():
        run = load_run(path)
    assert run.ledger["n_events"].sum() == len(WORK) + n and len(run.events) == len(WORK)


def test_a_second_list_of_events_is_counted(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(kineto_text()[:-1] + ', "traceEvents": ' + json.dumps([*WORK, *WORK]) + "}")
    with pytest.warns(UserWarning, match="first list of events"):
        run = load_run(path)
    assert run.ledger["n_events"].sum() == 3 * len(WORK) and len(run.events) == len(WORK)


# Archives


def archived(path, members: dict, mode="w:gz", **fields):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in fields.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_an_archive_writes_nothing_whatever_its_members_are_called(tmp_path):
    data = json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": WORK})
    inside = tmp_path / "deep" / "inside"
    inside.mkdir(parents=True)
    path = archived(inside / "run.tar.gz", {"../../escaped.json": data.encode()})
    assert len(load_run(path).events) == len(WORK)
    assert {p.name for p in tmp_path.rglob("*")} == {"deep", "inside", "run.tar.gz"}


def test_links_in_an_archive_are_not_followed(tmp_path):
    secret = tmp_path / "rank0.json"
    secret.write_text(json.dumps({"traceEvents": WORK}))
    links = {"type": tarfile.SYMTYPE, "linkname": str(secret)}
    path = archived(tmp_path / "run.tar", {"rank0.json": b""}, mode="w", **links)
    with pytest.raises(ValueError, match=r"run\.tar"):
        load_run(path)


def test_an_archive_beyond_the_limit_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "MAX_BYTES", 2**22)
    path = archived(tmp_path / "run.tar.gz", {"rank0.json": b"[" + b" " * 2**23})
    with pytest.raises(ValueError, match=r"run\.tar\.gz: .*limit"):
        load_run(path)


def test_an_archive_of_too_many_members_is_read_up_to_the_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "MAX_MEMBERS", 1)
    data = json.dumps({"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": WORK})
    members = {"rank0.json": data.encode(), "rank1.json": data.encode()}
    path = archived(tmp_path / "run.tar.gz", members)
    with pytest.warns(UserWarning, match=r"run\.tar\.gz: .*limits .* 1 members"):
        run = load_run(path)
    assert run.info["ranks"] == [0]


# What JSON can hold, and what it cannot


@pytest.mark.parametrize("deep", ["[" * 10**5, '{"a":' * 10**5, '{"args":' * 10**5])
def test_endless_nesting_costs_one_event(tmp_path, deep):
    path = tmp_path / "deep.json"
    events = ", ".join(map(json.dumps, WORK))
    path.write_text('{"traceEvents": [' + events + ', {"ph": "X", "args": ' + deep)
    with pytest.warns(UserWarning, match="deep.json"):
        run = load_run(path)
    assert len(run.events) == len(WORK)


def test_a_nested_event_does_not_take_the_next_one_along(write_trace):
    nested = 5000 * "[" + 5000 * "]"
    path = write_trace([WORK[0], complete("cpu_op", "deep", 1, 1, a="HERE"), WORK[1]])
    path.write_text(path.read_text().replace('"HERE"', nested))
    with pytest.warns(UserWarning):
        run = load_run(path)
    assert {"cudaLaunchKernel", "gemm"} <= set(run.events["name"])
    assert run.ledger["n_events"].sum() == 3


def test_half_a_surrogate_pair_in_a_name_costs_no_event(write_trace):
    path = write_trace([*WORK, complete("kernel", "odd \ud800", 900, 5)])
    with pytest.warns(UserWarning, match="surrogate"):
        run = load_run(path)
    assert "odd ?" in set(run.events["name"]) and len(run.events) == len(WORK) + 1


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64, -(2**63), 10**40, 1e300, -1e18])
def test_times_beyond_any_calendar_are_left_out_and_counted(write_trace, number):
    odd = complete("kernel", "odd", number, 1), complete("kernel", "odd", 1, abs(number))
    run = load_run(write_trace([*WORK, *odd], distributedInfo={"rank": 0, "world_size": 1}))
    assert "odd" not in set(run.events["name"])
    assert run.ledger.loc[~run.ledger["kept"], "n_events"].sum() == 2
    assert iterations(run.events)["duration_s"].tolist() == [pytest.approx(300e-6)]


@pytest.mark.parametrize("number", [2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**40])
def test_sizes_beyond_64_bits_are_unknown(write_trace, number):
    shape = {"Input Dims": [[number, number]], "Input type": ["double"]}
    of_message = {"In msg nelems": number, "dtype": "Double", "Group size": number}
    rows = [complete("cpu_op", "torch::autograd::AccumulateGrad", 10, 5, **shape)]
    rows += [complete("cpu_op", "record_param_comms", 15, 5, **{"External id": 9}, **shape)]
    rows += launched("ncclDevKernel_AllGather", 300, 5, 17, 3, stream=8, **of_message)
    run = load_run(write_trace([*WORK, *rows], distributedInfo={"rank": 0, "world_size": 1}))
    assert run.events["nbytes"].isna().all()
    assert run.ledger["n_events"].sum() == len(WORK) + len(rows)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "nan", "inf"])
def test_times_that_are_no_numbers_are_left_out_and_counted(write_trace, number):
    path = write_trace([*WORK, complete("kernel", "odd", -777, 1)])
    path.write_text(path.read_text().replace("-777", number))
    with pytest.warns(UserWarning):
        run = load_run(path)
    assert "odd" not in set(run.events["name"])
    assert run.ledger.loc[~run.ledger["kept"], "n_events"].sum() == 1


@pytest.mark.parametrize("rank", [2**63 - 1, 2**64, -1, 1e300, "7x", True, [0], {}])
def test_a_rank_that_is_none_is_unknown(write_trace, rank):
    path = write_trace(WORK, distributedInfo={"rank": rank, "world_size": rank})
    run = load_run(path)
    assert run.events["rank"].isna().all() and run.info["world_size"] is None


@pytest.mark.parametrize("base", [2**63 - 1, -(2**63), 10**40, "x", [1]])
def test_a_base_time_beyond_any_calendar_is_left_out(write_trace, base):
    path = write_trace(WORK, baseTimeNanoseconds=base, distributedInfo={"rank": 0, "world_size": 1})
    assert load_run(path).events["end_s"].max() == pytest.approx(350e-6)


def test_names_are_never_markup(write_trace):
    rows = [complete("kernel", SCRIPT, 0, 5), complete(SCRIPT, "x", 0, 5)]
    devices = [{"name": SCRIPT}, {"name": [SCRIPT]}]
    path = write_trace(rows, f"{SCRIPT.replace('/', '')}rank0.json", deviceProperties=devices)
    run = load_run(path)
    shown = [run, run.events, run.ledger, iterations(run.events)]
    assert all("<script" not in table._repr_html_() for table in shown)
    assert SCRIPT in set(run.events["name"])


def test_control_bytes_in_a_name_stay_out_of_the_terminal(write_trace):
    path = write_trace(
        [complete("kernel", "\x1b[2Jgone\0", 0, 5)], deviceProperties=[{"name": "\x1b[2JGPU"}]
    )
    run = load_run(path)
    assert "\x1b" not in str(run)


def test_a_table_of_hostile_cells_is_refused_or_cleaned(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text(
        "op,n_workers,n_nodes,nbytes,seconds\nall_reduce,8,1,1e999,0.5\nall_reduce,2,1,8,nan\n"
        f"{SCRIPT},8,x,1048576,1e-3\nall_reduce,{2**64},1,8,inf\nall_reduce,4,1,8,0.25\n"
    )
    with pytest.warns(UserWarning, match="sweep.csv"):
        table = read_measurements(path)
    assert isinstance(table, pd.DataFrame) and 0.25 in table["seconds"].tolist()
    assert table["seconds"].between(0, 1).all() and "<script" not in table._repr_html_()
