"""Notebooks argue about your own run, or say why not and go on with the shipped one."""

import re
import subprocess
import sys

import nbformat
import pytest
from bs4 import BeautifulSoup
from run_notebooks import NOTEBOOKS, Executed
from test_lanes import HTML, two_steps
from test_notebooks import PATHS, code, complaints

from workbench.figures import VENUES
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, FixedBuffer
from workbench.notebooks import rebuild
from workbench.timeline import predict, scenario_of
from workbench.traces import load_run, read_measurements
from workbench.validation.published import CAPTIONS
from workbench.whatif import headroom

pytestmark = pytest.mark.slow
START, TIME, PRICE, DERIVING, PREDICTING, HELPING, PAPER = (path.stem for path in PATHS)
UNTIMED = "messages below 32 MiB: price extrapolated"
NO_SIZES = "19 of 19 gradients have no size. Record with torch.profiler"


@pytest.fixture
def kineto(shared):
    return shared / "traces" / "kineto"


@pytest.fixture
def own(shared, kineto):
    """Parameters of each notebook for a run and timings of your own."""
    runs = {TIME: "torchrec-4rank-straggler", PRICE: "rccl-generic-names"}
    logs = {PRICE: "nccl_alltoall.log"}
    more = {HELPING: {"BUFFER_MIB": 64}}

    def parameters(name):
        sweep = shared / "traces" / "nccl_tests" / logs.get(name, "nccl_N10_G8.log")
        given = {"RUN": kineto / runs.get(name, "old-format-resnet50"), "VENUE": "ieee"}
        return given | ({} if name == TIME else {"SWEEP": sweep}) | more.get(name, {})

    return parameters


@pytest.fixture
def by_hand(executed, own):
    """Return a function that executes a notebook whose cell of parameters is edited."""
    return lambda name: executed(name, by_hand=True, **own(name))


def scenario(own, name, n_workers, fusion, **how):
    given = own(name)
    cost = fit_all_reduce(read_measurements(given["SWEEP"]), **how).model
    return scenario_of(load_run(given["RUN"]), cost, n_workers, fusion)


def test_the_forecast_is_for_your_run_and_names_the_sizes_that_were_not_timed(by_hand, own):
    done = by_hand(START)
    assert complaints(done) == [] and "parameters of resnet50, which has as many" in done.said
    expected = predict(scenario(own, START, 64, DDPBuckets(), min_bytes=2**20)).scaling_factor
    found = done.table("scaling").set_index(["fusion", "n_workers"])["scaling_factor"]
    assert found["DDP buckets", 64] == pytest.approx(expected)
    receipt = done.receipt("scaling")
    assert "published" not in str(receipt["inputs"]) and "N10_G8" in str(receipt["inputs"])
    assert receipt["recipe"]["parameters"]["VENUE"] == "ieee"
    assert {"RUN", "SWEEP"} <= set(receipt["recipe"]["paths"])
    assert "gradients of old-format-resnet50" in receipt["caption"]
    assert "up to 80 workers" in receipt["caption"] and UNTIMED in receipt["caption"]
    assert UNTIMED in done.said and UNTIMED in done.read("scaling.svg")
    label = re.search(r"against ([^.]*)\.", receipt["alt"])[1]
    assert label.startswith("number of workers") and "gradients" not in label


def test_where_the_time_goes_takes_a_run_of_gpus_by_its_path_alone(by_hand):
    done = by_hand(TIME)
    assert "run: torchrec-4rank-straggler" in done.said and complaints(done) == []
    assert "name their log in SWEEP" in done.said
    assert "torchrec-4rank-straggler" in done.receipt("run-timeline")["caption"]


def test_the_price_is_that_of_the_collective_that_was_timed(by_hand):
    assert by_hand(PRICE).receipt("price-of-a-link")["parameters"]["op"] == "all_to_all"


def test_the_recursion_is_derived_on_the_run_that_is_named(by_hand, own):
    done = by_hand(DERIVING)
    assert complaints(done) == []
    expected = predict(scenario(own, DERIVING, 16, DDPBuckets())).timeline["end_s"]
    assert done.table("osf-step")["end_s"].to_numpy() == pytest.approx(expected.to_numpy())
    inputs = {name.rpartition("/")[2] for name in done.receipt("osf-step")["inputs"]}
    assert inputs == {"worker0.1623143089861.pt.trace.json.gz", "nccl_N10_G8.log"}


