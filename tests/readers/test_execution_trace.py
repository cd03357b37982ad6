"""Execution traces: told by their nodes, refused as traces, joined for the sizes of messages."""

import json
import re
import tarfile

import pandas as pd
import pytest
from conftest import complete, refusal

from workbench.traces import load_run
from workbench.traces.readers import execution_trace as et
from workbench.traces.readers import kineto
from workbench.traces.readers.source import Source


def tensor(n, each=4):
    return [7, 8, 0, n, each, "cuda:0"]


def old(node, op, n, *, name="record_param_comms", outputs=(), values=None):
    """A call of a collective in schema 1.0.1."""
    inputs = values or [[tensor(n)], 151, 0, 0, op, [], []]
    row = {"id": node, "rf_id": node - 1, "name": name, "inputs": inputs}
    return row | {"input_types": ["GenericList[Tensor(float)]", "Int"], "outputs": list(outputs)}


def new(node, op, n_in, n_out, dtype="BFloat16", **attrs):
    """A call of a collective in schema 1.1.1-chakra."""
    attrs = {"rf_id": node - 1, "collective_name": op, "dtype": dtype, **attrs}
    attrs |= {"in_msg_nelems": n_in, "out_msg_nelems": n_out}
    listed = [{"name": key, "type": "any", "value": value} for key, value in attrs.items()]
    inputs = {"values": [tensor(n_in, 2), 3], "shapes": [[n_in], []], "types": ["Tensor(x)", "Int"]}
    return {"id": node, "name": "record_param_comms", "inputs": inputs, "attrs": listed}


def groups(*sizes):
    listed = [{"pg_name": str(i), "group_size": size} for i, size in enumerate(sizes)]
    inputs = {"values": [json.dumps(listed)], "types": ["String"]}
    return {"id": 3, "name": "## process_group:init ##", "inputs": inputs}


@pytest.fixture
def write(tmp_path):
    def _write(*nodes, text=None, name="host_0.json"):
        path = tmp_path / name
        path.write_text(text or json.dumps({"schema": "1.0.1", "pid": 1, "nodes": list(nodes)}))
        return Source(path)

    return _write


def comm(*ops, rank=0, nbytes=None, n_workers=None):
    """EVENTS with one comm row an op, in this order, between two compute rows."""
    kinds = ["compute", *["comm"] * len(ops), "compute"]
    table = pd.DataFrame({"rank": rank, "kind": kinds, "op": ["", *ops, ""]})
    table["start_s"] = [float(i) for i in range(len(kinds))]
    unknown = pd.array([pd.NA] * len(kinds), dtype="Int64")
    table = table.assign(nbytes=unknown, n_workers=unknown)
    return table.fillna({"nbytes": nbytes} if nbytes else {})


@pytest.mark.parametrize(
    "text, is_one",
    [
        ('{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 5}]}', True),
        ('{"schema": "1.0.1", "time": "\x00", "pid": , "nodes": [', True),  # damaged
        ('{"traceEvents": [{"name": "nodes", "args": {"nodes": [1]}}]}', False),
        ('{"schemaVersion": 1, "graph": {"nodes": []}}', False),
        ('{"traceEvents": [], "nodes": []}', False),
        ('[{"nodes": []}]', False),
        ('{"nodes": 5}', False),
        ("nodes: []", False),
        ("", False),
    ],
)
def test_nodes_at_the_top_tell_it(text, is_one):
    assert et.recognises(text.encode()) == is_one


def test_as_a_trace_it_is_refused_with_what_to_load(write):
    source = write({"id": 2, "name": "aten::mm"}, old(5, "allreduce", 10))
    text = refusal(lambda: et.read(source), "host_0.json", "2 nodes, 1 messages")
    assert "add_sizes" in text


def test_sizes_of_the_older_layout_come_from_the_tensors(write):
    two = [[tensor(10), tensor(6)], 151, 0, 0, "allreduce", [], []]
    table = et.called_messages(write(old(9, "", 0, values=two), old(5, "all_to_allv", 100)))
    columns = ["node", "rf_id", "op", "nbytes", "dtype"]
    assert table[columns].values.tolist() == [
        [5, 4, "all_to_all", 400, "float"],
        [9, 8, "all_reduce", 64, "float"],
    ]


