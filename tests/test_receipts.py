"""The files save() writes: embedded fonts, the data, the receipt; and what it refuses."""

import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workbench.drawing.receipts import REPOSITORY, save
from workbench.figures import draw_scaling, paper

SCALING = pd.DataFrame(
    {
        "n_workers": [1, 2, 4, 8] * 3,
        "scaling_factor": [1, 0.9, 0.8, 0.7, 1, 0.8, 0.6, 0.5, 1, 0.95, 0.9, 0.85],
        "policy": ["one message"] * 4 + ["per tensor"] * 4 + ["DDP buckets"] * 4,
    }
)


@pytest.fixture
def ax():
    """An Axes of a figure that no state of pyplot knows, at paper size."""
    with mpl.rc_context(paper()):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure.subplots()


DRAW_AND_SAVE = """
import sys, pandas as pd, matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
from workbench.figures import draw_timeline, paper, save
table = pd.DataFrame({"n_gradients": [2, 3], "nbytes": [10, 20], "ready_s": [0.01, 0.02],
                      "start_s": [0.01, 0.04], "end_s": [0.04, 0.07]})
with plt.rc_context(paper()):
    fig, ax = plt.subplots()
    draw_timeline(ax, table, backward_s=0.05)
save(fig, "timeline", data=table, folder=sys.argv[1], parameters={"backward_s": 0.05})
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", DRAW_AND_SAVE, str(tmp_path / seed)],
            check=True,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == ["timeline.csv", "timeline.pdf", "timeline.receipt.json", "timeline.svg"]
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


@pytest.fixture
def saved(ax, tmp_path):
    """A figure saved with one input file; what it wrote lies in tmp_path/out."""
    (tmp_path / "input.csv").write_bytes(b"n_workers\n1\n")
    draw_scaling(ax, SCALING, label="policy")
    parameters = {"alpha_s": np.float64(1e-6), "workers": [1, 2]}
    return save(ax.figure, "scaling", data=SCALING, folder=tmp_path / "out",
                inputs=[tmp_path / "input.csv"], parameters=parameters)  # fmt: skip


def receipt_of(pdf: Path) -> dict:
    return json.loads(pdf.with_suffix(".receipt.json").read_text())


def test_pdf_fonts_are_embedded_as_truetype(saved):
    content = saved.read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.S)
    plain = content + b"".join(zlib.decompress(s) for s in streams if s[:1] == b"\x78")
    assert b"/CIDFontType2" in plain and b"/FontFile2" in plain and b"/Type3" not in plain


def test_fonts_are_embedded_even_when_saved_outside_the_paper_settings(saved):
    with mpl.rc_context({"pdf.fonttype": 3}):
        figure = Figure()
        figure.subplots().set_xlabel("time (ms)")
        pdf = save(figure, "other", data=SCALING, folder=saved.parent)
    assert b"/Type3" not in pdf.read_bytes()


def test_no_file_holds_a_date(saved):
    assert b"CreationDate" not in saved.read_bytes()
    assert "<dc:date>" not in saved.with_suffix(".svg").read_text()


def test_svg_text_stays_text(saved):
    assert "scaling factor</text>" in saved.with_suffix(".svg").read_text()


def test_the_data_come_back_from_the_csv(saved):
    pd.testing.assert_frame_equal(pd.read_csv(saved.with_suffix(".csv")), SCALING)


def test_the_receipt_has_the_hashes_of_what_was_read_and_written(saved):
    receipt = receipt_of(saved)
    assert receipt["inputs"] == {"input.csv": hashlib.sha256(b"n_workers\n1\n").hexdigest()}
    assert set(receipt["written"]) == {"scaling.pdf", "scaling.svg", "scaling.csv"}
    for name, digest in receipt["written"].items():
        content = (saved.parent / name).read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()


def test_the_receipt_tells_versions_and_parameters(saved):
    receipt = receipt_of(saved)
    assert receipt["parameters"] == {"alpha_s": 1e-6, "workers": [1, 2]}
    assert receipt["versions"]["matplotlib"] == mpl.__version__
    assert {"python", "workbench", "numpy", "pandas", "seaborn"} <= set(receipt["versions"])


def test_inputs_of_the_repository_are_told_by_their_path_in_it(ax, tmp_path):
    pdf = save(ax.figure, "empty", data=SCALING, folder=tmp_path,
               inputs=[REPOSITORY / "pyproject.toml"])  # fmt: skip
    assert list(receipt_of(pdf)["inputs"]) == ["pyproject.toml"]


def test_no_receipt_holds_an_absolute_path(saved):
    assert str(saved.parents[1]) not in saved.with_suffix(".receipt.json").read_text()


BAD_NAMES = ["", "..", "a/b", "../scaling", "/tmp/scaling", "a\\b", "a.pdf", "a.PNG", 5]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_holds_a_path_or_a_suffix_is_refused(ax, tmp_path, name):
    with pytest.raises(ValueError, match="plain file name"):
        save(ax.figure, name, data=SCALING, folder=tmp_path / "inside")
    assert not (tmp_path / "inside").exists()


def test_a_missing_input_is_named_before_anything_is_written(ax, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.json"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path / "out", inputs=["absent.json"])
    assert not (tmp_path / "out").exists()


def test_a_dot_within_a_name_is_no_suffix(ax, tmp_path):
    assert save(ax.figure, "torch-2.6", data=SCALING, folder=tmp_path).name == "torch-2.6.pdf"


def test_an_axes_in_place_of_a_figure_is_answered_with_its_figure(ax, tmp_path):
    with pytest.raises(ValueError, match="expected a Matplotlib Figure, got Axes; pass ax.figure"):
        save(ax, "scaling", data=SCALING, folder=tmp_path)
    with pytest.raises(ValueError, match="got module; pass the fig of"):
        save(mpl, "scaling", data=SCALING, folder=tmp_path)


@pytest.mark.parametrize("folder", ["taken", "taken/below"])
def test_a_file_in_the_place_of_the_folder_is_named(ax, tmp_path, folder):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ValueError, match="taken is a file; name another folder"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path / folder)


def test_a_folder_that_cannot_be_made_is_named(ax, tmp_path):
    folder = tmp_path / ("long" * 100)
    with pytest.raises(ValueError, match="folder .*long cannot be made .*; name another folder"):
        save(ax.figure, "scaling", data=SCALING, folder=folder)


def test_inputs_given_as_a_pattern_or_a_folder_are_hashed_file_by_file(ax, tmp_path):
    (tmp_path / "in" / "below").mkdir(parents=True)
    for name in ("rank0.json", "rank1.json", "below/notes.txt"):
        (tmp_path / "in" / name).write_text(name)
    figure, out = ax.figure, tmp_path / "out"
    pattern = save(figure, "one", data=SCALING, folder=out, inputs=f"{tmp_path}/in/*.json")
    assert set(receipt_of(pattern)["inputs"]) == {"rank0.json", "rank1.json"}
    folder = save(figure, "two", data=SCALING, folder=out, inputs=[tmp_path / "in"])
    assert set(receipt_of(folder)["inputs"]) == {"rank0.json", "rank1.json", "notes.txt"}


def test_a_pattern_that_matches_nothing_is_named(ax, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\*.json"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, inputs="none*.json")


def test_inputs_that_are_no_paths_are_refused(ax, tmp_path):
    with pytest.raises(ValueError, match="inputs: expected paths, got DataFrame"):
        save(ax.figure, "one", data=SCALING, folder=tmp_path, inputs=SCALING)


def test_a_table_among_the_parameters_is_refused_without_showing_it(ax, tmp_path):
    with pytest.raises(ValueError, match=r"\['runs'\] .* got DataFrame; name a table") as error:
        save(ax.figure, "one", data=SCALING, folder=tmp_path, parameters={"runs": SCALING})
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("value", [float("nan"), object(), [float("inf")]])
def test_a_parameter_that_is_no_plain_value_is_named(ax, tmp_path, value):
    with pytest.raises(ValueError, match="alpha_s"):
        save(ax.figure, "scaling", data=SCALING, folder=tmp_path, parameters={"alpha_s": value})


def test_inputs_of_one_name_are_all_hashed(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank0.json").write_text(folder)
    fig = Figure()
    inputs = [tmp_path / "a" / "rank0.json", tmp_path / "b" / "rank0.json"]
    pdf = save(fig, "two", pd.DataFrame({"x": [1]}), tmp_path / "out", inputs=inputs)
    assert list(receipt_of(pdf)["inputs"]) == ["rank0.json", "rank0.json #2"]