def test_advice_is_for_the_run_that_is_named_and_says_what_is_extrapolated(by_hand, own):
    done = by_hand(HELPING)
    assert complaints(done) == []
    found = headroom(scenario(own, HELPING, 32, FixedBuffer(64 * 2**20), min_bytes=2**20))
    assert f"{found['scaling_factor'].iloc[0]:.4f}" in done.said
    models = done.table("ablation")["model"].unique().tolist()
    assert models == ["old-format-resnet50", "VGG-16-BN"]
    advice = "# PyTorch DDP: keep the default: no round setting gains more than 1.00%"
    assert f"{advice}; {UNTIMED}" in done.said and UNTIMED in done.read("fusion-loss.svg")
    assert "no knee between 16 and 1,024" in done.said
    source = code(NOTEBOOKS / f"{HELPING}.ipynb")
    assert "all_of_them = whatif.catalogue(" in source  # which test_whatif compares


def test_papermill_runs_the_first_notebook_on_a_run_without_sizes_and_a_log(kineto, own, tmp_path):
    run = kineto / "torchrec-4rank-half-hidden"
    named = {"RUN": run, "SWEEP": own(START)["SWEEP"], "FIGURES": tmp_path / "figures"}
    options = [text for name, value in named.items() for text in ("-p", name, str(value))]
    path = NOTEBOOKS / f"{START}.ipynb"
    command = [sys.executable, "-m", "papermill", str(path), "out.ipynb", *options]
    subprocess.run([*command, "--no-progress-bar"], cwd=tmp_path, check=True, capture_output=True)
    done = Executed(nbformat.read(tmp_path / "out.ipynb", 4), tmp_path / "figures")
    assert NO_SIZES in done.said and "published gradients" in done.receipt("scaling")["caption"]
    assert {file.name for file in tmp_path.iterdir()} == {"out.ipynb", "figures"}


def ratios(done) -> list[float]:
    """Return every ratio to a number by hand or in closed form: of series, then of columns."""
    found = []
    for output in (each for cell in done.notebook.cells for each in cell.get("outputs", [])):
        data = output.get("data", {})
        text, page = (data.get(f"text/{kind}", "") for kind in ("plain", "html"))
        if re.search("by[ _]hand|closed form", text):
            found += re.findall(r"^ratio +(\S+)$", text, re.M)
            found += [row[at] for at, row in columns(page) if row[at] != "both 0"]
    return [float(each) for each in found]


def columns(page: str):
    """Yield the place of the column named ratio, and each row."""
    for table in BeautifulSoup(page, "html.parser").find_all("table"):
        names = [cell.text for cell in table.find("thead").find("tr").find_all("th")]
        for row in table.find("tbody").find_all("tr") if "ratio" in names else []:
            yield names.index("ratio"), [cell.text for cell in row.find_all(["th", "td"])]


@pytest.mark.parametrize("run", [
    None,
    pytest.param("rccl-generic-names", marks=pytest.mark.all),
    pytest.param("amd-mi250", marks=pytest.mark.all),
])  # fmt: skip
@pytest.mark.parametrize("name", [DERIVING, HELPING])
def test_what_is_worked_out_by_hand_holds_for_any_run(name, run, executed, by_hand, own, kineto):
    done = executed(name, **own(name) | {"RUN": kineto / run}) if run else by_hand(name)
    found = ratios(done)
    assert len(found) >= 5
    if name == HELPING:
        assert found.pop(1) >= 1  # the optimum lies above its bound, or on it
    else:
        del found[0]  # bytes traced over those of the model
    assert found == pytest.approx([1] * len(found), rel=1e-4)


# --- for make test-all ----------------------------------------------------------------------------


