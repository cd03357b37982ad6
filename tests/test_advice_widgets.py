"""The widgets of advice: optimisations in any order, settings of fusion, errors told in place."""

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from workbench import GBIT, MIB, MS, US
from workbench.costs import Link, Ring
from workbench.explore import explore_fusion, explore_whatif
from workbench.fusion import DDPBuckets, FixedBuffer, HorovodFusion
from workbench.timeline import Scenario, predict
from workbench.whatif import (
    AdaptiveFusion,
    Compression,
    FasterLink,
    HalfPrecision,
    ablate,
    compare,
    loss_curve,
    optimal,
    predict_with,
)

OPTIONS = {"adaptive": AdaptiveFusion(), "fp16": HalfPrecision(), "faster": FasterLink(2)}


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
    link = Link(20 * US, 1 / (10 * GBIT))
    return Scenario(gradients, 100 * MS, 60 * MS, 8, Ring(link), FixedBuffer(40 * MIB))


def control(explorer, name):
    """The control a page finds by its class name."""
    rows = [row.children if hasattr(row, "children") else (row,) for row in explorer.children]
    return next(each for row in rows for each in row if f"wb-{name}" in each._dom_classes)


def shown(explorer) -> tuple:
    return tuple(control(explorer, name).value for name in ("image", "below", "status"))


def status(explorer) -> str:
    return control(explorer, "status").value


# --- what if --------------------------------------------------------------------------------------


def test_all_optimisations_are_on_at_the_start_in_the_order_given(scenario):
    explorer, table = explore_whatif(scenario, OPTIONS), ablate(scenario, OPTIONS)
    assert [control(explorer, f"option-{i}").value for i in range(3)] == [True] * 3
    last = table[table["kind"] == "optimisation"].iloc[-1]
    assert f"all together {last['speedup']:.3f} times the baseline" in status(explorer)
    assert bytes(control(explorer, "image").value).startswith(b"\x89PNG")


def test_what_is_switched_on_last_is_added_last(scenario):
    explorer = explore_whatif(scenario, OPTIONS)
    control(explorer, "option-0").value = False
    control(explorer, "option-0").value = True
    order = {label: OPTIONS[label] for label in ("fp16", "faster", "adaptive")}
    assert explorer.optimisation.optimisations == tuple(order.values())
    pd.testing.assert_frame_equal(explorer._present().data, ablate(scenario, order))


def test_what_is_on_together_can_be_predicted_in_the_next_cell(scenario):
    explorer = explore_whatif(scenario, OPTIONS)
    control(explorer, "option-1").value = False
    found = predict_with(scenario, explorer.optimisation).iteration_s
    rows = explorer._present().data.query("kind == 'optimisation'")
    assert found == pytest.approx(rows["iteration_s"].iloc[-1])


def test_the_other_views_are_shares_and_times(scenario):
    explorer = explore_whatif(scenario, OPTIONS)
    views = control(explorer, "view").options
    control(explorer, "view").value = views[1]
    shares = ablate(scenario, OPTIONS, "shapley")
    pd.testing.assert_frame_equal(explorer._present().data, shares)
    control(explorer, "view").value = views[2]
    pd.testing.assert_frame_equal(explorer._present().data, compare(scenario, OPTIONS))


def test_nothing_switched_on_is_told_and_the_picture_stays(scenario):
    explorer = explore_whatif(scenario, {"fp16": HalfPrecision()})
    before = control(explorer, "image").value
    control(explorer, "option-0").value = False
    assert "not done. ValueError: expected at least one optimisation switched on" in status(
        explorer
    )
    assert control(explorer, "image").value == before
    control(explorer, "option-0").value = True
    assert "all together" in status(explorer)


def test_shares_of_more_than_six_are_refused_in_place(scenario):
    many = {f"link {k}": FasterLink(k) for k in range(1, 8)}
    explorer = explore_whatif(scenario, many)
    control(explorer, "view").value = control(explorer, "view").options[1]
    assert "expected at most 6 optimisations for all their orders, got 7" in status(explorer)


def test_an_optimisation_that_fails_is_told_in_place_as_text(scenario):
    broken = []

    def mine(given):
        if broken:
            raise ValueError("not with <b>this</b> link")
        return given

    explorer = explore_whatif(scenario, {"mine": mine, "fp16": HalfPrecision()})
    broken.append(True)
    control(explorer, "option-1").value = False
    assert "not with &lt;b&gt;this&lt;/b&gt; link" in status(explorer)


def test_what_is_not_modelled_is_said_and_escaped(scenario):
    class Told:
        assumes = "<script>alert(1)</script>"

        def __call__(self, given):
            return given

    explorer = explore_whatif(scenario, {"<img src=x>": Told(), "coded": Compression(4)})
    below = control(explorer, "below").value
    assert "&lt;script&gt;" in below and "<script>" not in below
    assert "error feedback and convergence not modelled" in below
    box = control(explorer, "option-0")
    assert box.description == "<img src=x>" and not box.description_allow_html


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "expected {label: optimisation}"), ({"baseline": HalfPrecision()}, "choose another")],
)
def test_what_cannot_be_compared_is_refused_at_once(scenario, options, words):
    with pytest.raises(ValueError, match=words):
        explore_whatif(scenario, options)


