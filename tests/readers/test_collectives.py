from concurrent.futures import ThreadPoolExecutor

import pytest

from workbench.traces.readers.collectives import (
    added,
    collective,
    compiled,
    dtype_bytes,
    is_communication,
)

NAMES = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "nccldevkernel_allreduce_sum_f32_ring_ll": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL": "all_gather",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL": "reduce",
    "void multimem_all_reduce_kernel<float>(...)": "all_reduce",
    "oneccl_allreduce_ring_kernel": "all_reduce",
    "void vllm::cross_device_reduce_1stage<float, 4>(...)": "all_reduce",
}


@pytest.mark.parametrize("name, op", NAMES.items())
def test_the_collective_is_told_by_its_name_not_by_its_algorithm(name, op):
    assert is_communication(name)
    assert collective(name) == op


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    ],
)
def test_a_generic_kernel_communicates_but_tells_no_collective(name):
    assert is_communication(name)
    assert collective(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)",
        "void at::native::vectorized_gather_kernel<16, long>(...)",
        "volta_sgemm_128x64_nn",
    ],
)
def test_ordinary_kernels_do_not_communicate(name):
    assert not is_communication(name)


@pytest.mark.parametrize(
    "written, op",
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("nccl:_all_gather_base", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("sendrecv_perf", "send_recv"),
        ("aten::mm", ""),
    ],
)
def test_names_of_calls(written, op):
    assert collective(written) == op


@pytest.mark.parametrize(
    "dtype, size",
    [("Float", 4), ("c10::BFloat16", 2), ("long int", 8), ("signed char", 1), ("torch.half", 2)],
)
def test_bytes_of_a_type_however_written(dtype, size):
    assert dtype_bytes(dtype) == size


def test_an_unknown_type_has_no_size():
    assert dtype_bytes("GenericList") is None


# Patterns of the user


def test_a_pattern_of_the_user_comes_first_and_holds_within_the_block():
    patterns = compiled({"fast_sum": "AllReduce", "ncclDevKernel_Generic": "all_to_all", "moe": ""})
    with added(patterns):
        assert is_communication("void fast_sum<4>()") and is_communication("moe_dispatch")
        assert collective("void fast_sum<4>()") == "all_reduce"
        assert collective("ncclDevKernel_Generic_4(ncclDevKernelArgs)") == "all_to_all"
        assert collective("moe_dispatch_all_gather") == ""
        assert collective("ncclDevKernel_AllGather_RING_LL") == "all_gather"
    assert not is_communication("void fast_sum<4>()")
    assert collective("ncclDevKernel_Generic_4(ncclDevKernelArgs)") == ""


def test_the_first_of_several_patterns_holds():
    with added(compiled({"sum": "reduce", "fast_sum": "all_reduce"})):
        assert collective("fast_sum") == "reduce"


def test_patterns_are_those_of_their_thread():
    def told(patterns):
        with added(compiled(patterns)):
            return [collective("fast_sum") for _ in range(200)]

    with ThreadPoolExecutor(4) as pool:
        each = pool.map(told, [{"fast_sum": op} for op in ("all_reduce", "reduce", "broadcast")])
        assert [set(ops) for ops in each] == [{"all_reduce"}, {"reduce"}, {"broadcast"}]


@pytest.mark.parametrize(
    "patterns, message",
    [
        ("fast_sum", "expected {regular expression: collective}.*got 'fast_sum'"),
        ({"fast_sum": None}, "expected {regular expression: collective}"),
        ({3: "all_reduce"}, "expected {regular expression: collective}"),
        ({"fast(": "all_reduce"}, r"patterns: .*'fast\('"),
        ({"fast": "allredcue"}, "expected one of all_reduce, .*got 'allredcue'"),
    ],
)
def test_what_is_no_table_of_patterns_is_refused(patterns, message):
    with pytest.raises(ValueError, match=message):
        compiled(patterns)


def test_no_patterns_are_none():
    assert compiled(None) == compiled({}) == ()
