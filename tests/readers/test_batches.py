"""Whatever the size of chunks and batches, the same events come out; damage costs what it hits."""

import json

import msgspec
import pytest

from workbench.traces.readers import batches
from workbench.traces.readers.batches import Batches

EVENTS = [
    {"ph": "X", "name": f"k{i}", "ts": i, "args": {"a": [{"b": "},{"}, {"c": "é]}"}]}}
    for i in range(60)
]
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "rank": 3, "groups": [{"n": 1}]})


class Event(msgspec.Struct, tag_field="ph", tag="X"):
    name: str
    ts: int | None = None


def read(data, chunk=None):
    data = data.encode() if isinstance(data, str) else data
    size = chunk or len(data) or 1
    found = Batches((data[i : i + size] for i in range(0, len(data), size)), Event, "f")
    events = [event for batch in found for event in batch]
    return [event.name for event in events], found.fields, found.lost


NAMES = [event["name"] for event in EVENTS]
FIELDS = {"schemaVersion": 1, "rank": 3, "groups": [{"n": 1}]}


@pytest.fixture(params=[64, 200, 1000, 10**6])
def batch(request, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", request.param)
    return request.param


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("chunk", [1, 7, 64, None])
def test_a_whole_trace_comes_back_whole(batch, chunk, indent):
    text = json.dumps(json.loads(TEXT), indent=indent)
    assert read(text, chunk) == (NAMES, FIELDS, [])


def test_a_bare_list_of_events_is_a_trace(batch):
    assert read(json.dumps(EVENTS)) == (NAMES, {}, [])


def test_a_broken_event_costs_only_itself_and_is_located(batch):
    text = TEXT.replace('}, {"ph"', '},\n{"ph"').replace('"k31"', '"k"31"')
    names, fields, lost = read(text)
    assert names == [name for name in NAMES if name != "k31"]
    assert fields == FIELDS
    assert [row["n_events"] for row in lost] == [1]
    assert "line 32" in lost[0]["why"]


def test_an_event_of_another_type_costs_only_itself(batch):
    names, fields, lost = read(TEXT.replace('"k31"', '["k31"]').replace('"k7"', "7"))
    assert names == [name for name in NAMES if name not in ("k31", "k7")]
    assert fields == FIELDS
    assert sum(row["n_events"] for row in lost) == 2


def test_bytes_that_are_no_text_are_replaced_and_located(batch):
    data = TEXT.encode().replace(b'"k31"', b'"k\xff"')
    names, _, lost = read(data)
    assert names[31] == "k\ufffd" and len(names) == 60
    assert any(f"byte {data.index(0xFF)}" in row["why"] for row in lost)


def test_control_characters_and_undefined_numbers_do_no_harm(batch):
    names, fields, lost = read(TEXT.replace("k31", "k\x01").replace('"ts": 2,', '"ts": -inf,'))
    assert names[31] == "k\ufffd" and len(names) == 60
    assert fields == FIELDS
    assert not any(row["n_events"] for row in lost)


@pytest.mark.parametrize("share", range(5, 100, 7))
def test_every_event_that_ends_before_a_cut_is_kept(batch, share):
    cut = TEXT.index("[") + 1 + share * (TEXT.index('], "rank"') - TEXT.index("[") - 1) // 100
    names, _, lost = read(TEXT[:cut])
    whole = TEXT[:cut].count('"}]}}')
    assert names == NAMES[:whole]
    assert len([row for row in lost if "cut" in row["why"] or "ends at" in row["why"]]) == 1


@pytest.mark.parametrize("text", ['{"traceEvents": [', "[", '{"traceEvents":[ '])
def test_a_list_that_only_opens_is_said(text):
    names, _, lost = read(text)
    assert names == []
    assert "without closing its list" in lost[0]["why"]


def test_an_event_larger_than_a_batch_is_read(monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", 64)
    large = EVENTS[:3] + [EVENTS[3] | {"more": "x" * 5000}] + EVENTS[4:]
    assert read(json.dumps({"traceEvents": large}))[0] == NAMES


def test_an_event_larger_than_the_limit_is_lost_not_endless(monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", 64)
    monkeypatch.setattr(batches, "LARGEST_BYTES", 1000)
    names, _, lost = read('{"traceEvents": [{"ph": "X", "name": "' + "x" * 10**5)
    assert names == []
    assert lost


def test_deep_nesting_does_not_crash(batch):
    deep = "[" * 100_000 + "]" * 100_000
    names, _, lost = read(TEXT.replace('"a": [{"b"', f'"z": {deep}, "a": [{{"b"', 1))
    assert names == NAMES[1:] or names == NAMES
    assert bool(lost) == (names == NAMES[1:])


@pytest.mark.parametrize("text", ["", "{}", '{"nodes": []}', "hello", '{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused(text):
    with pytest.raises(ValueError, match="f: .*not a trace"):
        read(text)
