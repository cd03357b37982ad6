"""From files to a run: which files, which ranks, which call; archives, caches, limits."""

import gzip
import io
import json
import sqlite3
import subprocess
import sys
import tarfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, complete, launched, refusal

from workbench.base.tables import EVENTS, LEDGER, MEASUREMENTS
from workbench.traces import (
    add_sizes,
    iterations,
    load_run,
    read_events,
    read_measurements,
    read_totals,
)
from workbench.traces.ranks import read_file
from workbench.traces.readers import source

STEP = complete("user_annotation", "ProfilerStep#1", 100, 1000)
WORK = [STEP, *launched("gemm", 200, 300, launch_ts=150, correlation=1)]


EPOCH_NS = 1_700_000_000 * 10**9


def of_rank(rank, world_size=2):
    info = {"rank": rank, "world_size": world_size, "backend": "nccl"}
    return {"distributedInfo": info, "baseTimeNanoseconds": EPOCH_NS}


def test_files_of_a_folder_or_a_list_are_ranks_of_one_run_on_one_axis(write_trace):
    """The content, not the name, is what counts, and an executor changes nothing."""
    later = of_rank(1) | {"baseTimeNanoseconds": EPOCH_NS + 5000}
    paths = [write_trace(WORK, "run/a", **of_rank(0)), write_trace(WORK, "run/b.txt.gz", **later)]
    folder = paths[0].parent
    (folder / "run.json").write_text('{"hardware": "one CPU", "batch": 8}')
    run = load_run(folder)
    assert list(run.events) == list(EVENTS) and list(run.ledger) == list(LEDGER)
    gemm = run.events[run.events["name"] == "gemm"].set_index("rank")
    assert gemm["start_s"].tolist() == pytest.approx([1e-4, 1.05e-4], abs=1e-12)
    assert gemm["end_s"].tolist() == pytest.approx([4e-4, 4.05e-4], abs=1e-12)
    assert (run.info["hardware"], run.info["batch"]) == ("one CPU", 8)
    assert load_run(paths).info["ranks"] == [0, 1]
    with ProcessPoolExecutor(2) as executor:
        pd.testing.assert_frame_equal(run.events, load_run(folder, executor).events)
        mine = load_run(folder, executor, patterns={"gemm": "all_reduce"})
    assert mine.events["kind"].eq("comm").sum() == 2


def test_a_rank_is_in_the_file_or_in_its_name_or_unknown(write_trace):
    run = load_run(write_trace(WORK, **of_rank(2, 4)))
    assert run.ledger["why"].str.contains("3 of 4 ranks have no file: 0, 1, 3").any()
    run = load_run(write_trace(WORK, name="rank-34.json"))
    assert set(run.events["rank"]) == {34}
    assert run.ledger["why"].str.contains("34 taken from its name").any()
    run = load_run(write_trace(WORK))
    assert run.events["rank"].isna().all()
    assert str(run).count("no rank in the file: kept as rank <NA>") == 1


def test_a_run_reads_as_text_and_is_escaped_in_a_notebook(write_trace):
    run = load_run(write_trace(WORK, "<script>.json", **of_rank(0, 2)))
    assert "&lt;script&gt;" in run._repr_html_() and "<script>" not in run._repr_html_()
    assert repr(run).startswith("run: <script>.json\nranks: 0 of 2")
    assert "1 in" in str(run) and "3 kept, 0 not" in str(run)