def test_a_gather_moves_what_all_workers_give(write):
    given = [tensor(10), 151, 0, 0, "allgather", [], []]
    bare = old(9, "", 0, values=given)
    full = old(9, "", 0, values=given, outputs=[[tensor(40)]])
    for nodes, nbytes in (([full], 160), ([groups(4), bare], 160), ([bare], pd.NA)):
        assert et.called_messages(write(*nodes))["nbytes"].tolist() == [nbytes]


def test_the_newer_layout_tells_all_in_attributes(write):
    calls = [new(9, "_allgather_base", 10, 80, pg_name="3", pg_size=8)]
    row = et.called_messages(write(*calls)).iloc[0]
    told = row[["rf_id", "op", "nbytes", "dtype", "n_workers", "group"]].tolist()
    assert told == [8, "all_gather", 160, "BFloat16", 8, "3"]


def test_a_groups_size_is_that_of_the_list_of_groups(write):
    table = et.called_messages(write(groups(8, 4), new(9, "allreduce", 5, 5, pg_name="1")))
    assert table["n_workers"].tolist() == [4]


def test_waits_are_no_messages_and_calls_of_the_backend_serve_where_no_others_are(write):
    wait = old(5, "", 0, values=[141, 0, 0, "wait", [], []])
    assert len(et.called_messages(write(wait, old(9, "allreduce", 1)))) == 1
    table = et.called_messages(write(old(5, "", 0, name="nccl:all_reduce", values=[[tensor(3)]])))
    assert table[["op", "nbytes"]].values.tolist() == [["all_reduce", 12]]


FIRST, SECOND = (json.dumps(old(node, "allreduce", 1)) for node in (5, 9))


@pytest.mark.parametrize(
    "text, shown, nodes",
    [
        (f'{{"schema": "1", "nodes": [\n{FIRST}\n{SECOND}\n]}}', "line 3, byte", [5, 9]),
        (f'{{"schema": "1", "nodes": [{FIRST}, {SECOND[:-30]}', "the file is cut", [5]),
    ],
)
def test_whole_nodes_of_a_damaged_file_are_read(write, text, shown, nodes):
    with pytest.warns(UserWarning, match=shown):
        assert et.called_messages(write(text=text))["node"].tolist() == nodes


@pytest.mark.parametrize("text", ['{"schema": 1, "nodes": []}', '{"schema": 1, "nodes": [7'])
def test_a_file_without_nodes_is_refused(write, text):
    refusal(lambda: et.called_messages(write(text=text)), "host_0.json")


@pytest.mark.parametrize(
    "node",
    [
        {"id": [1], "name": "record_param_comms", "inputs": "x", "attrs": 5},
        {"id": 2**70, "name": "record_param_comms", "inputs": [[[[]]], None, "allreduce"]},
        {"name": "record_param_comms", "attrs": [7, {"name": ["x"]}], "inputs": {"values": 3}},
        {"name": "## process_group:init ##", "inputs": {"values": ["[[", 4]}},
        old(5, "allreduce", -4),
        old(5, "allreduce", 2**70),
        new(5, "allreduce", "many", None),
    ],
)
def test_fields_of_any_kind_leave_a_size_unknown(write, node):
    table = et.called_messages(write(node, old(9, "allreduce", 2)))
    assert table["nbytes"].dropna().tolist() == [8]


def test_bytes_that_are_no_text_leave_a_size_unknown(tmp_path):
    path = tmp_path / "host_0.json"
    text = json.dumps({"schema": "1", "nodes": [old(5, "allreduce", 2)]}).encode()
    path.write_bytes(text.replace(b"cuda:0", b"\xff\xfe\xfd"))
    assert et.called_messages(Source(path))["nbytes"].isna().all()


def test_sizes_are_filled_in_by_order_and_what_is_known_stays(write):
    messages = et.called_messages(write(old(5, "allreduce", 10), old(9, "allreduce", 20)))
    events = comm("all_reduce", "all_reduce")
    events.loc[1, "nbytes"] = 77
    before = events.copy()
    assert et.join(events, messages)["nbytes"].tolist() == [pd.NA, 77, 80, pd.NA]
    pd.testing.assert_frame_equal(events, before)


