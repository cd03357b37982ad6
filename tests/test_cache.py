"""The cache of decoded traces: exact, atomic, and never wrong."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import complete, launched, refusal

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


@pytest.mark.parametrize(("batch", "n"), [(2**14, 300), (128, 300), (2**14, 5), (2**14, 0)])
def test_what_was_stored_last_comes_back_exactly(tmp_path, monkeypatch, table, batch, n):
    monkeypatch.setattr(cache, "_ROWS", batch)
    folder = tmp_path / "made"
    cache.store(folder, KEY, table[:1], {}, [])
    (folder / f"{KEY}.parquet").write_bytes(b"damaged")
    assert cache.fetch(folder, KEY) is None
    cache.store(folder, KEY, table[:n], INFO, LEDGER)
    assert same(cache.fetch(folder, KEY), table[:n])


def test_a_decoded_trace_comes_back_exactly(tmp_path, write_trace):
    gpu = launched("ncclAllReduceRingLLKernel", 30, 5, 10, 1) + launched("gemm", 40, 5, 12, 2)
    decoded = kineto.read(Source(write_trace([complete("cpu_op", "aten::mm", 1, 50), *gpu])))
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


def test_what_cannot_be_stored_leaves_nothing(tmp_path, table):
    lists = pd.DataFrame({"note": pd.array([[]], dtype=object)})
    refusal(lambda: cache.store(tmp_path, KEY, lists, {}, []), "column note", "object")
    assert cache.fetch(tmp_path, KEY) is None and cache.fetch(tmp_path / "nowhere", KEY) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{KEY}.parquet").mkdir()
    assert cache.fetch(tmp_path, KEY) is None
    with pytest.raises(OSError):
        cache.store(tmp_path, KEY, table, INFO, LEDGER)
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.parquet"]


@pytest.fixture
def stored(tmp_path, table):
    cache.store(tmp_path, KEY, table, INFO, LEDGER)
    return tmp_path / f"{KEY}.parquet"


def fetched_as(path: Path, data: bytes):
    path.write_bytes(data)
    return cache.fetch(path.parent, KEY)


def test_a_changed_byte_anywhere_is_a_miss(stored):
    data = stored.read_bytes()
    for at in [*range(0, len(data), 397), *range(len(data) - 8, len(data))]:
        for flip in (0x01, 0x80, 0xFF):
            damaged = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            assert fetched_as(stored, damaged) is None, f"byte {at} xor {flip:#x}"


def test_a_file_cut_or_grown_anywhere_is_a_miss(stored):
    data = stored.read_bytes()
    for at in [*range(0, len(data), 397), *range(len(data) - 48, len(data))]:
        assert fetched_as(stored, data[:at]) is None, f"cut at byte {at}"
    assert fetched_as(stored, data[50:]) is None
    assert fetched_as(stored, data + b"\0") is None
    assert fetched_as(stored, data + data) is None
    for foreign in (b"", b"PAR1", b"\xff\xff\xff\xffPAR1", b"\0\0\0\0PAR1" * 20):
        assert fetched_as(stored, foreign) is None
    other = "beef" * 16
    stored.with_name(f"{other}.parquet").write_bytes(data)
    assert cache.fetch(stored.parent, other) is None


def test_a_whole_file_that_says_things_otherwise_is_a_miss(tmp_path, monkeypatch, table):
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_FIELD", "another")
        cache.store(tmp_path, KEY, table, INFO, LEDGER)
    assert cache.fetch(tmp_path, KEY) is None


def rewrite(folder: Path, n: int) -> list[int]:
    """Store n rows again and again; the numbers of rows fetched in between, -1 for a miss."""
    seen = []
    for _ in range(10):
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


@pytest.mark.parametrize("room", ["base", "traces"])
def test_changed_code_of_either_room_changes_the_key(tmp_path, monkeypatch, room):
    for path in ("base/units.py", "traces/cache.py", "traces/readers/kineto.py", "fits/bands.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "traces" / "cache.py"))
    versions = cache.reader_version.__wrapped__
    before = versions()
    (tmp_path / "fits" / "bands.py").write_text("x = 2\n")
    assert versions() == before
    for path in sorted((tmp_path / room).rglob("*.py")):
        path.write_text("x = 2\n")
        assert versions() != before
        path.write_text("x = 1\n")
    path.rename(path.with_name("renamed.py"))
    assert versions() != before