def test_what_cannot_be_loaded_is_refused(write_trace, tmp_path):
    a, b = (write_trace(WORK, f"{name}.json", **of_rank(0)) for name in "ab")
    assert "a.json and" in refusal(lambda: load_run([a, b]), "two files claim rank 0")
    a, b = (write_trace(WORK, f"{name}.json") for name in "ab")
    refusal(lambda: load_run([a, b]), "a.json", "Put rank<N> into each file's name")
    refusal(lambda: load_run(a, keep="gpu"), "keep", "gpu")
    refusal(lambda: load_run(a, executor=3), "executor", 3)
    refusal(lambda: load_run(a, cache=3), "cache", 3)
    refusal(lambda: load_run(tmp_path / "none.json", patterns=["fast_sum"]), "patterns")
    refusal(lambda: read_measurements(load_run(a)), "path", "all_reduces(run)")
    refusal(lambda: read_measurements(tmp_path), str(tmp_path), "a folder")
    for path in (None, 5, ""):
        for read in (load_run, read_measurements):
            refusal(lambda read=read, path=path: read(path), "path", path)
    refusal(lambda: load_run([]), "path", "an empty list")
    with pytest.raises(FileNotFoundError, match="nowhere.json: no such file or folder"):
        load_run(tmp_path / "nowhere.json")
    folder = tmp_path / "folder"
    folder.mkdir()
    refusal(lambda: load_run(folder), str(folder), "found no file")
    (folder / "readme.txt").write_text("hello")
    refusal(lambda: load_run(folder), str(folder), "found readme.txt (not a trace")
    (tmp_path / "loop.json").symlink_to(folder)
    refusal(lambda: read_file(tmp_path / "loop.json", True, "all", tmp_path), "loop.json")


@pytest.mark.parametrize("text", ['{"nodes": []}', "", "hello", "[]", '"text"', "{}"])
def test_a_file_that_is_not_a_trace_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    message = refusal(lambda: load_run(path), "x.json")
    assert "trace" in message if text else "the file is empty" in message, message
    for read in (read_measurements, read_totals):
        message = refusal(lambda read=read: read(path), "x.json")
        assert ("the file is empty" in message) == (not text)
        if text == "hello":  # no call reads it, so none is named
            assert "(path)" not in message + refusal(lambda: load_run(path), "x.json")


def test_other_files_of_a_folder_are_skipped_and_accounted_for(write_trace):
    path = write_trace(WORK, "run/rank0.json", **of_rank(0, 1))
    (path.parent / "notes.json").write_text('{"remember": "the milk"}')
    (path.parent / "gradients.csv").write_text("name,nbytes\n")
    ledger = load_run(path.parent).ledger
    skipped = ledger[(ledger["what"] == "file") & ~ledger["kept"]]
    assert {file.rsplit("/", 1)[1] for file in skipped["file"]} == {"notes.json", "gradients.csv"}
    assert skipped["why"].str.contains("not a trace").all()


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_cut_gzip_gives_what_was_before_the_cut_and_one_warning(write_trace, share):
    events = WORK + [complete("kernel", f"k{i}", 600 + i, 1) for i in range(2000)]
    path = write_trace(events, "trace.json.gz", **of_rank(0, 1))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = load_run(path)
    assert len(caught) == 1
    assert "cut or damaged" in str(caught[0].message)
    kept = run.ledger.loc[run.ledger["kept"], "n_events"].sum()
    assert len(run.events) == kept
    assert 0 < kept < len(events)


def test_a_file_that_unpacks_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_BYTES", 2**20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 2**24))
    with pytest.raises(ValueError, match="more than the limit of 1.00 MiB"):
        load_run(path)


TIMED = "n_workers,nbytes,seconds\n2,8,0.5\n"
SUMS = (
    '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,ms,ms,ms,\n'
    '"GPU activities",100.0,4,2,2,1,3,"fast_sum"\n'
)


@pytest.mark.parametrize("call", [read_measurements, read_totals, load_run])
def test_a_file_for_another_call_is_refused_with_that_call(call, write_trace, tmp_path):
    paths = {read_measurements: tmp_path / "timed.csv", read_totals: tmp_path / "sums.csv"}
    for path, text in zip(paths.values(), (TIMED, SUMS), strict=True):
        path.write_text(text)
    paths[load_run] = write_trace(WORK)
    call(paths.pop(call))
    for other, path in paths.items():
        refusal(lambda path=path: call(path), path.name, f"{other.__name__}(path)")


