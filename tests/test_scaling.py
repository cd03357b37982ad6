"""Strong and weak scaling: against numbers by hand and against each other."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_timeline import scenario

from workbench.costs import BatchTime, Link, Ring
from workbench.fusion import DDPBuckets
from workbench.timeline import beside_measured, predict, strong_scaling, weak_scaling
from workbench.timeline.scaling import SCALING, with_compute

COUNTS = [1, 2, 4, 16]


def ring():
    return scenario(all_reduce=Ring(Link(0.01, 1e-4)))


def test_weak_scaling_by_hand():
    # 10 s alone, 15 s on two workers: 2 batches in 1.5 times the time
    (row,) = weak_scaling(scenario(), [2]).to_dict("records")
    assert list(row) == list(SCALING)
    assert row["speedup"] == pytest.approx(2 * 10 / 15)
    assert row["efficiency"] == row["scaling_factor"] == pytest.approx(10 / 15)


def test_strong_scaling_by_hand():
    # half of the batch takes half of the 10 s: gradients at 0.5, 1 and 2 s, backward until 2.5;
    # messages of 2, 3 and 4 s end at 2.5, 5.5 and 9.5, so 7 s are exposed
    (row,) = strong_scaling(scenario(), [2], lambda n: 10 / n).to_dict("records")
    assert list(row) == list(SCALING)
    assert row["one_worker_s"] == 5 and row["exposed_comm_s"] == pytest.approx(7)
    assert row["speedup"] == pytest.approx(10 / 12)
    assert row["efficiency"] == pytest.approx(10 / 12 / 2)
    assert row["scaling_factor"] == pytest.approx(5 / 12)


def test_one_worker_is_the_measure_of_both():
    for table in (weak_scaling(ring(), [1]), strong_scaling(ring(), [1], lambda n: 3.0 / n)):
        assert table[["scaling_factor", "speedup", "efficiency"]].squeeze().tolist() == [1, 1, 1]


def test_a_batch_that_costs_the_same_whatever_its_size_makes_strong_scaling_pointless():
    # no compute is saved, so Tn is that of weak scaling and no sample is won
    strong = strong_scaling(ring(), COUNTS, lambda n: 10.0)
    weak = weak_scaling(ring(), COUNTS)
    np.testing.assert_allclose(strong["iteration_s"], weak["iteration_s"])
    np.testing.assert_allclose(strong["speedup"], weak["scaling_factor"])


def test_strong_scaling_with_the_time_of_a_batch_is_amdahls_law_on_a_free_link():
    # 2 s whatever the batch and 8 s for 32 samples: a fifth is serial
    batch_time = BatchTime(2.0, 0.25)
    free = scenario(all_reduce=Ring(Link(0, 0)))
    table = strong_scaling(free, COUNTS, lambda n: float(batch_time(32 / n)))
    n = table["n_workers"]
    np.testing.assert_allclose(table["speedup"], 1 / (0.2 + 0.8 / n))


def test_strong_scaling_never_beats_weak_scaling():
    strong, weak = strong_scaling(ring(), COUNTS, lambda n: 10 / n), weak_scaling(ring(), COUNTS)
    assert (strong["efficiency"] <= weak["efficiency"] + 1e-12).all()


def test_compute_twice_as_fast_is_ready_in_half_the_time():
    faster = with_compute(scenario(), 5.0)
    assert faster.gradients["ready_s"].tolist() == [0.5, 1, 2]
    assert (faster.one_worker_s, faster.backward_s) == (5, 2.5)
    assert scenario().gradients["ready_s"].tolist() == [1, 2, 4]


def test_the_spread_of_ready_times_scales_with_them():
    table = scenario().gradients.assign(ready_min_s=[0.5, 1, 2], ready_max_s=[2, 4, 5])
    faster = with_compute(replace(scenario(), gradients=table), 5.0).gradients
    assert faster["ready_min_s"].tolist() == [0.25, 0.5, 1]
    assert faster["ready_max_s"].tolist() == [1, 2, 2.5]


def test_compute_as_it_was_predicts_what_it_did():
    again = with_compute(with_compute(ring(), 3.0), 10.0)
    assert predict(again).iteration_s == pytest.approx(predict(ring()).iteration_s)


def test_measured_iterations_stand_beside_predictions_with_their_own_compute():
    # measured alone in 5 s, half of the scenario's 10: as strong scaling by hand above, 7 s exposed
    told = pd.DataFrame({"n_workers": [1, 2, 1], "iteration_s": [5.0, 16.0, 5.0]})
    found = beside_measured(scenario(), told)
    assert found["predicted_s"].tolist() == pytest.approx([5, 12, 5])
    assert found["error"].tolist() == pytest.approx([0, -0.25, 0])
    (row,) = beside_measured(scenario(), told[told["n_workers"] == 2]).to_dict("records")
    assert row["predicted_s"] == pytest.approx(15) and row["scaling_factor"] == pytest.approx(
        10 / 15
    )
    older = told.assign(predicted_s=1.0, predicted_factor=0.5, scaling_factor=0.5, policy="ddp")
    assert beside_measured(scenario(), older).drop(columns="policy").equals(found)
    of_ddp = replace(scenario(), fusion=DDPBuckets())
    assert len(beside_measured(of_ddp, older)) == 3