def test_a_row_of_unknown_op_takes_that_of_its_call(write):
    messages = et.called_messages(
        write(new(5, "all_to_all", 10, 10, pg_size=4), new(9, "allreduce", 1, 1))
    )
    joined = et.join(comm("unknown", "all_reduce"), messages)
    assert joined["op"].tolist() == ["", "all_to_all", "all_reduce", ""]
    assert joined["n_workers"][1] == 4


def test_ops_whose_counts_agree_are_linked_and_others_are_said(write):
    calls = [old(5, "allreduce", 10), old(7, "all_to_all", 20), old(9, "all_to_all", 30)]
    messages = et.called_messages(write(*calls))
    with pytest.warns(UserWarning, match="all_to_all: 1 in the trace, 2 calls"):
        joined = et.join(comm("all_to_all", "all_reduce"), messages)
    assert joined["nbytes"].tolist() == [pd.NA, pd.NA, 40, pd.NA]


@pytest.mark.parametrize(
    "tables, shown",
    [
        ([comm("all_reduce", "all_reduce")], "all_reduce: 2 in the trace, 1"),
        ([comm("all_reduce"), comm("all_reduce", rank=1)], "[0, 1]"),
    ],
)
def test_linking_is_refused_where_no_count_agrees_or_of_several_ranks(write, tables, shown):
    messages = et.called_messages(write(old(5, "allreduce", 10)))
    with pytest.raises(ValueError, match=re.escape(shown)):
        et.join(pd.concat(tables, ignore_index=True), messages)


def test_a_kineto_trace_without_shapes_gets_its_sizes(write, write_trace):
    kernel = {"stream": 7, "tid": 7}
    names = ["ncclKernel_AllReduce_RING_LL_Sum_float", "ncclKernel_AllReduce_RING_LL_Sum_float"]
    events = [complete("kernel", n, 10 * i, 5, **kernel) for i, n in enumerate(names)]
    path = write_trace(events, name="rank0.json")
    messages = et.called_messages(write(old(5, "allreduce", 10), old(9, "allreduce", 20)))
    joined = et.join(load_run(path).events, messages)
    assert joined["nbytes"].tolist() == [40, 80]


def test_case_of_a_missing_comma(shared):
    source = Source(shared / "cases/r34_et_missing_comma.json")
    refusal(lambda: et.read(source), "r34_et_missing_comma.json", "line 3, byte 89")


def test_case_of_a_trace_that_cannot_be_linked(shared, write):
    table, _, _ = kineto.read(Source(shared / "cases/r34c_kineto_no_rf_id.json"))
    with pytest.raises(ValueError, match="linking is impossible"):
        et.join(table.assign(start_s=0.0), et.called_messages(write(old(5, "allreduce", 10))))


def test_real_traces_of_eight_ranks_agree_with_their_kineto_traces(shared, tmp_path):
    with tarfile.open(shared / "traces/pytorch_et/dlrm_pytorch_et.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = load_run(shared / "traces/kineto/dlrm-8rank-tar/dlrm_kineto.tar.gz")
    paths = sorted(tmp_path.rglob("*.json"))
    assert len(paths) == 8
    for path in paths:
        events = run.events[run.events["rank"] == int(path.stem[-1])]
        bare = events.assign(nbytes=pd.array([pd.NA] * len(events), dtype="Int64"))
        joined = et.join(bare, et.called_messages(Source(path)))
        is_comm = events["kind"] == "comm"
        # Kineto sees only what goes in; an uneven exchange may give back more
        assert is_comm.sum() == 8
        assert (joined.loc[is_comm, "nbytes"] >= events.loc[is_comm, "nbytes"]).all()
        assert (joined.loc[is_comm, "nbytes"] == events.loc[is_comm, "nbytes"]).sum() >= 5
        assert joined["nbytes"].count() == 8


def test_no_other_kind_of_file_is_claimed(shared):
    files = [f for folder in ("traces", "cases") for f in (shared / folder).rglob("*")]
    claimed = {f.name for f in files if f.is_file() and et.recognises(Source(f).head)}
    expected = {"benchmark_simple_add_et.json.gz", "r13_eg.pt.trace.json"}
    assert claimed == expected | {"r34_et_missing_comma.json"}