def test_timed_collectives_are_read_from_files_patterns_and_tables(tmp_path):
    path = tmp_path / "sweep.dat"
    path.write_text("# ours\nop,n_workers,n_nodes,nbytes,seconds\nall_reduce,2,1,1024,0.001\n")
    assert list(read_measurements(path)) == list(MEASUREMENTS)
    assert len(read_measurements(tmp_path / "*.dat")) == 1
    table = pd.DataFrame({"size_mib": [1, 2], "time_us": [10.0, 20.0], "gpus": [4, 4]})
    found = read_measurements(table)
    assert found["nbytes"].tolist() == [2**20, 2**21]
    assert found["seconds"].to_numpy() == pytest.approx([1e-5, 2e-5])
    assert found["n_workers"].tolist() == [4, 4]


def test_loading_needs_none_of_the_heavy_packages():
    code = "import sys, workbench.traces; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "seaborn", "statsmodels", "ipywidgets", "matplotlib"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def tar_of(tmp_path, members, name="ranks.tar.gz"):
    path = tmp_path / name
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def trace_bytes(rank):
    return json.dumps(of_rank(rank) | {"traceEvents": WORK}).encode()


def test_an_archive_of_ranks_is_a_run_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = {"../../a.json": trace_bytes(0), "/etc/b.json.gz": gzip.compress(trace_bytes(1))}
    path = tar_of(tmp_path, members | {"x/notes.txt": b"hello"}, name="ranks")
    run = load_run(path)
    assert run.info["ranks"] == [0, 1]
    assert list(tmp_path.iterdir()) == [path]
    assert run.ledger["why"].str.contains("not a trace: expected JSON").sum() == 1


def test_a_cut_archive_keeps_what_it_holds(tmp_path, rng):
    more = [complete("cpu_op", str(rng.random()), 300 + i, 1) for i in range(5000)]
    members = {
        f"{rank}.json": json.dumps(of_rank(rank) | {"traceEvents": WORK + more}).encode()
        for rank in range(2)
    }
    path = tar_of(tmp_path, members)
    path.write_bytes(path.read_bytes()[: int(0.7 * path.stat().st_size)])
    with pytest.warns(UserWarning, match="the archive is cut or damaged"):
        run = load_run(path)
    assert 0 in run.info["ranks"]


def test_an_archive_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "MAX_BYTES", 2**20)
    with pytest.raises(ValueError, match="an archive beyond the limits of 1.00 MiB"):
        load_run(tar_of(tmp_path, {"bomb.json": b"[" + b" " * 2**24}))


def test_a_real_archive_of_eight_ranks(shared):
    run = load_run(shared / "traces/kineto/dlrm-8rank-tar/dlrm_kineto.tar.gz")
    assert sorted(run.info["ranks"]) == list(range(8))
    reference = pd.read_csv(shared / "traces/breakdown.csv")
    reference = reference[reference["file"].str.contains("dlrm-8rank-tar")].set_index("rank")
    comm = run.events[run.events["kind"] == "comm"]
    assert comm["rank"].value_counts().to_dict() == reference["n_comm"].to_dict()


def test_a_pattern_names_files(write_trace, tmp_path):
    for rank in range(3):
        write_trace(WORK, f"run/rank{rank}.json", **of_rank(rank, 3))
    assert load_run(tmp_path / "run" / "rank[01].json").info["ranks"] == [0, 1]
    with pytest.raises(FileNotFoundError, match=r"run/\*\.gz: no file matches"):
        load_run(tmp_path / "run" / "*.gz")


def test_kernels_alone_are_kept_on_request_and_measure_the_same(shared):
    path = shared / "traces/kineto/ddp-resnet50-2gpu/nccl_data.json.gz"
    whole, kernels = load_run(path), load_run(path, keep="kernels")
    assert set(kernels.events["kind"]) == {"compute", "comm", "memory"}
    pd.testing.assert_frame_equal(iterations(whole.events), iterations(kernels.events))
    comm = ["op", "nbytes", "n_workers", "start_s"]
    expected = whole.events.loc[whole.events["kind"] == "comm", comm].reset_index(drop=True)
    found = kernels.events.loc[kernels.events["kind"] == "comm", comm].reset_index(drop=True)
    found = found.assign(start_s=found["start_s"] - found["start_s"][0])
    expected = expected.assign(start_s=expected["start_s"] - expected["start_s"][0])
    pd.testing.assert_frame_equal(found, expected, check_categorical=False)
    for run in (whole, kernels):
        assert run.ledger["n_events"].sum() == 40573
        assert run.ledger.loc[run.ledger["kept"], "n_events"].sum() == len(run.events)