@pytest.mark.parametrize("explore", [lambda s: explore_whatif(s, OPTIONS), explore_fusion])
def test_a_prediction_is_refused_with_what_to_pass(scenario, explore):
    with pytest.raises(ValueError, match="expected a Scenario.*prediction.scenario"):
        explore(predict(scenario))


@pytest.mark.parametrize("order", [["nothing"], 5, "option-0"])
def test_an_order_of_no_optimisations_is_refused_and_nothing_moves(scenario, order):
    explorer = explore_whatif(scenario, OPTIONS)
    before, state = shown(explorer), explorer.state()
    with pytest.raises(ValueError, match="restore: order: expected some of option-0, option-1"):
        explorer.restore({"option-1": False, "order": order})
    assert shown(explorer) == before and explorer.state() == state


def test_a_label_of_nothing_or_of_many_letters_has_a_box_with_a_name(scenario):
    explorer = explore_whatif(scenario, {"": HalfPrecision(), "x" * 300: FasterLink(2)})
    assert control(explorer, "option-0").description == "unnamed"
    assert len(control(explorer, "option-1").description) < 50


# --- fusion ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("frameworks", [{"optimum": DDPBuckets()}, [DDPBuckets()], 5])
def test_frameworks_without_labels_of_their_own_are_refused(scenario, frameworks):
    with pytest.raises(ValueError, match="explore_fusion: frameworks: expected {label: policy}"):
        explore_fusion(scenario, frameworks=frameworks)


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


def test_a_cost_of_ones_own_need_not_be_hashable(scenario):
    @dataclass
    class Mine:
        beta: float = 1e-9

        def __call__(self, nbytes, n_workers):
            return self.beta * np.asarray(nbytes) + 0.0 * np.asarray(n_workers)

    explorer = explore_fusion(Scenario(**vars(scenario) | {"all_reduce": Mine()}))
    control(explorer, "policy").value = "optimum"
    assert "no headroom" in status(explorer)


def test_a_static_page_needs_no_link(scenario):
    plain = Scenario(**vars(scenario) | {"all_reduce": lambda s, n: 1e-3 + 1e-9 * np.asarray(s)})
    assert "A grid of 10 pictures" in explore_fusion(plain).static().html  # 5 policies, 2 workers


def test_fusion_starts_at_the_scenario_itself(scenario):
    explorer = explore_fusion(scenario)
    assert explorer.scenario.fusion == scenario.fusion
    found, best = predict(scenario).scaling_factor, predict(optimal(scenario)).scaling_factor
    assert f"scaling factor {found:.3f} at 8 workers, of the optimum {best:.3f}" in status(explorer)
    assert f"loss {1 - found / best:.2%}" in status(explorer)
    assert "FixedBuffer(buffer_bytes=41943040" in control(explorer, "below").value


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


def test_deepspeed_text_can_be_pasted_as_json(scenario):
    explorer = explore_fusion(scenario)
    control(explorer, "policy").value = "DeepSpeed"
    found = json.loads(explorer._present().parameters["setting"])
    assert found["zero_optimization"]["reduce_bucket_size"] == control(explorer, "setting").value


def test_the_optimum_is_told_as_a_list_of_caps(scenario):
    explorer = explore_fusion(scenario)
    control(explorer, "policy").value = "optimum"
    assert "bucket_cap_mb_list=[" in control(explorer, "below").value
    assert predict(explorer.scenario).iteration_s == predict(optimal(scenario)).iteration_s
    assert "no headroom 0.00%" in status(explorer)


@pytest.mark.parametrize("policy", ["as it is", "PyTorch DDP", "Horovod", "DeepSpeed", "optimum"])
@pytest.mark.parametrize("name", ["setting", "bandwidth", "latency", "workers"])
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


def test_a_link_that_nobody_moved_keeps_its_last_bit(scenario):
    explorer = explore_fusion(scenario)
    control(explorer, "latency").value = 200
    assert explorer.scenario.all_reduce.link.beta == scenario.all_reduce.link.beta
    assert explorer.scenario.all_reduce.link.alpha == pytest.approx(200 * US)


def test_a_cost_without_a_link_has_sliders_of_workers_only(scenario):
    plain = Scenario(**vars(scenario) | {"all_reduce": lambda s, n: 1e-3 + 1e-9 * np.asarray(s)})
    explorer = explore_fusion(plain)
    assert list(explorer._controls) == ["policy", "setting", "workers"]
    assert "scaling factor" in status(explorer)


@pytest.mark.parametrize(
    ("explore", "name"),
    [
        (lambda s, **save: explore_whatif(s, OPTIONS, **save), "what-if"),
        (explore_fusion, "fusion"),
    ],
)
def test_the_button_saves_figure_data_and_receipt(scenario, tmp_path, explore, name):
    explorer = explore(scenario, folder=tmp_path)
    control(explorer, "export").click()
    assert f"{name}.pdf" in status(explorer)
    receipt = json.loads((tmp_path / f"{name}.receipt.json").read_text())
    assert receipt["parameters"]["n_workers"] == 8
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) > 3
