"""Figures: their sizes and colours, what they refuse to draw, and the files save() writes."""

import hashlib
import itertools
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

from workbench.costs import Link, Ring
from workbench.figures import (
    COLOURS,
    HATCHES,
    REPOSITORY,
    draw_breakdown,
    draw_fit,
    draw_scaling,
    draw_timeline,
    paper,
    save,
)
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import Scenario, predict, sweep
from workbench.units import GBIT, MIB

TIMELINE = pd.DataFrame(
    {
        "n_gradients": [2, 3, 5],
        "nbytes": [1_000_000, 2_000_000, 3_000_000],
        "ready_s": [0.010, 0.020, 0.050],
        "start_s": [0.010, 0.040, 0.070],
        "end_s": [0.040, 0.070, 0.080],
    }
)
SCALING = pd.DataFrame(
    {
        "n_workers": [1, 2, 4, 8] * 3,
        "scaling_factor": [1, 0.9, 0.8, 0.7, 1, 0.8, 0.6, 0.5, 1, 0.95, 0.9, 0.85],
        "policy": ["one message"] * 4 + ["per tensor"] * 4 + ["DDP buckets"] * 4,
    }
)
ITERATIONS = pd.DataFrame(
    {
        "rank": [0, 0],
        "iteration": [3, 4],
        "duration_s": [0.10, 0.12],
        "compute_s": [0.06, 0.07],
        "exposed_comm_s": [0.02, 0.02],
        "exposed_memory_s": [0.01, 0.01],
        "idle_s": [0.01, 0.02],
    }
)


SIZES = np.array([1, 2, 4, 8, 16]) * 2**20
MEASURED = pd.DataFrame(
    {
        "op": "all_reduce",
        "n_workers": np.repeat([4, 8], 5),
        "n_nodes": 1,
        "nbytes": np.tile(SIZES, 2),
        "seconds": np.concatenate([Ring(Link(1e-5, 1e-9))(SIZES, n) for n in (4, 8)])
        * np.tile([1.02, 0.98, 1.01, 0.99, 1.0], 2),
    }
)


SCENARIO = Scenario(
    pd.DataFrame({"name": "weight", "nbytes": 4 * MIB, "ready_s": np.arange(1, 11) * 0.006}),
    one_worker_s=0.1,
    backward_s=0.06,
    n_workers=8,
    all_reduce=Ring(Link(1e-5, 1 / (10 * GBIT))),
    fusion=DDPBuckets(),
)


@pytest.fixture
def ax():
    """An Axes of a figure that no state of pyplot knows, at paper size."""
    with mpl.rc_context(paper()):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure.subplots()