def test_rows_that_overlap_on_one_stream_are_flagged(write_trace):
    long = complete("kernel", "add", 190, 3_400_000, stream=7)
    with pytest.warns(UserWarning, match=r"stream 7: 1 rows start .* up to 3.40 s.*'add', 3.40 s"):
        run = load_run(write_trace([long, *WORK], **of_rank(0, 1)))
    assert run.ledger["why"].str.contains("overlap on one stream").any()


def test_sizes_come_from_an_execution_trace(write_trace, tmp_path):
    tensor, kernel = [7, 8, 0, 10, 4, "cuda:0"], "ncclDevKernel_AllReduce_Sum_f32"
    call = {"id": 5, "rf_id": 4, "name": "record_param_comms", "outputs": []}
    call["inputs"] = [[tensor], 151, 0, 0, "allreduce", [], []]
    call["input_types"] = ["GenericList[Tensor(float)]", "Int"]
    (tmp_path / "eg.json").write_text(json.dumps({"schema": "1.0.1", "pid": 1, "nodes": [call]}))
    run = load_run(write_trace([*WORK, *launched(kernel, 600, 9, 550, 2)], **of_rank(0)))
    filled = add_sizes(run, tmp_path / "eg.json")
    known = filled.events["nbytes"].dropna()
    assert known.tolist() == [40] and filled.events.loc[known.index, "kind"].item() == "comm"
    assert run.events["nbytes"].isna().all()
    assert filled.ledger["why"].iloc[-1].startswith("sizes of 1 messages taken")


def test_sizes_come_from_the_execution_trace_of_the_same_rank(shared, tmp_path):
    with tarfile.open(shared / "traces/pytorch_et/dlrm_pytorch_et.tar.gz") as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("dlrm_eg_2.json"))
        (tmp_path / "eg.json").write_bytes(archive.extractfile(member).read())
    run = load_run(shared / "traces/kineto/dlrm-8rank-tar/dlrm_kineto.tar.gz")
    comm = (run.events["kind"] == "comm") & (run.events["rank"] == 2)
    bare = replace(run, events=run.events.assign(nbytes=run.events["nbytes"].mask(comm)))
    filled = add_sizes(bare, tmp_path / "eg.json", rank=2)
    assert filled.events.loc[comm, "nbytes"].notna().all()
    assert bare.events.loc[comm, "nbytes"].isna().all()
    others = ~comm
    pd.testing.assert_frame_equal(
        filled.events[others], run.events[others], check_categorical=False
    )
    assert filled.ledger["why"].iloc[-1].startswith("sizes of 8 messages")
    refusal(lambda: add_sizes(run, tmp_path / "eg.json"), "rank", None)


@pytest.mark.parametrize("keep", ["all", "kernels"])
def test_a_cached_file_opens_the_same_from_anywhere(write_trace, tmp_path, monkeypatch, keep):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for rank in range(2):
        path = write_trace(WORK, f"run/{rank}.json", **of_rank(rank))
    first = load_run(path.parent, keep=keep, cache="~/kept")
    cached = sorted((tmp_path / "home" / "kept").iterdir())
    assert len(cached) == 2
    cached[0].write_bytes(cached[0].read_bytes()[:-50])  # damaged, so decoded again
    moved = path.parent.rename(tmp_path / "moved")
    again = load_run(moved, keep=keep, cache="~/kept")
    pd.testing.assert_frame_equal(first.events, again.events)
    same = first.ledger.drop(columns="file"), again.ledger.drop(columns="file")
    pd.testing.assert_frame_equal(*same)
    assert all(str(moved) in file for file in again.info["files"])


