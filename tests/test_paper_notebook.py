"""The notebook of paper figures takes a run and timings by their paths, and says what they lack."""

import re

import pandas as pd
import pytest
from run_notebooks import NOTEBOOKS, execute

from workbench.figures import VENUES
from workbench.notebooks.execution import CellExecutionError
from workbench.validation.published import CAPTIONS

PATH = NOTEBOOKS / "06-paper-figures.ipynb"
POINTS = 72  # of PDF, an inch


def printed(done) -> str:
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert not [output["text"] for output in outputs if output.get("name") == "stderr"]
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


def width_in(pdf) -> float:
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf.read_bytes())
    return float(box[1]) / POINTS


@pytest.mark.slow
def test_every_figure_has_its_caption_and_the_claims_their_latex(tmp_path):
    assert "No run: the shipped models stand in." in printed(
        execute(PATH, cwd=tmp_path, timeout=120, parameters={"FIGURES": tmp_path / "f"})
    )
    for name in CAPTIONS:
        for suffix in ("pdf", "svg", "csv", "receipt.json", "caption.txt"):
            assert (tmp_path / "f" / f"{name}.{suffix}").is_file(), f"{name}.{suffix}"
    assert r"\toprule" in (tmp_path / "f" / "claims.tex").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_without_sizes_is_named_and_timings_of_ones_own_are_used(shared, tmp_path):
    run = shared / "traces" / "kineto" / "torchrec-4rank-half-hidden"
    sweep = shared / "traces" / "nccl_tests" / "nccl_N10_G8.log"
    given = {"RUN": run, "SWEEP": sweep, "FIGURES": tmp_path / "f", "VENUE": "lncs"}
    told = printed(execute(PATH, cwd=tmp_path, timeout=120, parameters=given))
    assert "19 of 19 gradients have no size" in told and "the shipped models stand in" in told
    cost = pd.read_csv(tmp_path / "f" / "all-reduce-cost.csv")
    assert set(cost["n_workers"]) == {80}
    widest = VENUES["lncs"].width_in(1)
    for name in CAPTIONS:
        assert width_in(tmp_path / "f" / f"{name}.pdf") == pytest.approx(widest, abs=0.01), name
    told = (tmp_path / "f" / "forecast.caption.txt").read_text(encoding="utf-8")
    assert "Own: torchrec-4rank-half-hidden, nccl_N10_G8.log." in told


@pytest.mark.slow
def test_a_run_of_one_gpu_takes_the_place_of_the_shipped_models(shared, tmp_path):
    run = shared / "traces" / "kineto" / "old-format-resnet50"
    given = {"RUN": run, "FIGURES": tmp_path / "f"}
    told = printed(execute(PATH, cwd=tmp_path, timeout=120, parameters=given))
    assert "161 gradients" in told and "stand in" not in told
    for name in ("factors", "buffer-size"):
        assert set(pd.read_csv(tmp_path / "f" / f"{name}.csv")["model"]) == {run.name}
    timeline = pd.read_csv(tmp_path / "f" / "overlap-timeline.csv")
    one = timeline[timeline["way"] == "no overlap"]
    assert one["nbytes"].sum() == 4 * 25_557_032  # parameters of ResNet-50, in fp32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"VENUE": "nature"}, "unknown venue 'nature': choose one of acm-sigconf, "),
        ({"VENUE": "neurips", "COLUMNS": 2}, "columns: neurips has a single column, got 2"),
    ],
)
def test_a_venue_that_is_none_is_named(tmp_path, given, message):
    with pytest.raises(CellExecutionError) as error:
        execute(PATH, cwd=tmp_path, timeout=120, parameters={"FIGURES": tmp_path / "f"} | given)
    assert error.value.ename == "ValueError" and error.value.evalue.startswith(message)
