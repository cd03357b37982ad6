"""Explorers of a forecast: they start at the scenario, follow every slider, and save."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from explorers import ALPHA, BETA, control, press_save, shown, status, ten_gradients

from workbench import GBIT, MIB
from workbench.costs import Hierarchical, Interpolated, Link, Piecewise, Ring
from workbench.explore import explore_fusion, explore_scaling, explore_steps, explore_timeline
from workbench.explore.scenarios import WORKERS
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import predict, sweep

EXPLORERS = [explore_timeline, explore_scaling]


@pytest.fixture
def scenario():
    return ten_gradients()


@pytest.mark.parametrize("explore", EXPLORERS)
def test_the_start_is_the_scenario_in_human_units(scenario, explore):
    explorer = explore(scenario)
    for field in ("n_workers", "all_reduce", "fusion", "one_worker_s", "backward_s", "overlap"):
        assert getattr(explorer.scenario, field) == getattr(scenario, field), field
    factor = predict(scenario).scaling_factor
    assert f"scaling factor {factor:.3f} at 8 workers" in status(explorer)
    values = {"bandwidth": (10, "Gbit/s"), "latency": (20, "us"), "bucket": (25, "MiB")}
    for name, (value, unit) in values.items():
        slider = control(explorer, name)
        assert slider.value == pytest.approx(value) and f"({unit}" in slider.description
        # The page rounds to whole steps, and would otherwise move the slider when showing it.
        steps = (np.log10(slider.value) - slider.min) / slider.step
        assert steps == pytest.approx(round(steps), abs=1e-9)
    assert control(explorer, "workers").value == 8


def test_the_last_digits_of_a_slider_do_not_count_as_moved(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "latency").value *= 1 + 1e-12
    assert explorer.scenario.all_reduce == scenario.all_reduce


@pytest.mark.parametrize("explore", EXPLORERS)
def test_every_slider_redraws_at_its_ends(scenario, explore):
    explorer = explore(scenario)
    for name in ("bandwidth", "latency", "bucket"):
        slider = control(explorer, name)
        for end in (slider.min, slider.max):
            before, seen = explorer.scenario, shown(explorer)
            slider.value = 10**end
            assert status(explorer).startswith("scaling factor")
            assert explorer.scenario is not before
            assert shown(explorer)[0] != seen[0] and shown(explorer)[0][:4] == b"\x89PNG"
        explorer.reset()
    for n_workers in (1, 1024):
        control(explorer, "workers").value = n_workers
        assert explorer.scenario.n_workers == n_workers
        assert f"at {n_workers} worker" in status(explorer)


def test_every_fusion_redraws(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "fusion").value = "per tensor"
    assert explorer.scenario.fusion == PerTensor() and "10 messages" in status(explorer)
    control(explorer, "fusion").value = "one message"
    assert explorer.scenario.fusion == OneMessage() and "1 message;" in status(explorer)


def test_sliders_are_the_links_bus_bandwidth_and_ddps_buckets(scenario):
    explorer = explore_timeline(scenario)
    control(explorer, "bandwidth").value = 100.0
    # 100 Gbit/s is 12.5e9 bytes/s
    assert explorer.scenario.all_reduce.link.beta == pytest.approx(1 / 12.5e9)
    assert explorer.scenario.all_reduce.link.alpha == ALPHA
    control(explorer, "bucket").value = 0.5  # the first bucket stays within the limit
    assert explorer.scenario.fusion == DDPBuckets(MIB // 2, MIB // 2)


def test_links_beyond_the_usual_range_widen_the_slider_and_stay_until_moved(scenario):
    def explored(alpha, beta, n_workers=8):
        link = Ring(Link(alpha, beta))
        return explore_timeline(replace(scenario, all_reduce=link, n_workers=n_workers))

    slow = explored(0.1, 1e-6, 48).state()
    assert slow["latency"] == pytest.approx(100_000)
    assert slow["bandwidth"] == pytest.approx(0.008) and slow["workers"] == 48
    free = explored(0.0, 0.0)
    assert free.scenario.all_reduce.link == Link(0.0, 0.0)
    assert "unbounded bandwidth, 0 us per hop" in status(free)
    words = status(explored(0.05, 1 / (20_000 * GBIT)))
    assert words.endswith("; 20,000 Gbit/s, 50,000 us per hop")  # without an exponent


def test_a_policy_of_ones_own_is_kept_next_to_the_known(scenario):
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


def test_save_writes_the_figure_its_data_and_its_receipt_with_all_inputs(scenario, tmp_path):
    (tmp_path / "input.csv").write_text("n_workers")
    out, inputs = tmp_path / "out", iter([tmp_path / "input.csv"])  # can be read once
    explorer = explore_scaling(scenario, "figure", out, inputs)
    control(explorer, "workers").value = 64
    assert not out.exists()
    for _ in range(2):
        words = press_save(explorer)
    names = sorted({path.name for path in out.iterdir()} - {"figure.pdf", "figure.receipt.json"})
    assert {"figure.csv", "figure.svg"} <= set(names)
    assert words == f"saved {', '.join(['figure.pdf', *names, 'figure.receipt.json'])} in {out}"
    receipt = json.loads((out / "figure.receipt.json").read_text())
    parameters = receipt["parameters"]
    assert list(receipt["inputs"]) == ["input.csv"]
    assert parameters["n_workers"] == 64
    assert parameters["all_reduce"]["link"] == {"alpha": ALPHA, "beta": BETA}
    assert parameters["fusion"] == {
        "type": "DDPBuckets", "first_bytes": MIB, "cap_bytes": 25 * MIB, "caps": []}  # fmt: skip
    saved = pd.read_csv(out / "figure.csv")
    expected = sweep(scenario, n_workers=WORKERS)["scaling_factor"].to_numpy()
    ours = saved.loc[saved["fusion"] == "DDP buckets", "scaling_factor"]
    assert ours.to_numpy() == pytest.approx(expected)


def test_an_error_in_a_callback_is_shown_and_escaped(scenario, tmp_path):
    explorer = explore_timeline(scenario, folder=tmp_path / "<b>taken")
    (tmp_path / "<b>taken").write_text("a file where the folder should be")
    message = press_save(explorer)
    assert "not done" in message and "is a file" in message
    assert "&lt;b&gt;taken" in message and "<b>taken" not in message


def test_a_missing_input_is_refused_before_the_first_picture(scenario):
    with pytest.raises(FileNotFoundError, match="absent.json"):
        explore_timeline(scenario, inputs=["absent.json"])


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


@pytest.mark.parametrize(
    ("explore", "cost"),
    [
        (explore_timeline, "two links"),
        (explore_scaling, "in regimes"),
        (explore_steps, "a function"),
        (explore_fusion, "measured"),
    ],
)
def test_a_cost_without_one_link_has_the_other_sliders_and_all_buttons(
    scenario, explore, cost, tmp_path
):
    given = replace(scenario, all_reduce=LINKLESS[cost]())
    explorer = explore(given, folder=tmp_path)
    assert {"bandwidth", "latency"}.isdisjoint(explorer.state())
    control(explorer, "workers").value = 64
    factor = predict(explorer.scenario).scaling_factor
    assert f"scaling factor {factor:.3f} at 64" in status(explorer)
    assert explorer.scenario.all_reduce is given.all_reduce
    names = {"scenario": given}
    exec(explorer.code(), names)
    pd.testing.assert_frame_equal(names["table"], explorer._present().data)
    names["plt"].close("all")
    assert "A grid of" in explorer.static({"workers": [8]}).html
    assert press_save(explorer).startswith("saved")
    receipt = json.loads(next(tmp_path.glob("*.receipt.json")).read_text())["parameters"]
    if cost == "a function":  # without its address, which differs between runs
        assert receipt["all_reduce"] == "<function <lambda>.<locals>.<lambda>>"