@pytest.mark.all
@pytest.mark.parametrize("name", [START, DERIVING, HELPING])
def test_a_parameter_edited_by_hand_counts_as_by_papermill(name, executed, by_hand, own):
    edited, given = by_hand(name), executed(name, **own(name))
    assert edited.said == given.said
    assert [path.name for path in edited.figures.glob("*.csv")]
    for path in edited.figures.glob("*.csv"):
        assert path.read_bytes() == (given.figures / path.name).read_bytes(), path.name


@pytest.mark.all
def test_a_figure_of_your_own_run_is_rebuilt_from_its_receipt(by_hand, own):
    receipt = by_hand(DERIVING).figures / "osf-step.receipt.json"
    again = rebuild(receipt, **{name: own(DERIVING)[name] for name in ("RUN", "SWEEP")})
    assert not again["moved"].any(), again.to_string()


@pytest.mark.all
def test_a_forecast_stands_next_to_iteration_times_of_your_own(executed, own, tmp_path):
    (tmp_path / "mine.csv").write_text("# ours\nn_workers,iteration_s\n1,0.17\n8,0.19\n")
    done = executed(PREDICTING, **own(PREDICTING) | {"MEASURED": tmp_path / "mine.csv"})
    assert complaints(done) == []
    exposed_s = predict(scenario(own, PREDICTING, 8, DDPBuckets())).exposed_comm_s
    row = done.said.split("predicted_s")[1].splitlines()[2].split()
    assert float(row[3]) == pytest.approx(0.17 + exposed_s, rel=0.002)  # ready times shrink with T1


@pytest.mark.all
def test_without_sizes_it_says_so_and_goes_on_with_the_shipped_trace(executed, kineto):
    done = executed(HELPING, RUN=kineto / "torchrec-4rank-half-hidden")
    assert NO_SIZES in done.said
    for figure in ("fusion-loss", "ablation"):
        assert "v100_backward_trace" in str(done.receipt(figure)["inputs"])


@pytest.mark.all
def test_the_models_sizes_complete_a_trace_without_sizes(executed, kineto):
    done = executed(START, RUN=kineto / "ddp-resnet50-2gpu", SIZES="resnet50")
    assert "Scenario: 161 gradients, 97.5 MiB" in done.said
    assert "gradients of ddp-resnet50-2gpu" in done.receipt("scaling")["caption"]


@pytest.mark.all
def test_names_that_hold_html_and_script_are_shown_as_text(executed, write_trace):
    run = write_trace(two_steps(HTML), f"{HTML.replace('/', '')}.json")
    done = executed(TIME, RUN=run)
    page = done.shown("text/html")
    states = done.notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    values = "".join(str(each["state"].get("value", "")) for each in states.values())
    assert "&lt;script" in page, "the run's own name"
    assert "&lt;script" in values, "the kernels' names"
    assert not re.search(r"<(script|img)\b(?! src=.data)", page + values)


@pytest.mark.all
def test_the_paper_takes_a_run_of_one_gpu_in_place_of_the_shipped_models(executed, kineto):
    done = executed(PAPER, RUN=kineto / "old-format-resnet50")
    assert "161 gradients" in done.said and "stand in" not in done.said
    for name in ("factors", "buffer-size"):
        assert set(done.table(name)["model"]) == {"old-format-resnet50"}
    timeline = done.table("overlap-timeline").query("way == 'no overlap'")
    assert timeline["nbytes"].sum() == 4 * 25_557_032  # parameters of ResNet-50, in fp32


@pytest.mark.all
def test_the_paper_names_a_run_without_sizes_and_uses_your_own_timings(executed, kineto, own):
    run, sweep = kineto / "torchrec-4rank-half-hidden", own(PAPER)["SWEEP"]
    done = executed(PAPER, RUN=run, SWEEP=sweep, VENUE="lncs")
    assert "19 of 19 gradients have no size" in done.said
    assert "the shipped models stand in" in done.said
    assert set(done.table("all-reduce-cost")["n_workers"]) == {80}
    for name in CAPTIONS:
        pdf = (done.figures / f"{name}.pdf").read_bytes()
        points = float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)[1])
        assert points / 72 == pytest.approx(VENUES["lncs"].width_in(1), abs=0.01), name
    assert "Own: torchrec-4rank-half-hidden, nccl_N10_G8.log." in done.read("forecast.caption.txt")
