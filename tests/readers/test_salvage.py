"""A whole trace cut at every place, and broken in the ways profilers break theirs."""

import json

import pytest

from workbench.readers.salvage import salvage

EVENTS = [{"ph": "X", "name": f"k{i}", "ts": i, "args": {"a": [1, {"b": 2}]}} for i in range(4)]
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "rank": 3})


def names(events):
    return [event["name"] for event in events]


def lost_events(lost):
    return sum(row["n_events"] for row in lost if not row["kept"])


def test_a_whole_trace_comes_back_whole():
    fields, events, lost = salvage(TEXT.encode(), "f")
    assert (fields, events, lost) == ({"schemaVersion": 1, "rank": 3}, EVENTS, [])


@pytest.mark.parametrize("cut", range(TEXT.index("[") + 1, TEXT.index('], "rank"')))
def test_every_event_that_ends_before_the_cut_is_kept(cut):
    ends = [TEXT.index(json.dumps(event)) + len(json.dumps(event)) for event in EVENTS]
    _, events, lost = salvage(TEXT[:cut].encode(), "f")
    assert events == EVENTS[: sum(end <= cut for end in ends)]
    assert lost, "a cut file must say so"


def test_a_broken_event_costs_only_itself_and_is_located():
    text = TEXT.replace('"k1"', '"k"1"').replace('}, {"ph"', '},\n{"ph"')
    _, events, lost = salvage(text.encode(), "f")
    assert names(events) == ["k0", "k2", "k3"]
    assert lost_events(lost) == 1
    assert "line 2" in lost[0]["why"]


def test_bytes_that_are_no_text_are_replaced_and_located():
    data = TEXT.encode().replace(b"k2", b"k\xff")
    _, events, lost = salvage(data, "f")
    assert names(events) == ["k0", "k1", "k\ufffd", "k3"]
    assert f"from byte {data.index(0xFF)}" in lost[0]["why"]


def test_control_characters_are_replaced():
    _, events, lost = salvage(TEXT.replace("k2", "k\x01").encode(), "f")
    assert names(events)[2] == "k\ufffd"
    assert "1 control characters" in lost[0]["why"]


def test_infinite_and_undefined_numbers_are_left_out():
    text = TEXT.replace('"ts": 1', '"ts": inf').replace('"ts": 2', '"ts": -NaN')
    _, events, _ = salvage(text.encode(), "f")
    assert [event["ts"] for event in events] == [0, None, None, 3]


def test_a_bare_list_of_events_is_a_trace():
    assert salvage(json.dumps(EVENTS).encode(), "f")[1] == EVENTS


def test_deep_nesting_does_not_crash():
    text = '{"traceEvents": [' + "[" * 100_000 + "]" * 100_000 + ', {"name": "k"}]}'
    _, events, lost = salvage(text.encode(), "f")
    assert lost


@pytest.mark.parametrize("text", ["", "{}", '{"nodes": []}', "hello", '{"traceEvents": 3}'])
def test_what_is_no_trace_is_refused_with_its_beginning(text):
    with pytest.raises(ValueError, match="f: not a trace: it (begins with|is empty)"):
        salvage(text.encode(), "f")
