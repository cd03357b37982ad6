"""Summaries of nvprof and nsys: sums in SI units, and never taken for a trace."""

import pytest
from conftest import refusal

from workbench.traces.readers import totals
from workbench.traces.readers.source import Source

NVPROF = """==12== NVPROF is profiling process 12, command: python t.py
step 1 loss=0.3, done
==12== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,ms,
"GPU activities",60.0,12.5,100,125.0,100.0,0.2,"ncclAllReduceRingLLKernel_sum_f32(ncclColl)"
"GPU activities",40.0,8.3,100,83.0,80.0,0.09,"void gemm<float, int=128>(float, int)"
"GPU activities",1.0,0.5,10,50.0,40.0,0.06,"[CUDA memcpy HtoD]"
"API calls",90.0,1.1,10,110.0,1.0,0.9,"cudaLaunchKernel"
"""
NSYS = """Processing [run.sqlite] with [cuda_api_sum.py]...

"Time (%)","Total Time (ns)","Num Calls","Avg (ns)","Name"
"100.0","9000000","20","450000.0","cudaLaunchKernel"

Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...

"Time (%)","Total Time (ns)","Instances","Avg (ns)","Med (ns)","Min (ns)","Max (ns)","Name"
58.5,"5,850,000",50,117000,116000,100000,130000,"void gemm<double>(double*, double const*)"

Processing [run.sqlite] with [cuda_gpu_mem_time_sum.py]...

"Time (%)","Total Time (ns)","Count","Avg (ns)","Med (ns)","Min (ns)","Max (ns)","Operation"
100.0,2000,2,1000,1000,900,1100,"[CUDA memcpy Host-to-Device]"

"Total (MB)","Count","Avg (MB)","Med (MB)","Min (MB)","Max (MB)","StdDev (MB)","Operation"
7.5,2,3.75,3.75,3.75,3.75,0.0,"[CUDA memcpy Host-to-Device]"
"""
TIMES = ["seconds", "mean_s", "min_s", "max_s"]


def test_only_what_ran_on_the_gpu_is_kept_each_column_in_its_unit():
    table = totals.totals_table(NVPROF, "f")
    expected = [12.5e-3, 125e-6, 100e-6, 0.2e-3]
    assert table.iloc[0][TIMES].tolist() == pytest.approx(expected, rel=1e-12)
    assert table["kind"].tolist() == ["comm", "compute", "memory"]
    assert table["op"].tolist() == ["all_reduce", "", ""]
    assert table["name"][1] == "void gemm<float, int=128>(float, int)"


def test_nsys_tables_of_kernels_and_copies_are_read_and_others_are_not():
    table = totals.totals_table(NSYS, "f")
    assert table[["kind", "n_calls"]].values.tolist() == [["compute", 50], ["memory", 2]]
    assert table["seconds"].tolist() == pytest.approx([5.85e-3, 2e-6], rel=1e-12)


@pytest.mark.parametrize(
    "header, row",
    [
        ("Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name", "9,100,2,50,40,60,gemm"),
        ("Time(%),Total Time,Instances,Average,Minimum,Maximum,Name", "9,100,2,50,40,60,gemm"),
        ("Time (%),Total Time (us),Instances,Avg (us),Min (ns),Max (us),Name",
         "9,0.1,2,0.05,40,0.06,gemm"),
        ("Time (%),Total Time (ns),Instances,Avg (ns),Min (ns),Max (ns),Category,Operation",
         "9,100,2,50,40,60,CUDA_KERNEL,gemm"),
    ],
)  # fmt: skip
def test_headers_of_other_versions_of_nsys_mean_the_same(header, row):
    assert totals.recognises(header.encode())
    (found,) = totals.totals_table(f"{header}\n{row}\n", "f").to_dict("records")
    assert [found[key] for key in TIMES] == pytest.approx([1e-7, 5e-8, 4e-8, 6e-8], rel=1e-12)


def test_columns_that_are_not_there_are_unknown():
    table = totals.totals_table("Time (%),Total Time (ns),Instances,Name\n100,5,2,k\n", "f")
    assert table[["mean_s", "min_s", "max_s"]].isna().all(axis=None)


def test_calls_on_the_host_alone_and_totals_as_a_trace_are_refused(tmp_path):
    text = "Time(%),Total Time (ns),Calls,Average,Name\n100,5,2,2,cudaMalloc\n"
    refusal(lambda: totals.totals_table(text, "f"), "f", "cuda_gpu_kern_sum")
    path = tmp_path / "profile.csv"
    path.write_text(NVPROF)
    refusal(lambda: totals.read(Source(path)), "profile.csv", "read_totals")


@pytest.mark.parametrize("broken", ["12.5x,100", f"12.5,{2**70}", "12.5,-4", "12.5,many", "12.5,"])
def test_a_broken_line_is_named_and_the_others_kept(broken):
    with pytest.warns(UserWarning, match="f: line 6 left out"):
        assert len(totals.totals_table(NVPROF.replace("12.5,100", broken), "f")) == 2


def test_a_short_row_of_units_leaves_the_other_columns_as_they_were():
    text = "Time(%),Total Time,Instances,Average,Name\n,us,,,\n9,100,2,50,gemm\n"
    short = text.replace(",us,,,", "%,us,,")
    assert totals.totals_table(short, "f").equals(totals.totals_table(text, "f"))


def test_a_real_profile_below_a_programs_own_output(shared):
    path = shared / "traces/nvprof/per_kernel_runtimes.csv"
    table = totals.totals_table(path.read_text(), str(path))
    assert len(table) == 122  # grep -c '^"GPU activities"'
    assert table["seconds"][0] == pytest.approx(0.257621555, rel=1e-12)
    assert (table["mean_s"] * table["n_calls"]).to_numpy(float) == pytest.approx(
        table["seconds"].to_numpy(float), rel=0.01  # the file gives six digits of a mean in ms
    )  # fmt: skip


def test_the_case_of_a_maximum_in_other_units(shared):
    path = shared / "cases/r33_nvprof_units_row.csv"
    table = totals.totals_table(path.read_text(), str(path))
    assert table["max_s"].tolist() == pytest.approx([0.2e-3, 0.09e-3], rel=1e-12)
    assert table["n_calls"].tolist() == [100, 100]


def test_no_other_kind_of_file_is_claimed(shared):
    files = [f for folder in ("traces", "cases") for f in (shared / folder).rglob("*")]
    claimed = {f.name for f in files if f.is_file() and totals.recognises(Source(f).head)}
    assert claimed == {"per_kernel_runtimes.csv", "r33_nvprof_units_row.csv"}
