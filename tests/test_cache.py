"""The cache of decoded traces: exact, atomic, and never wrong."""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, complete, launched

from workbench.traces import cache
from workbench.traces.readers import kineto
from workbench.traces.readers.source import Source

KEY = "c0de" * 16
INFO = {"rank": 3, "world_size": None, "devices": ["V100"], "groups": [{"n": 2}], "base_ns": 2**62}
LEDGER = [{"file": "a.json", "rank": None, "what": "ph M", "n_events": 7, "kept": False, "why": ""}]
INT64 = np.iinfo(np.int64)


@pytest.fixture
def table(rng):
    """All kinds of columns, at the ends of their ranges."""
    n = 300
    return pd.DataFrame(
        {
            "rank": pd.array([3] * n, dtype="Int64"),
            "nbytes": pd.array([INT64.max, None, INT64.min] * (n // 3), dtype="Int64"),
            "unknown": pd.array([None] * n, dtype="Int64"),
            "seen": pd.array([True, None, False] * (n // 3), dtype="boolean"),
            "start_ns": rng.integers(INT64.min, INT64.max, n, endpoint=True),
            "share": rng.permutation([np.nan, -0.0, np.inf] * (n // 3)),
            "good": rng.random(n) < 0.5,
            "name": pd.Categorical(
                ["b", "a\0\ud800", None] * (n // 3), ["b", "never", "a\0\ud800"]
            ),
            "kind": pd.Categorical(["host"] * n, ["memory", "host"], ordered=True),
            "op": pd.Categorical([1, 2, 3] * (n // 3)),
        }
    )


def same(found, table, info=INFO, ledger=LEDGER) -> bool:
    pd.testing.assert_frame_equal(found[0], table, check_exact=True)
    return found[1:] == (info, ledger)


def test_what_was_stored_comes_back_exactly(tmp_path, table):
    cache.store(tmp_path / "made", KEY, table, INFO, LEDGER)
    assert same(cache.fetch(tmp_path / "made", KEY), table)


def test_a_table_without_rows_keeps_its_columns(tmp_path, table):
    cache.store(tmp_path, KEY, table[:0], INFO, [])
    assert same(cache.fetch(tmp_path, KEY), table[:0], ledger=[])


def test_a_table_of_more_rows_than_a_batch_comes_back_whole(tmp_path, monkeypatch, table):
    monkeypatch.setattr(cache, "_ROWS", 128)
    cache.store(tmp_path, KEY, table, INFO, LEDGER)
    assert same(cache.fetch(tmp_path, KEY), table)


def test_a_decoded_trace_comes_back_exactly(tmp_path, write_trace):
    gpu = launched("ncclAllReduceRingLLKernel", 30, 5, 10, 1) + launched("gemm", 40, 5, 12, 2)
    decoded = kineto.read(Source(write_trace([complete("cpu_op", "aten::mm", 1, 50), *gpu])))
    cache.store(tmp_path, KEY, *decoded)
    assert same(cache.fetch(tmp_path, KEY), *decoded)


def test_a_recorded_trace_comes_back_exactly(tmp_path, shared):
    (path,) = (shared / "traces/kineto/v100-2rank-small-allreduces").glob("*.json.gz")
    decoded = kineto.read(Source(path))
    cache.store(tmp_path, KEY, *decoded)
    assert same(cache.fetch(tmp_path, KEY), *decoded)


def test_a_fetched_table_can_be_changed_and_the_cache_stays_as_it_was(tmp_path, table):
    cache.store(tmp_path, KEY, table, INFO, LEDGER)
    found, _, _ = cache.fetch(tmp_path, KEY)
    new = {"nbytes": 1, "start_ns": 2, "share": 3.0, "name": "never"}
    for column, value in new.items():
        found.loc[0, column] = value
    assert {column: found[column].iloc[0] for column in new} == new
    assert same(cache.fetch(tmp_path, KEY), table)


def test_storing_again_replaces_what_was_there(tmp_path, table):
    cache.store(tmp_path, KEY, table, INFO, LEDGER)
    cache.store(tmp_path, KEY, table[:5], {}, [])
    assert same(cache.fetch(tmp_path, KEY), table[:5], {}, [])


def test_nothing_stored_is_nothing_found(tmp_path):
    assert cache.fetch(tmp_path / "nowhere", KEY) is None
    assert cache.fetch(tmp_path, KEY) is None


@pytest.fixture
def stored(tmp_path, table):
    cache.store(tmp_path, KEY, table, INFO, LEDGER)
    return tmp_path / f"{KEY}.parquet"


def fetched_as(path: Path, data: bytes):
    path.write_bytes(data)
    return cache.fetch(path.parent, KEY)


def test_a_changed_byte_anywhere_is_a_miss(stored):
    data = stored.read_bytes()
    for at in [*range(0, len(data), 97), *range(len(data) - 8, len(data))]:
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            assert fetched_as(stored, damaged) is None, f"byte {at} xor {flip:#x}"


def test_a_file_cut_or_grown_anywhere_is_a_miss(stored):
    data = stored.read_bytes()
    for at in [*range(0, len(data), 97), *range(len(data) - 48, len(data))]:
        assert fetched_as(stored, data[:at]) is None, f"cut at byte {at}"
    assert fetched_as(stored, data[50:]) is None
    assert fetched_as(stored, data + b"\0") is None
    assert fetched_as(stored, data + data) is None


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"\xff\xff\xff\xffPAR1", b"\0\0\0\0PAR1" * 20, b"cos\nsystem\n(S'x'\ntR."],
)
def test_a_foreign_file_is_a_miss(stored, data):
    assert fetched_as(stored, data) is None


def test_a_whole_file_that_says_things_otherwise_is_a_miss(tmp_path, monkeypatch, table):
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_FIELD", "another")
        cache.store(tmp_path, KEY, table, INFO, LEDGER)
    assert cache.fetch(tmp_path, KEY) is None


def test_a_file_under_another_key_is_a_miss(stored):
    other = "beef" * 16
    stored.rename(stored.with_name(f"{other}.parquet"))
    assert cache.fetch(stored.parent, other) is None


def test_a_folder_in_the_place_of_a_file_is_a_miss(tmp_path):
    (tmp_path / f"{KEY}.parquet").mkdir()
    assert cache.fetch(tmp_path, KEY) is None


def test_a_damaged_file_is_replaced_by_storing_again(stored, table):
    assert fetched_as(stored, b"damaged") is None
    cache.store(stored.parent, KEY, table, INFO, LEDGER)
    assert same(cache.fetch(stored.parent, KEY), table)


def test_a_column_that_cannot_be_kept_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="column note: expected numbers.*got object"):
        cache.store(tmp_path, KEY, pd.DataFrame({"note": pd.array([[]], dtype=object)}), {}, [])
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_unfinished(tmp_path, table):
    (tmp_path / f"{KEY}.parquet").mkdir()
    with pytest.raises(OSError):
        cache.store(tmp_path, KEY, table, INFO, LEDGER)
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.parquet"]


def rewrite(folder: Path, n: int) -> list[int]:
    """Store n rows again and again; the numbers of rows fetched in between, -1 for a miss."""
    seen = []
    for _ in range(30):
        cache.store(folder, KEY, pd.DataFrame({"n": np.full(n, n)}), {"n": n}, [])
        found = cache.fetch(folder, KEY)
        whole = found is not None and found[1] == {"n": len(found[0])}
        seen.append(len(found[0]) if whole and (found[0]["n"] == len(found[0])).all() else -1)
    return seen


def test_processes_that_write_one_key_at_once_always_leave_a_whole_file(tmp_path):
    sizes = [10, 100_000]
    with ProcessPoolExecutor(2) as executor:
        seen = executor.map(rewrite, [tmp_path] * 2, sizes)
        assert {n for each in seen for n in each} <= set(sizes)
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.parquet"]


def test_the_key_depends_on_content_and_options_and_not_on_the_name(tmp_path):
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    one.write_bytes(b"trace"), two.write_bytes(b"trace"), other.write_bytes(b"trace ")
    key = cache.key_of(one, "all")
    assert len(key) == 64
    assert cache.key_of(two, "all") == key
    keys = {key, cache.key_of(other, "all"), cache.key_of(one, "kernels"), cache.key_of(one)}
    keys |= {cache.key_of(one, "al", "l"), cache.key_of(one, "all", "")}
    assert len(keys) == 6


def test_a_changed_reader_changes_the_key(tmp_path):
    package = tmp_path / "workbench"
    (package / "readers").mkdir(parents=True)
    for name in ("__init__.py", "cache.py", "readers/kineto.py"):
        (package / name).write_bytes((ROOT / "workbench" / name).read_bytes())
    code = "from workbench import cache; print(cache.key_of(cache.__file__))"

    def key() -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout

    before = key()
    assert key() == before
    with (package / "readers/kineto.py").open("a") as file:
        file.write("# changed\n")
    assert key() != before


def test_clearing_deletes_the_cached_files_and_no_others(stored):
    (stored.parent / f"{KEY}.0123").touch()  # of a writer that was killed
    mine = [stored.with_name("run.parquet"), stored.with_name(f"{'z' * 64}.parquet")]
    for path in mine:
        path.touch()
    cache.clear(stored.parent)
    assert sorted(stored.parent.iterdir()) == sorted(mine)


def test_importing_the_cache_brings_in_no_parquet_library():
    code = "import sys, workbench.traces.cache; print(any('arro3' in name for name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
