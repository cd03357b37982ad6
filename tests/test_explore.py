"""The widgets: they start at the scenario, follow every slider, tell their errors and export."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench import GBIT, MIB, MS, US
from workbench.costs import Hierarchical, Interpolated, Link, Piecewise, Ring
from workbench.explore import explore_fusion, explore_scaling, explore_steps, explore_timeline
from workbench.explore.scenarios import WORKERS
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import Scenario, predict, sweep

ALPHA, BETA = 20 * US, 1 / (10 * GBIT)  # 10 Gbit/s


@pytest.fixture
def scenario():
    """Ten gradients of 4 MiB, one every 6 ms of a backward of 60 ms, on 8 workers."""
    gradients = pd.DataFrame(
        {
            "name": [f"gradient {i}" for i in range(10)],
            "nbytes": [4 * MIB] * 10,
            "ready_s": np.arange(1, 11) * 6 * MS,
        }
    )
    return Scenario(gradients, 100 * MS, 60 * MS, 8, Ring(Link(ALPHA, BETA)), DDPBuckets())


def control(explorer, name):
    """The control a page finds by its class name."""
    rows = [row.children if hasattr(row, "children") else (row,) for row in explorer.children]
    return next(each for row in rows for each in row if f"wb-{name}" in each._dom_classes)


def status(explorer) -> str:
    return control(explorer, "status").value


def press_save(explorer) -> str:
    control(explorer, "export").click()
    return status(explorer)


EXPLORERS = [explore_timeline, explore_scaling]


@pytest.mark.parametrize("explore", EXPLORERS)
def test_the_start_is_the_scenario_itself(scenario, explore):
    explorer = explore(scenario)
    for field in ("n_workers", "all_reduce", "fusion", "one_worker_s", "backward_s", "overlap"):
        assert getattr(explorer.scenario, field) == getattr(scenario, field), field
    factor = predict(scenario).scaling_factor
    assert f"scaling factor {factor:.3f} at 8 workers" in status(explorer)


@pytest.mark.parametrize("explore", EXPLORERS)
def test_sliders_stand_at_the_scenarios_values_in_human_units(scenario, explore):
    explorer = explore(scenario)
    assert control(explorer, "bandwidth").value == pytest.approx(10)
    assert control(explorer, "latency").value == pytest.approx(20)
    assert control(explorer, "bucket").value == 25
    assert control(explorer, "workers").value == 8
    for name, unit in [("bandwidth", "Gbit/s"), ("latency", "us"), ("bucket", "MiB")]:
        assert f"({unit}" in control(explorer, name).description


@pytest.mark.parametrize("name", ["bandwidth", "latency", "bucket"])
def test_a_slider_stands_whole_steps_from_its_low_end(scenario, name):
    # The page rounds to such places, and would otherwise move the slider when showing it.
    slider = control(explore_timeline(scenario), name)
    steps = (np.log10(slider.value) - slider.min) / slider.step
    assert steps == pytest.approx(round(steps), abs=1e-9)


def test_the_last_digits_of_a_slider_do_not_count_as_moved(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "latency").value *= 1 + 1e-12
    assert explorer.scenario.all_reduce == scenario.all_reduce


@pytest.mark.parametrize("explore", EXPLORERS)
@pytest.mark.parametrize("name", ["bandwidth", "latency", "bucket"])
@pytest.mark.parametrize("end", ["min", "max"])
def test_every_logarithmic_slider_redraws_at_its_ends(scenario, explore, name, end):
    explorer = explore(scenario)
    slider, before = control(explorer, name), explorer.scenario
    slider.value = 10 ** getattr(slider, end)
    assert status(explorer).startswith("scaling factor")
    assert explorer.scenario is not before
    assert bytes(control(explorer, "image").value).startswith(b"\x89PNG")


@pytest.mark.parametrize("explore", EXPLORERS)
@pytest.mark.parametrize("n_workers", [1, 1024])
def test_workers_redraw_at_their_ends(scenario, explore, n_workers):
    explorer = explore(scenario)
    control(explorer, "workers").value = n_workers
    assert explorer.scenario.n_workers == n_workers
    assert f"at {n_workers} worker" in status(explorer)


@pytest.mark.parametrize("explore", EXPLORERS)
@pytest.mark.parametrize("fusion", ["per tensor", "one message"])
def test_every_fusion_redraws(scenario, explore, fusion):
    explorer = explore(scenario)
    control(explorer, "fusion").value = fusion
    wanted = {"per tensor": PerTensor(), "one message": OneMessage()}[fusion]
    assert explorer.scenario.fusion == wanted
    n_messages = {"per tensor": "10 messages", "one message": "1 message;"}[fusion]
    assert n_messages in status(explorer)


@pytest.mark.parametrize("explore", EXPLORERS)
@pytest.mark.parametrize("name", ["bandwidth", "latency", "bucket"])
def test_a_moved_slider_changes_the_picture(scenario, explore, name):
    explorer = explore(scenario)
    before = control(explorer, "image").value
    slider = control(explorer, name)
    slider.value = slider.value / 20
    assert control(explorer, "image").value != before


@pytest.mark.parametrize("explore", EXPLORERS)
def test_a_slider_moved_back_gives_the_first_picture_again(scenario, explore):
    explorer = explore(scenario)
    first, slider = control(explorer, "image").value, control(explorer, "bandwidth")
    start = slider.value
    slider.value = 1.0
    slider.value = start
    assert control(explorer, "image").value == first
    assert explorer.scenario.all_reduce == scenario.all_reduce


def test_the_bandwidth_slider_is_the_links_bus_bandwidth(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "bandwidth").value = 100.0
    # 100 Gbit/s is 12.5e9 bytes/s
    assert explorer.scenario.all_reduce.link.beta == pytest.approx(1 / 12.5e9)
    assert explorer.scenario.all_reduce.link.alpha == ALPHA


def test_the_bucket_slider_keeps_the_first_bucket_within_the_limit(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "bucket").value = 0.5
    assert explorer.scenario.fusion == DDPBuckets(MIB // 2, MIB // 2)


def test_values_beyond_the_usual_range_widen_the_slider(scenario):
    slow = replace(scenario, all_reduce=Ring(Link(0.1, 1e-6)), n_workers=48)
    explorer = explore_timeline(slow)
    assert control(explorer, "latency").value == pytest.approx(100_000)
    assert control(explorer, "bandwidth").value == pytest.approx(0.008)
    assert control(explorer, "workers").value == 48


def test_a_free_link_stays_free_until_moved(scenario):
    explorer = explore_timeline(replace(scenario, all_reduce=Ring(Link(0.0, 0.0))))
    assert explorer.scenario.all_reduce.link == Link(0.0, 0.0)
    assert "unbounded bandwidth, 0 us a hop" in status(explorer)


def test_a_policy_of_ones_own_is_kept_beside_the_known(scenario):
    class Halves:
        def __call__(self, gradients):
            return np.repeat([0, 1], 5)

    explorer = explore_scaling(replace(scenario, fusion=Halves()))
    assert control(explorer, "fusion").value == "as given"
    assert "2 messages" in status(explorer)


def test_the_scenario_can_be_observed(scenario):
    explorer, seen = explore_timeline(scenario), []
    explorer.observe(lambda change: seen.append(change.new.n_workers), "scenario")
    control(explorer, "workers").value = 64
    assert seen == [64]


def _last(names: set) -> list[str]:
    """Names in the order told: the receipt last."""
    receipt = "figure.receipt.json"
    return [*sorted(names - {receipt, "figure.pdf"}), receipt]


@pytest.mark.parametrize("explore", EXPLORERS)
def test_save_writes_the_figure_its_data_and_its_receipt(scenario, explore, tmp_path):
    explorer = explore(scenario, name="figure", folder=tmp_path / "out")
    control(explorer, "workers").value = 64
    told = press_save(explorer)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {f"figure.{each}" for each in ("csv", "pdf", "receipt.json", "svg")}
    assert told == f"saved figure.pdf, {', '.join(_last(names))} in {tmp_path / 'out'}"
    parameters = json.loads((tmp_path / "out" / "figure.receipt.json").read_text())["parameters"]
    assert parameters["n_workers"] == 64
    assert parameters["all_reduce"]["link"] == {"alpha": ALPHA, "beta": BETA}
    assert parameters["fusion"] == {
        "type": "DDPBuckets", "first_bytes": MIB, "cap_bytes": 25 * MIB, "caps": []}  # fmt: skip


def test_the_saved_scaling_data_are_those_of_sweep(scenario, tmp_path):
    press_save(explore_scaling(scenario, folder=tmp_path))
    saved = pd.read_csv(tmp_path / "scaling.csv")
    expected = sweep(scenario, n_workers=WORKERS)
    ours = saved[saved["fusion"] == "DDP buckets"]
    assert ours["scaling_factor"].to_numpy() == pytest.approx(expected["scaling_factor"].to_numpy())


def test_an_error_in_a_callback_is_shown_and_escaped(scenario, tmp_path):
    explorer = explore_timeline(scenario, folder=tmp_path / "<b>taken")
    (tmp_path / "<b>taken").write_text("a file where the folder should be")
    message = press_save(explorer)
    assert "not done" in message and "is a file; name another folder" in message
    assert "&lt;b&gt;taken" in message and "<b>taken" not in message


@pytest.mark.parametrize("explore", EXPLORERS)
def test_a_prediction_is_answered_with_its_scenario(scenario, explore):
    with pytest.raises(ValueError, match="expected a Scenario, got Prediction; pass prediction.sc"):
        explore(predict(scenario))


@pytest.mark.parametrize("explore", EXPLORERS)
def test_what_save_would_refuse_is_refused_at_once(scenario, explore, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ValueError, match="plain file name"):
        explore(scenario, "x/y")
    with pytest.raises(ValueError, match="taken is a file"):
        explore(scenario, folder=tmp_path / "taken" / "below")
    with pytest.raises(FileNotFoundError, match="absent.json"):
        explore(scenario, inputs=["absent.json"])


def test_constructing_makes_no_folder(scenario, tmp_path):
    explore_timeline(scenario, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_that_can_be_read_once_are_in_every_receipt(scenario, tmp_path):
    (tmp_path / "input.csv").write_text("n_workers")
    inputs = iter([tmp_path / "input.csv"])
    explorer = explore_timeline(scenario, folder=tmp_path, inputs=inputs)
    press_save(explorer)
    press_save(explorer)
    receipt = json.loads((tmp_path / "timeline.receipt.json").read_text())
    assert list(receipt["inputs"]) == ["input.csv"]


def measured() -> pd.DataFrame:
    """What a ring takes on 2 to 1,024 workers, 1 KiB to 1 GiB."""
    n, nbytes = (
        each.ravel() for each in np.meshgrid(2 ** np.arange(1, 11), 2.0 ** np.arange(10, 31))
    )
    table = pd.DataFrame({"op": "all_reduce", "n_workers": n, "n_nodes": 1, "nbytes": nbytes})
    return table.assign(seconds=Ring(Link(ALPHA, BETA))(nbytes, n))


LINKLESS = {
    "measured": lambda: Interpolated(measured()),
    "two links": lambda: Hierarchical(Link(1e-6, 1e-11), Link(ALPHA, BETA), 4),
    "in regimes": lambda: Piecewise(Ring, ALPHA, (BETA, 2 * BETA), (65536.0,)),
    "a function": lambda: lambda nbytes, n_workers: np.asarray(nbytes) * 1e-9 + 0.0 * n_workers,
}


@pytest.mark.parametrize("cost", LINKLESS)
@pytest.mark.parametrize("explore", [*EXPLORERS, explore_steps, explore_fusion])
def test_a_cost_without_one_link_has_the_other_sliders_and_all_buttons(
    scenario, explore, cost, tmp_path
):
    given = replace(scenario, all_reduce=LINKLESS[cost]())
    explorer = explore(given, folder=tmp_path)
    assert {"bandwidth", "latency"}.isdisjoint(explorer.state())
    control(explorer, "workers").value = 64
    assert f"scaling factor {predict(explorer.scenario).scaling_factor:.3f} at 64" in status(
        explorer
    )
    assert explorer.scenario.all_reduce is given.all_reduce
    names = {"scenario": given}
    exec(explorer.code(), names)
    pd.testing.assert_frame_equal(names["table"], explorer._present().data)
    names["plt"].close("all")
    assert "A grid of" in explorer.static({"workers": [8]}).html
    assert press_save(explorer).startswith("saved")


def test_a_function_as_cost_leaves_the_same_receipt_in_every_run(scenario, tmp_path):
    given = replace(scenario, all_reduce=LINKLESS["a function"]())
    press_save(explore_timeline(given, folder=tmp_path))
    receipt = json.loads((tmp_path / "timeline.receipt.json").read_text())
    assert receipt["parameters"]["all_reduce"] == "<function <lambda>.<locals>.<lambda>>"


def test_numbers_of_a_link_have_no_exponent(scenario):
    slow = Ring(Link(0.05, 1 / (20_000 * GBIT)))
    told = status(explore_timeline(replace(scenario, all_reduce=slow)))
    assert told.endswith("; 20,000 Gbit/s, 50,000 us a hop")
