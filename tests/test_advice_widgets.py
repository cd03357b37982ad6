"""Explorers of advice: optimisations in any order, settings of fusion, errors in place."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from explorers import OPTIONS, control, press_save, shown, status, ten_gradients

from workbench import MIB, MS, US
from workbench.explore import explore_fusion, explore_whatif
from workbench.fusion import DDPBuckets, FixedBuffer, HorovodFusion
from workbench.timeline import predict
from workbench.whatif import (
    Compression,
    FasterLink,
    HalfPrecision,
    ablate,
    compare,
    loss_curve,
    optimal,
    predict_with,
)


@pytest.fixture
def scenario():
    return ten_gradients(FixedBuffer(40 * MIB))


# --- what if --------------------------------------------------------------------------------------


def test_all_optimisations_are_on_at_the_start_in_the_order_given(scenario):
    explorer, table = explore_whatif(scenario, OPTIONS), ablate(scenario, OPTIONS)
    assert [control(explorer, f"option-{i}").value for i in range(3)] == [True] * 3
    last = table[table["kind"] == "optimisation"].iloc[-1]
    assert f"all together {last['speedup']:.3f} times the baseline" in status(explorer)
    views = control(explorer, "view").options
    for view, expected in [
        (views[1], ablate(scenario, OPTIONS, "shapley")),
        (views[2], compare(scenario, OPTIONS)),
    ]:
        control(explorer, "view").value = view
        pd.testing.assert_frame_equal(explorer._present().data, expected)


def test_what_is_switched_on_last_is_added_last(scenario):
    explorer = explore_whatif(scenario, OPTIONS)
    control(explorer, "option-0").value = False
    found = predict_with(scenario, explorer.optimisation).iteration_s  # as in the next cell
    rows = explorer._present().data.query("kind == 'optimisation'")
    assert found == pytest.approx(rows["iteration_s"].iloc[-1])
    control(explorer, "option-0").value = True
    order = {label: OPTIONS[label] for label in ("fp16", "faster", "adaptive")}
    assert explorer.optimisation.optimisations == tuple(order.values())
    pd.testing.assert_frame_equal(explorer._present().data, ablate(scenario, order))


def test_an_error_is_shown_as_text_and_the_picture_stays(scenario):
    broken = []

    def mine(given):
        if broken:
            raise ValueError("not with <b>this</b> link")
        return given

    explorer = explore_whatif(scenario, {"mine": mine, "fp16": HalfPrecision()})
    control(explorer, "option-0").value = False
    before = control(explorer, "image").value
    control(explorer, "option-1").value = False
    assert "not done. ValueError: optimisations: expected at least one" in status(explorer)
    assert control(explorer, "image").value == before
    broken.append(True)
    control(explorer, "option-0").value = True
    assert "not with &lt;b&gt;this&lt;/b&gt; link" in status(explorer)


def test_shares_of_more_than_six_are_refused_in_place(scenario):
    many = {f"link {k}": FasterLink(k) for k in range(1, 8)}
    explorer = explore_whatif(scenario, many)
    control(explorer, "view").value = control(explorer, "view").options[1]
    assert "expected at most 6 for all their orders, got 7" in status(explorer)


def test_labels_and_what_is_not_modelled_are_escaped(scenario):
    class Hostile:
        assumes = "<script>alert(1)</script>"

        def __call__(self, given):
            return given

    options = {
        "<img src=x>": Hostile(),
        "coded": Compression(4),
        "": Hostile(),
        "x" * 300: Hostile(),
    }
    explorer = explore_whatif(scenario, options)
    below = control(explorer, "below").value
    assert "&lt;script&gt;" in below and "<script>" not in below
    assert "error feedback and convergence not modelled" in below
    boxes = [control(explorer, f"option-{i}") for i in range(4)]
    assert boxes[0].description == "<img src=x>" and not boxes[0].description_allow_html
    assert boxes[2].description == "unnamed" and len(boxes[3].description) < 50


@pytest.mark.parametrize("order", [["nothing"], 5, "option-0"])
def test_an_order_of_no_optimisations_is_refused_and_nothing_moves(scenario, order):
    explorer = explore_whatif(scenario, OPTIONS)
    before, state = shown(explorer), explorer.state()
    refusal(lambda: explorer.restore({"option-1": False, "order": order}), "restore", order)
    assert shown(explorer) == before and explorer.state() == state


# --- fusion ---------------------------------------------------------------------------------------


def test_fusion_starts_at_the_scenario_itself(scenario):
    explorer = explore_fusion(scenario)
    assert explorer.scenario.fusion == scenario.fusion
    found, best = predict(scenario).scaling_factor, predict(optimal(scenario)).scaling_factor
    assert f"scaling factor {found:.3f} at 8 workers, of the optimum {best:.3f}" in status(explorer)
    assert f"loss {1 - found / best:.2%}" in status(explorer)
    assert "FixedBuffer(buffer_bytes=41943040" in control(explorer, "below").value
    control(explorer, "latency").value = 200
    link = explorer.scenario.all_reduce.link  # what nobody moved keeps its last bit
    assert link.beta == scenario.all_reduce.link.beta
    assert link.alpha == pytest.approx(200 * US)


def test_the_setting_moves_only_where_it_counts(scenario):
    explorer = explore_fusion(scenario)
    moves = {}
    for policy in control(explorer, "policy").options:
        control(explorer, "policy").value = policy
        moves[policy] = not control(explorer, "setting").disabled
    frameworks = ("PyTorch DDP", "Horovod", "DeepSpeed")
    assert moves == {"as it is": False, **dict.fromkeys(frameworks, True), "optimum": False}
    explorer.reset()
    assert control(explorer, "setting").disabled


def test_a_cost_without_a_link_need_not_be_hashable(scenario):
    @dataclass
    class Mine:
        beta: float = 1e-9

        def __call__(self, nbytes, n_workers):
            return self.beta * np.asarray(nbytes) + 0.0 * np.asarray(n_workers)

    explorer = explore_fusion(replace(scenario, all_reduce=Mine()))
    assert list(explorer._controls) == ["policy", "setting", "workers"]
    control(explorer, "policy").value = "optimum"
    assert "no headroom" in status(explorer)
    grid = {"policy": ["as it is"], "workers": [16]}  # and where the controls are
    assert "A grid of 4 pictures" in explorer.static(grid).html


def test_a_framework_starts_at_its_best_setting_and_the_slider_goes_through_all(scenario):
    explorer, curve = explore_fusion(scenario), loss_curve(scenario)
    control(explorer, "policy").value = "PyTorch DDP"
    slider = control(explorer, "setting")
    assert slider.value == curve.loc[curve["iteration_s"].idxmin(), "value"]
    assert [value for _, value in slider.options] == curve["value"].tolist()
    slider.value = 20.0
    assert explorer.scenario.fusion == DDPBuckets(20 * MIB, 20 * MIB)
    assert "DistributedDataParallel(model, bucket_cap_mb=20)" in control(explorer, "below").value
    row = curve[curve["value"] == 20].iloc[0]
    assert f"scaling factor {row['scaling_factor']:.3f}" in status(explorer)


def test_horovod_is_shown_with_its_best_cycle(scenario):
    explorer = explore_fusion(scenario)
    control(explorer, "policy").value = "Horovod"
    control(explorer, "setting").value = 16.0
    policy = explorer.scenario.fusion
    assert isinstance(policy, HorovodFusion) and policy.threshold_bytes == 16 * MIB
    curve = loss_curve(scenario, HorovodFusion(), values=[16])
    best = curve.loc[curve["iteration_s"].idxmin()]
    assert policy.cycle_s == pytest.approx(best["cycle_ms"] * MS)
    assert best["setting"] in control(explorer, "below").value


def test_texts_to_paste_are_json_for_deepspeed_and_a_list_of_caps_for_the_optimum(scenario):
    explorer = explore_fusion(scenario)
    control(explorer, "policy").value = "DeepSpeed"
    found = json.loads(explorer._present().parameters["setting"])
    assert found["zero_optimization"]["reduce_bucket_size"] == control(explorer, "setting").value
    control(explorer, "policy").value = "optimum"
    assert "bucket_cap_mb_list=[" in control(explorer, "below").value
    assert predict(explorer.scenario).iteration_s == predict(optimal(scenario)).iteration_s
    assert "no headroom 0.00%" in status(explorer)


ENDS = [("PyTorch DDP", "setting"), ("optimum", "bandwidth"), ("as it is", "workers")]
POLICIES = ["as it is", "PyTorch DDP", "Horovod", "DeepSpeed", "optimum"]
ALL_ENDS = [
    pytest.param(policy, name, marks=pytest.mark.all)
    for policy in POLICIES
    for name in ("setting", "bandwidth", "latency", "workers")
    if (policy, name) not in ENDS
]


@pytest.mark.parametrize(("policy", "name"), [*ENDS, *ALL_ENDS])
def test_every_slider_redraws_at_both_ends(scenario, policy, name):
    explorer = explore_fusion(scenario)
    control(explorer, "policy").value = policy
    slider = control(explorer, name)
    for index in (0, len(slider.options) - 1):
        before, moved = shown(explorer), slider.index != index
        slider.index = index
        assert "not done" not in status(explorer)
        unused = name == "setting" and policy in ("as it is", "optimum")
        assert (shown(explorer) != before) == (moved and not unused)


@pytest.mark.parametrize(
    ("explore", "name"),
    [
        (lambda s, **save: explore_whatif(s, OPTIONS, **save), "what-if"),
        (explore_fusion, "fusion"),
    ],
)
def test_the_button_saves_figure_data_and_receipt(scenario, tmp_path, explore, name):
    assert f"{name}.pdf" in press_save(explore(scenario, folder=tmp_path))
    receipt = json.loads((tmp_path / f"{name}.receipt.json").read_text())
    assert receipt["parameters"]["n_workers"] == 8
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 3