def lightness(colour) -> float:
    """CIE L* of a colour: what grey print keeps of it (IEC 61966-2-1, CIE 15)."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
              [-0.003882, -0.048116, 1.051998]]  # fmt: skip
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881]]  # fmt: skip


def seen_lightness(colour, deficiency) -> float:
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = np.clip(np.array(deficiency) @ linear, 0, 1) @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


def colours_by_label(ax) -> dict:
    """Fill colour of every entry of the legend that is a bar."""
    legend = ax.get_legend()
    return {
        text.get_text(): mpl.colors.to_hex(handle.get_facecolor()).upper()
        for handle, text in zip(legend.legend_handles, legend.texts, strict=True)
        if hasattr(handle, "get_facecolor")
    }


# --- paper ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "width"), [(1, 3.33), (2, 7.0)])
def test_acm_figures_have_the_width_of_their_columns(columns, width):
    assert paper("acm-sigconf", columns)["figure.figsize"][0] == pytest.approx(width, abs=0.01)


def test_settings_are_all_known_to_matplotlib():
    assert set(paper()) <= set(mpl.rcParams)


def test_paper_changes_nothing_by_itself():
    before = dict(mpl.rcParams)
    paper("ieee")
    assert dict(mpl.rcParams) == before


def test_no_text_is_smaller_than_seven_points():
    sizes = {key: value for key, value in paper().items() if key.endswith(("size",)) and
             not key.endswith(("figsize", "markersize"))}  # fmt: skip
    assert len(sizes) >= 6 and min(sizes.values()) >= 7


def test_an_unknown_venue_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'sosp'.*acm-sigconf, ieee, usenix, neurips"):
        paper("sosp")


def test_a_single_column_venue_has_no_second_column():
    with pytest.raises(ValueError, match="neurips has 1 to 1, got 2"):
        paper("neurips", columns=2)


@pytest.mark.parametrize("ratio", [0, -1, float("nan"), "wide"])
def test_a_ratio_that_is_no_shape_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio: expected height / width above 0"):
        paper(ratio=ratio)


# --- colours --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(COLOURS, 2)])
def test_colours_stay_apart_in_grey_print(one, other):
    # 10 L* is a tenth of the way from black to white.
    assert abs(lightness(COLOURS[one]) - lightness(COLOURS[other])) > 10


@pytest.mark.parametrize("deficiency", [PROTANOPIA, DEUTERANOPIA], ids=["protan", "deutan"])
def test_touching_colours_stay_apart_for_the_colour_blind(deficiency):
    for one, other in [("comm", "exposed"), ("compute", "exposed"), ("memory", "idle")]:
        seen = [seen_lightness(COLOURS[name], deficiency) for name in (one, other)]
        assert abs(seen[0] - seen[1]) > 10, (one, other)


def test_exposed_time_has_the_same_colour_in_every_figure(ax):
    timeline = colours_by_label(draw_timeline(ax, TIMELINE, backward_s=0.060))
    ax.clear()
    breakdown = colours_by_label(draw_breakdown(ax, ITERATIONS))
    assert timeline["exposed"] == breakdown["exposed communication"] == COLOURS["exposed"]
    assert timeline["backward"] == breakdown["compute"] == COLOURS["compute"]


def test_exposed_time_is_hatched_too():
    assert HATCHES["exposed"] and not HATCHES["comm"] and HATCHES["memory"] != HATCHES["exposed"]


def test_curves_differ_in_marker_and_dash_and_grey(ax):
    draw_scaling(ax, SCALING, label="policy")
    handles, _ = ax.get_legend_handles_labels()
    assert len({handle.get_marker() for handle in handles}) == 3
    assert len({str(handle._dash_pattern) for handle in handles}) == 3
    grey = sorted(lightness(handle.get_color()) for handle in handles)
    assert min(np.diff(grey)) > 10


# --- draw_* ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "labels"),
    [
        (lambda ax: draw_timeline(ax, TIMELINE, backward_s=0.06), ("(ms)", "")),
        (lambda ax: draw_breakdown(ax, ITERATIONS), ("(ms)", "iteration")),
        (lambda ax: draw_scaling(ax, SCALING, label="policy"), ("workers", "scaling factor")),
        (lambda ax: draw_fit(ax, fit_all_reduce(MEASURED)), ("(MiB)", "(ms)")),
    ],
    ids=["timeline", "breakdown", "scaling", "fit"],
)
def test_every_drawing_returns_its_axes_with_units_on_them(ax, draw, labels):
    assert draw(ax) is ax
    assert labels[0] in ax.get_xlabel() and labels[1] in ax.get_ylabel()


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: draw_timeline(ax, TIMELINE, backward_s=0.06),
        lambda ax: draw_breakdown(ax, ITERATIONS),
        lambda ax: draw_scaling(ax, SCALING, label="policy", fitted_to=4, at=2),
        lambda ax: draw_fit(ax, fit_all_reduce(MEASURED)),
    ],
    ids=["timeline", "breakdown", "scaling", "fit"],
)
def test_the_layout_settles_and_fills_the_figure(ax, draw):
    draw(ax)
    for _ in range(2):  # a tick label at the edge may take a second pass
        ax.figure.canvas.draw()
    first = ax.get_position().bounds
    for _ in range(4):
        ax.figure.canvas.draw()
    # A drift with every drawing would make the saved figure differ from the one seen.
    assert ax.get_position().bounds == pytest.approx(first, abs=0.005)
    assert first[2] > 0.6 and first[3] > 0.5


@pytest.mark.parametrize("n_messages", [1, 300])
def test_no_text_of_a_timeline_leaves_the_figure(ax, n_messages):
    table = pd.concat([TIMELINE[:1]] * n_messages, ignore_index=True)
    draw_timeline(ax, table, backward_s=0.030)
    ax.figure.canvas.draw()
    page = ax.figure.bbox
    for text in [*ax.get_legend().texts, *ax.get_yticklabels(), ax.xaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()


def test_a_fit_shows_every_measured_point_and_its_line(ax):
    draw_fit(ax, fit_all_reduce(MEASURED))
    points, line = ax.lines[:2]
    assert points.get_xdata() == pytest.approx([1, 2, 4, 8, 16])
    assert points.get_ydata() == pytest.approx(MEASURED["seconds"][:5] * 1000)
    # 4 workers: 6 hops of alpha and 1.5 bytes moved a byte
    assert line.get_ydata() == pytest.approx(6 * 0.01 + 1.5 * SIZES * 1e-6, rel=0.05)
    labels = ax.get_legend_handles_labels()[1]
    assert "measured, 4 workers" in labels and "fit, 8 workers" in labels


def test_a_fit_shows_its_card_with_intervals(ax):
    fit = fit_all_reduce(MEASURED)
    draw_fit(ax, fit)
    text, card = ax.texts[0].get_text(), fit.card()
    for row in ("alpha", "1/beta"):
        for column in ("value", "unit", "low", "high"):
            assert card.loc[row, column] in text


def test_the_exposed_part_of_a_timeline_is_what_lies_beyond_backward(ax):
    draw_timeline(ax, TIMELINE, backward_s=0.060)
    handles, labels = ax.get_legend_handles_labels()
    outlines = handles[labels.index("exposed")].get_paths()
    spans = [(min(path.vertices[:, 0]), max(path.vertices[:, 0])) for path in outlines]
    assert spans == [pytest.approx((60, 70)), pytest.approx((70, 80))]


def test_a_timeline_hidden_by_backward_shows_nothing_exposed(ax):
    draw_timeline(ax, TIMELINE, backward_s=0.1)
    assert "exposed" not in ax.get_legend_handles_labels()[1]


def test_a_breakdown_bar_is_as_long_as_its_iteration(ax):
    draw_breakdown(ax, ITERATIONS)
    ends = [bar.get_x() + bar.get_width() for bar in ax.containers[-1].patches]
    assert ends == pytest.approx([100, 120])


def test_a_breakdown_of_two_ranks_names_both(ax):
    draw_breakdown(ax, ITERATIONS.assign(rank=[0, 1]))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0: 3", "1: 4"]


def test_extrapolation_is_told_on_the_figure(ax):
    draw_scaling(ax, SCALING, label="policy", fitted_to=4)
    assert any("extrapolated beyond 4" in text.get_text() for text in ax.texts)


def test_measured_points_join_the_legend(ax):
    draw_scaling(ax, SCALING[:4], measured=SCALING[4:8])
    assert [text.get_text() for text in ax.get_legend().texts] == ["predicted", "measured"]


def test_a_missing_column_is_named(ax):
    with pytest.raises(ValueError, match="draw_scaling: missing column scaling_factor"):
        draw_scaling(ax, SCALING.drop(columns="scaling_factor"))
    with pytest.raises(ValueError, match="missing column network"):
        draw_scaling(ax, SCALING, label="network")


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: draw_timeline(ax, TIMELINE[:0], backward_s=0.06),
        lambda ax: draw_breakdown(ax, ITERATIONS[:0]),
        lambda ax: draw_scaling(ax, SCALING[:0]),
    ],
)
def test_an_empty_table_is_refused_not_drawn(ax, draw):
    with pytest.raises(ValueError, match="no rows"):
        draw(ax)


def test_drawing_leaves_its_table_alone(ax):
    before = SCALING.copy()
    draw_scaling(ax, SCALING, label="policy")
    pd.testing.assert_frame_equal(SCALING, before)


def halves(gradients):
    return np.repeat([0, 1], 5)


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().texts]


def test_policies_are_named_in_words(ax):
    policies = [PerTensor(), DDPBuckets(), DDPBuckets(4 * MIB, 25 * MIB), OneMessage(), halves]
    draw_scaling(ax, sweep(SCENARIO, n_workers=[2, 4], fusion=policies), label="fusion")
    names = ["per tensor", "DDP buckets", "DDP buckets 4 + 25 MiB", "one message", "halves"]
    assert legend(ax) == names


def test_costs_are_named_by_their_bandwidth_and_told_apart(ax):
    costs = [Ring(Link(alpha, 1 / (10 * GBIT))) for alpha in (1e-5, 2e-5)]
    draw_scaling(ax, sweep(SCENARIO, n_workers=[2, 4], all_reduce=costs), label="all_reduce")
    assert legend(ax) == ["Ring 10 Gbit/s", "Ring 10 Gbit/s (2)"]


def test_numbers_are_named_with_their_column(ax):
    table = sweep(SCENARIO, n_workers=[2, 4], overlap=[True, False])
    draw_scaling(ax, table, label="overlap")
    assert legend(ax) == ["overlap True", "overlap False"]


def test_no_curve_is_hidden_for_a_name_that_begins_with_an_underscore(ax):
    draw_scaling(ax, SCALING.assign(policy="_" + SCALING["policy"]), label="policy")
    assert legend(ax) == ["one message", "per tensor", "DDP buckets"]


@pytest.mark.parametrize("words", ["", "with a name far longer than one column of a paper is wide"])
def test_legend_and_words_of_a_scaling_figure_stay_within_the_column(ax, words):
    table = SCALING.assign(policy=SCALING["policy"] + words)
    draw_scaling(ax, table, label="policy", fitted_to=4)
    for _ in range(2):
        ax.figure.canvas.draw()
    page = ax.figure.bbox
    for text in [*ax.get_legend().texts, *ax.texts]:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()
    assert ax.get_position().width > 0.75


def test_the_legend_leaves_the_curves_free(ax):
    low = SCALING.assign(scaling_factor=SCALING["scaling_factor"] * 0.4)
    draw_scaling(ax, low, label="policy")
    ax.figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    points = ax.transData.transform(low[["n_workers", "scaling_factor"]])
    assert not any(box.contains(*point) for point in points)


@pytest.mark.parametrize("fitted_to", [4, 8, 16])
def test_a_scaling_figure_says_where_its_costs_were_fitted(ax, fitted_to):
    draw_scaling(ax, SCALING, label="policy", fitted_to=fitted_to)
    words = ax.texts[0].get_text()
    assert words.startswith(f"fitted at {fitted_to}")
    assert ("extrapolated" in words) == (fitted_to < 8)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: draw_timeline(ax, TIMELINE), "backward_s .*got none; .*predict.scenario.$"),
        (lambda ax: draw_timeline(ax, TIMELINE, "60 ms"), "expected backward_s in s .*'60 ms'"),
        (lambda ax: draw_timeline(ax, SCENARIO), "got Scenario; pass predict.scenario.$"),
        (lambda ax: draw_breakdown(ax, SCENARIO), "got Scenario; pass iterations.run.$"),
        (lambda ax: draw_fit(ax, MEASURED), "got DataFrame; pass fit_all_reduce.measurements.$"),
        (lambda ax: draw_fit(ax, SCENARIO.all_reduce), "expected a Fit, got Ring; pass"),
        (lambda ax: draw_scaling(ax, SCENARIO), "got Scenario; pass sweep.scenario, "),
        (lambda ax: draw_scaling(ax, predict(SCENARIO)), "got Prediction; pass sweep.scenario, "),
        (lambda ax: draw_scaling(ax, SCALING, fitted_to=SCENARIO), "fitted_to: .*got Scenario$"),
    ],
)
def test_a_wrong_object_is_named_by_type_with_what_to_pass(ax, draw, message):
    with pytest.raises(ValueError, match=message) as error:
        draw(ax)
    assert len(str(error.value)) < 200 and not ax.has_data()


@pytest.mark.parametrize("draw", [draw_timeline, draw_breakdown, draw_fit, draw_scaling])
def test_a_module_in_place_of_an_axes_is_refused(draw):
    with pytest.raises(ValueError, match=f"{draw.__name__}: expected a Matplotlib Axes.*module"):
        draw(mpl, SCALING)


# --- save -----------------------------------------------------------------------------------------

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
