"""The figures of advice show what their tables hold, and nothing on them overlaps."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from explorers import ten_gradients
from figure_tables import KNEE, OPTIONS, legend, paper_axes, ranges, rows, texts

from workbench import MS
from workbench.figures import draw_comparison, draw_forecast, draw_fusion_curve, draw_sensitivity
from workbench.fusion import HorovodFusion, PerTensor
from workbench.timeline import predict
from workbench.whatif import (
    Accumulation,
    FasterLink,
    ablate,
    compare,
    headroom,
    loss_curve,
    sensitivity,
)


@pytest.fixture
def scenario():
    return ten_gradients()


@pytest.fixture
def ax():
    with paper_axes(ratio=0.8) as ax:
        yield ax


def bars(ax) -> dict:
    """Label of the legend -> (row, left, width) of each bar."""
    named = {each.get_label(): each for each in ax.containers}
    return {
        label: [(round(b.get_y() + b.get_height() / 2), b.get_x(), b.get_width()) for b in each]
        for label, each in named.items()
    }


def test_a_bar_of_times_is_as_long_as_its_iteration_with_its_own_cost_in_it(ax, scenario):
    table = compare(scenario, OPTIONS)
    draw_comparison(ax, table)
    drawn = bars(ax)
    ends = np.zeros(len(table))
    for parts in drawn.values():
        for row, left, width in parts:
            ends[row] = max(ends[row], left + width)
    assert ends == pytest.approx(table["iteration_s"] / MS)
    coded = table["label"].tolist().index("coded at a loss")
    own = {row: width for row, _, width in drawn["own cost"]}
    longer = table["iteration_s"].iloc[coded] - table["iteration_s"].iloc[0]
    assert own[coded] == pytest.approx(longer / MS)  # a ratio of 1 gains nothing


def test_times_of_other_batches_are_by_the_baselines_samples(ax, scenario):
    draw_comparison(ax, table := compare(scenario, {"twice": Accumulation(2)}))
    (_, low, width) = bars(ax)["exposed communication"][1]
    assert low + width == pytest.approx(table["iteration_s"].iloc[1] / 2 / MS)
    assert "baseline's samples" in ax.get_xlabel()


def test_bounds_stand_hollow_beside_the_times(ax, scenario):
    draw_comparison(ax, compare(scenario, OPTIONS), headroom(scenario))
    assert rows(ax)[-3:] == ["bandwidth only", "perfect overlap", "no communication"]
    (_, _, ideal) = bars(ax)["bound of fusion"][-1]
    assert ideal == pytest.approx(100)  # T1, ms


def test_a_waterfall_begins_where_the_last_bar_ended(ax, scenario):
    table = ablate(scenario, OPTIONS)
    draw_comparison(ax, table)
    drawn, speedup = bars(ax), table["speedup"].tolist()
    steps = {row: (left, left + width) for row, left, width in drawn["gain"] + drawn["loss"]}
    for row in range(len(OPTIONS)):
        assert steps[row] == pytest.approx((speedup[row], speedup[row + 1]))
    assert [row for row, _, _ in drawn["loss"]] == [2]
    assert drawn["all together"] == [(4, 1.0, pytest.approx(speedup[4] - 1))]


def test_a_diamond_is_the_gain_by_itself(ax, scenario):
    draw_comparison(ax, table := ablate(scenario, OPTIONS))
    (alone,) = [line for line in ax.lines if line.get_label() == "by itself"]
    halved = compare(scenario, {"fp16": OPTIONS["fp16"]})["speedup"].iloc[1]
    assert alone.get_xdata()[1] == pytest.approx(halved)
    assert list(alone.get_ydata()) == [0, 1, 2, 3] and len(table) == 8


def test_shares_add_up_to_the_total_and_lie_within_their_range(ax, scenario):
    draw_comparison(ax, ablate(scenario, OPTIONS, "shapley"))
    drawn = bars(ax)
    shares = sum(width for label in ("gain", "loss") for _, _, width in drawn.get(label, []))
    ((_, _, total),) = drawn["all together"]
    assert shares == pytest.approx(total)


def test_a_name_is_text_whatever_it_holds(ax, scenario):
    options = {r"$\frac{<b>": FasterLink(3), "x" * 99: FasterLink(2)}
    draw_comparison(ax, compare(scenario, options))
    ax.figure.draw_without_rendering()
    assert rows(ax)[1] == r"$\frac{<b>"
    assert len(rows(ax)[2]) == 24


def test_a_curve_is_the_loss_in_per_cent_and_its_star_the_best(ax, scenario):
    curve = loss_curve(scenario)
    draw_fusion_curve(ax, curve, at=25)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["settings"].get_ydata() == pytest.approx(100 * curve["loss"])
    best = curve.loc[curve["scaling_factor"].idxmax()]
    assert lines["best"].get_xydata().tolist() == [[best["value"], 100 * best["loss"]]]


def test_the_tie_zone_ends_at_the_last_setting_tied_without_a_gap(ax):
    losses, tied = [0.0, 0.3, 0.01, -0.001, 0.2], [True, False, True, True, False]
    curve = pd.DataFrame({"value": 2.0 ** np.arange(5), "loss": losses, "tied": tied})
    curve = curve.assign(cycle_ms=np.nan, setting="a buffer of 1 MiB")
    draw_fusion_curve(ax, curve)
    zone = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    assert (zone.x0, zone.x1) == pytest.approx((4 / 1.06, 8 * 1.06))


def test_a_curve_names_the_setting_with_its_unit_and_ties_the_cycle_they_belong_to(ax, scenario):
    draw_fusion_curve(ax, loss_curve(scenario))
    assert ax.get_xlabel() == "bucket_cap_mb of PyTorch DDP (MiB)"
    curve = loss_curve(scenario, HorovodFusion())
    draw_fusion_curve(ax, curve)
    assert ax.get_xlabel() == "fusion threshold of Horovod (MiB)"
    cycle = curve.loc[curve["loss"].idxmin(), "cycle_ms"]
    assert f"tied at {cycle:g} ms" in legend(ax)


@pytest.mark.parametrize(
    ("speedups", "words"),
    [
        ([1.0, 1.5, 0.999], ["1.00", "1.50", "1.00"]),
        ([1.0, 1.031, 0.9997], ["1.000", "1.031", "1.000"]),
        ([1.0, 1.0003, 0.9997], ["1.0000", "1.0003", "0.9997"]),
    ],
)
def test_small_speedups_are_told_with_more_decimals(ax, scenario, speedups, words):
    table = compare(scenario, {"a": FasterLink(2), "b": FasterLink(3)})
    draw_comparison(ax, table.assign(speedup=speedups))
    told = [text.get_text() for text in ax.texts if "\N{MULTIPLICATION SIGN}" in text.get_text()]
    assert told == [f"{word}\N{MULTIPLICATION SIGN}" for word in words]


def test_the_strongest_elasticity_is_on_top_and_losses_are_striped(ax):
    slow = replace(ten_gradients(PerTensor()), n_workers=64)
    table = sensitivity(slow)
    assert predict(slow).exposed_comm_s > 0
    draw_sensitivity(ax, table.iloc[::-1])
    drawn = {row: width for parts in bars(ax).values() for row, _, width in parts}
    strongest = table["elasticity"].abs().max()
    assert abs(drawn[0]) == pytest.approx(strongest)
    lowers = {row for row, _, _ in bars(ax)["lowers it"]}
    assert lowers == {row for row, width in drawn.items() if width < 0}
    assert all(b.get_hatch() for c in ax.containers if c.get_label() == "lowers it" for b in c)


def test_when_nothing_moves_the_scaling_factor_the_figure_says_so(ax):
    table = {"parameter": ["alpha"], "value": 1.0, "elasticity": 0.0, "method": "x", "note": ""}
    draw_sensitivity(ax, pd.DataFrame(table))
    assert "nothing moves it" in texts(ax)[-1]


def test_a_band_is_drawn_between_its_ends_and_solid_only_where_measured(ax):
    draw_forecast(ax, table := ranges())
    corners = ax.collections[0].get_paths()[0].vertices
    at_16 = corners[np.isclose(corners[:, 0], 16)][:, 1]
    assert (at_16.min(), at_16.max()) == pytest.approx((0.9 / 1.8, 1.1 / 1.8))
    (solid,) = [line for line in ax.lines if line.get_label() == "predicted"]
    shown = np.isfinite(np.ma.filled(np.ma.asarray(solid.get_ydata(), float), np.nan))
    at = np.ma.filled(np.ma.asarray(solid.get_xdata(), float), np.nan)
    assert at[np.isfinite(at) & shown].tolist() == [4, 8] and len(table) == 5


def test_a_forecast_that_is_nowhere_measured_is_grey_and_dashed_throughout(ax):
    draw_forecast(ax, ranges().assign(extrapolated=3.0))
    assert "predicted" not in legend(ax) and legend(ax).count("not measured") == 1
    ground = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    assert ground.x0 <= 1 and ground.x1 >= 16


def test_a_measured_number_of_workers_is_not_grey_for_sizes_beyond_the_measured(ax):
    why = ["", "n_workers below 4", "nbytes below 2.00 MiB", "nbytes below 2.00 MiB",
           "nbytes below 2.00 MiB and n_workers above 8"]  # fmt: skip
    draw_forecast(ax, ranges().assign(extrapolated=[1, 2, 1.1, 1.1, 2], why=why))
    grounds = [p.get_extents().transformed(ax.transData.inverted()) for p in ax.patches]
    spans = [(ground.x0, ground.x1) for ground in grounds]
    assert not any(low <= n <= high for low, high in spans for n in (4, 8))
    assert all(any(low <= n <= high for low, high in spans) for n in (2, 16))
    (ring,) = [line for line in ax.lines if line.get_label() == "other sizes"]
    assert ring.get_xdata().tolist() == [4, 8]


def test_a_band_near_one_fills_the_axis(ax):
    draw_forecast(ax, ranges((4, 8, 16)).assign(scaling_factor=0.985, low=0.975, high=0.995))
    bottom, top = ax.get_ylim()
    assert 0.95 < bottom < 0.975 and 1 < top < 1.01  # a band of 0.01 is a quarter of the height
    draw_forecast(ax, ranges())  # one half and less: from 0
    assert ax.get_ylim() == (0, 1.05)


def test_the_knee_is_told_with_its_range_and_whether_it_is_beyond_the_axis(ax):
    draw_forecast(ax, ranges(), KNEE)
    assert "knee 8 workers, range 4 to 16 or more" in texts(ax)
    draw_forecast(ax, ranges(), KNEE.assign(knee=64, low=32, high=128, at_least=False))
    words = "knee beyond the axis:\n64 workers, range 32 to 128"
    assert words in texts(ax)


@pytest.mark.parametrize(("low", "some"), [(16, ""), (4, ",\nin some draws from 4 on")])
def test_the_end_of_the_search_is_no_knee(ax, low, some):
    draw_forecast(ax, ranges(), KNEE.assign(knee=16, low=low, high=16))
    assert f"no knee up to 16 workers{some}" in texts(ax)
    assert not [line for line in ax.lines if line.get_linestyle() == ":"]