def test_patterns_of_the_user_classify_kernels_that_are_not_known(write_trace, tmp_path):
    mine = [*launched("void fast_sum<4>()", 10, 5, 1, 1), *launched("gemm", 20, 5, 2, 2)]
    path = write_trace(mine, distributedInfo={"rank": 0})
    for _ in range(2):  # stored, then fetched
        for patterns, expected in (
            (None, ("compute", "")),
            ({"sum": "reduce"}, ("comm", "reduce")),
            ({"sum": ""}, ("comm", "unknown")),
        ):
            events = load_run(path, cache=tmp_path / "cache", patterns=patterns).events
            found = events.set_index("name")[["kind", "op"]].astype(str)
            assert tuple(found.loc["void fast_sum<4>()"]) == expected
            assert tuple(found.loc["gemm"]) == ("compute", "")
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert read_events(path, patterns={"fast": "all_reduce"})["kind"].eq("comm").sum() == 1
    (tmp_path / "totals.csv").write_text(SUMS)
    table = read_totals(tmp_path / "totals.csv", patterns={"fast_sum": "all_reduce"})
    assert table[["kind", "op"]].to_numpy().tolist() == [["comm", "all_reduce"]]


def test_links_in_an_archive_are_not_followed_and_that_is_said(tmp_path):
    path = tar_of(tmp_path, {"rank0.json": trace_bytes(0)})
    with tarfile.open(tmp_path / "linked.tar", "w") as archive:
        with tarfile.open(path) as other:
            member = other.getmember("rank0.json")
            archive.addfile(member, other.extractfile(member))
        link, folder = tarfile.TarInfo("rank1.json"), tarfile.TarInfo("folder")
        link.type, link.linkname, folder.type = tarfile.SYMTYPE, "/etc/hosts", tarfile.DIRTYPE
        archive.addfile(link)
        archive.addfile(folder)
    ledger = load_run(tmp_path / "linked.tar").ledger
    skipped = ledger[ledger["what"] == "file"]
    assert skipped["why"].tolist() == ["a link to /etc/hosts, not a file: not read"]
    assert skipped["file"].iloc[0].endswith("linked.tar::rank1.json")


def test_keeping_only_kernels_of_a_run_without_a_gpu_is_refused_in_a_folder_too(write_trace):
    host = [STEP, complete("cpu_op", "aten::mm", 110, 50)]
    paths = [write_trace(host, f"run/{r}.json", **of_rank(r)) for r in range(2)]
    for name in ("-a.csv", "-b.csv", "-c.csv"):
        (paths[0].parent / name).write_text("not a trace")
    for path in (paths[0], paths[0].parent):
        with pytest.raises(ValueError, match='keep="kernels" would drop them. Load it with keep'):
            load_run(path, keep="kernels")


def test_a_rank_left_out_because_only_kernels_are_kept_is_warned_of(write_trace):
    path = write_trace(WORK, "run/0.json", **of_rank(0))
    write_trace([STEP, complete("cpu_op", "aten::mm", 110, 50)], "run/1.json", **of_rank(1))
    with pytest.warns(UserWarning, match="1.json: no row of a GPU"):
        assert load_run(path.parent, keep="kernels").info["ranks"] == [0]


def test_a_trace_may_be_named_run_json(write_trace):
    path = write_trace(WORK, "run/run.json", **of_rank(0, 1))
    assert load_run(path).info["ranks"] == load_run(path.parent).info["ranks"] == [0]
    assert "traceEvents" not in load_run(path.parent).info


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path, pack):
    path = tmp_path / "rank0.json"
    path.write_bytes(pack(b"\xef\xbb\xbf" + trace_bytes(0)))
    assert load_run(path).info["ranks"] == [0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed on Linux")
def test_a_source_let_go_half_read_closes_its_file_at_once(tmp_path):
    path = tmp_path / "large.json"
    path.write_bytes(b"[" + b" " * 2**21)
    half = source.Source(path)
    assert len(half.head) == source.HEAD_BYTES
    opened = {Path(link).resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()}
    assert path.resolve() in opened
    del half
    opened = {Path(link).resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()}
    assert path.resolve() not in opened


def write_export(path, host, *, devices=2, arguments=()):
    """An export of Nsight Systems: one all-reduce on each device of a host."""
    rows = [(10, 20, n, 7, (5 + n) << 24, "ncclDevKernel_AllReduce_Sum") for n in range(devices)]
    capture = [(f"PROCESS_0:ARGUMENT_{n}", text) for n, text in enumerate(arguments)]
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ('start, "end", deviceId, streamId, globalPid, name', rows),
        "TARGET_INFO_SYSTEM_ENV": ("name, value", [("Hostname", host)] * bool(host)),
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", [(EPOCH_NS,)]),
        "META_DATA_CAPTURE": ("name, value", capture),
    }
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as db:
        for name, (columns, values) in tables.items():
            db.execute(f"CREATE TABLE {name} ({columns})")
            marks = ",".join("?" * (columns.count(",") + 1))
            db.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
    db.close()


def test_nodes_that_each_count_their_devices_from_0_are_told_apart_by_host(tmp_path):
    for name, host in (("a", "node10"), ("b", "node9")):
        write_export(tmp_path / f"run/{name}.sqlite", host)
    run = load_run(tmp_path / "run")
    assert sorted(run.events["rank"]) == [0, 1, 2, 3]
    of_file = run.ledger[run.ledger["why"].str.contains("hosts by name")].set_index("file")["why"]
    assert "counted from 2, the first device of node10" in of_file[f"{tmp_path}/run/a.sqlite"]


@pytest.mark.parametrize(
    ("hosts", "arguments"),
    [
        (("", ""), ()),
        (("node1", ""), ()),
        (("node1", "node1"), ()),
        (("node1", "node2"), ("--nnodes=1", "--nproc_per_node=2")),
    ],
)
def test_nodes_that_cannot_be_told_apart_are_refused(tmp_path, hosts, arguments):
    for n, host in enumerate(hosts):
        write_export(tmp_path / f"run/{n}.sqlite", host, arguments=arguments)
    refusal(lambda: load_run(tmp_path / "run"), "two files claim rank 0")


def test_nodes_that_torchrun_numbered_keep_those_numbers(tmp_path):
    for node, host in enumerate(("zeta", "alpha")):
        arguments = ["--nnodes=2", "--nproc_per_node=2", f"--node_rank={node}"]
        write_export(tmp_path / f"run/{host}.sqlite", host, arguments=arguments)
    run = load_run(tmp_path / "run")
    assert sorted(run.events["rank"]) == [0, 1, 2, 3] and run.info["world_size"] == 4
    assert not run.ledger["why"].str.contains("hosts by name").any()


KERNEL = [complete("kernel", "gemm", 1, 5, tid=7, stream=7)]


def test_a_rank_that_the_name_tells_otherwise_is_said(write_trace):
    path = write_trace(KERNEL, "rank3.json", distributedInfo={"rank": 0, "world_size": 4})
    with pytest.warns(UserWarning, match="rank 0 according to the file, 3 according to its name"):
        run = load_run(path)
    assert set(run.events["rank"]) == {0}
    of_a_process = {"distributedInfo": {"rank": 0, "world_size": 1}}
    assert len(load_run(write_trace(KERNEL, "rank_19488.json", **of_a_process)).events) == 1


@pytest.mark.parametrize(
    ("ranks", "sizes", "said"),
    [
        ((0, 1), (2, 4), "the files are of runs of 2 and 4 ranks: they may be of different runs"),
        ((0, 7), (2, 2), "the files are of runs of 2 ranks, and one is of rank 7"),
    ],
)
def test_files_that_tell_of_other_runs_are_said(write_trace, ranks, sizes, said):
    for rank, size in zip(ranks, sizes, strict=True):
        about = {"rank": rank, "world_size": size}
        base = {"baseTimeNanoseconds": 17 * 10**17}
        path = write_trace(KERNEL, f"run/r-{rank}.json", distributedInfo=about, **base)
    with pytest.warns(UserWarning, match=said):
        load_run(path.parent)
