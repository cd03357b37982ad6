"""Predicted against measured on published runs; no number that is predicted is also fitted.

Each validate_* takes tables of data/published and returns VALIDATION: one row per measured number,
with its prediction and the rows that set the prices behind it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ..base.checks import require
from ..base.tables import GRADIENTS, check
from ..base.units import MIB, MS
from ..costs import Affine, Link, Ring
from ..fits import fit_all_reduce
from ..fusion import HorovodFusion, MergedGradients, OneMessage, PerTensor, fuse
from ..fusion.frameworks import phases
from ..timeline import Scenario, predict, schedule
from ..timeline.queues import side_by_side
from .pollux import PLACEMENTS, fit_placements, fit_pollux

VALIDATION = {
    "dataset": "whose measurement",
    "model": "what was trained",
    "case": "network, nodes, batch or device, where several were measured",
    "n_workers": "workers",
    "method": "what sent the gradients, or which model predicts",
    "quantity": "what is compared: scaling factor, s an iteration, messages an iteration",
    "measured": "in the unit of quantity",
    "predicted": "in the unit of quantity",
    "error": "predicted / measured - 1",
    "calibrated_on": "the rows that set the prices",
    "note": "why it is off, where it is known",
}
BACKWARD = 2 / 3  # share of an iteration where it was not timed: twice the work of forward
OFF = 0.084  # the largest error in the paper's abstract; larger errors get a note
_HIGHEST_HOP_S = 1e-2  # highest latency tried, s per hop
_HIGHEST_BYTE_S = 1e-6  # highest price tried, s per byte: 1 MB/s


def evenly_ready(sizes: pd.DataFrame, backward_s: float) -> pd.DataFrame:
    """Return GRADIENTS of a model without a trace: the k-th of L is ready at k/L of backward.

    sizes : name and nbytes in backward order

    This suits transformers and residual networks, whose layers take about the same time; it does
    not suit networks in which one layer dominates.
    """
    ready = backward_s * np.arange(1, len(sizes) + 1) / max(1, len(sizes))
    return sizes[["name", "nbytes"]].reset_index(drop=True).assign(ready_s=ready)


def stretched(gradients: pd.DataFrame, backward_s: float) -> pd.DataFrame:
    """Return GRADIENTS with ready times scaled so that the last is at backward_s."""
    check(gradients, GRADIENTS, "gradients")
    ready = gradients["ready_s"] * (backward_s / gradients["ready_s"].max())
    return gradients.assign(ready_s=ready)


def summary(
    table: pd.DataFrame, by: tuple = ("dataset", "method", "quantity"), **more: Callable
) -> pd.DataFrame:
    """Return one row per group: cells, mean and largest absolute error (shares), mean error.

    more : further columns after mean_absolute, each a function of a group's absolute errors
    """
    check(table, VALIDATION, "summary")
    off = table.assign(size=table["error"].abs())
    columns = {"cells": ("error", "size"), "mean_absolute": ("size", "mean")}
    columns |= {name: ("size", function) for name, function in more.items()}
    columns |= {"largest": ("size", "max"), "mean_error": ("error", "mean")}
    return off.groupby(list(by), sort=False, dropna=False).agg(**columns).reset_index()


def validate_bcaffe(trace: pd.DataFrame, speed: pd.DataFrame) -> pd.DataFrame:
    """Return VALIDATION of GoogLeNet on 2, 4 and 8 K80 nodes: WFBP, MG-WFBP and SyncEASGD.

    trace : logged runs of WFBP: run, n_workers, and GRADIENTS with comm_s, each layer's all-reduce
    speed : method, n_workers, batch and images_per_s of all workers, as measured

    T1 is the speed of one worker. WFBP is the recursion on the logged times of its messages; the
    other two take alpha + beta S fitted to the same messages, and their own fusion. If several
    runs were logged, the mean of their predictions counts. The speed of several workers is only
    compared with.
    """
    _needs(trace, "run n_workers name nbytes ready_s comm_s", "trace")
    _needs(speed, "method n_workers batch images_per_s", "speed")
    one = rows_with(speed, "speed", n_workers=1).iloc[0]
    one_worker_s = one["batch"] / one["images_per_s"]
    rows = []
    for n, runs in trace.groupby("n_workers"):
        found = pd.DataFrame([_logged(run, one_worker_s) for _, run in runs.groupby("run")])
        for method, predicted in found.mean().items():
            at = rows_with(speed, "speed", n_workers=n, method=method).iloc[0]
            measured = at["images_per_s"] / (n * one["images_per_s"])
            logged = "logged times of the messages" + ", fitted" * (method != "WFBP")
            what = ("B-Caffe", "GoogLeNet", "K80, 10GbE", n, method, "scaling factor")
            rows.append(_row(what, measured, predicted, logged))
    return _noted(pd.DataFrame(rows), "time outside the messages, which no log contains", over=OFF)


def _logged(run: pd.DataFrame, one_worker_s: float) -> dict:
    """Return the scaling factor of each method from one logged run of WFBP."""
    gradients = run[list(GRADIENTS)].reset_index(drop=True)
    n, backward_s = int(run["n_workers"].iloc[0]), gradients["ready_s"].max()
    end_s = schedule(fuse(gradients, PerTensor()), run["comm_s"].to_numpy())["end_s"].iloc[-1]
    cost = _priced(run)
    merged = Scenario(gradients, one_worker_s, backward_s, n, cost, MergedGradients(cost, n))
    after = replace(merged, fusion=OneMessage(), overlap=False)
    return {
        "WFBP": one_worker_s / (one_worker_s + max(0.0, end_s - backward_s)),
        "MG-WFBP": predict(merged).scaling_factor,
        "SyncEASGD": predict(after).scaling_factor,
    }


def _priced(run: pd.DataFrame) -> Affine:
    timed = run[["n_workers", "nbytes"]].assign(op="all_reduce", n_nodes=run["n_workers"])
    return fit_all_reduce(timed.assign(seconds=run["comm_s"]), Affine).model


def logged_links(trace: pd.DataFrame) -> pd.DataFrame:
    """Return the link of each logged run, fitted to its own messages, one row per run.

    trace : as in validate_bcaffe

    Columns: source, network, n_workers, alpha (s per message) and beta (s per byte).
    """
    _needs(trace, "run n_workers nbytes comm_s", "trace")
    rows = [
        {"n_workers": run["n_workers"].iloc[0]} | _priced(run).parameters
        for _, run in trace.groupby("run")
    ]
    table = pd.DataFrame(rows)
    return pd.DataFrame({"source": "B-Caffe", "network": "10GbE, K80"} | dict(table))


def validate_ddl(
    throughput: pd.DataFrame,
    gradients: dict,
    planned: pd.DataFrame,
    reference: tuple = ("ResNet-50", 32),
) -> pd.DataFrame:
    """Return VALIDATION of WFBP and MG-WFBP on 8, 16 and 32 V100s over two networks.

    throughput : model, batch, network, method, n_workers, one_worker_samples_per_s, samples_per_s
    gradients : model -> GRADIENTS; their ready times are stretched to BACKWARD of T1
    planned : network, n_workers, alpha, beta with which MG-WFBP's authors plan its messages; the
        last row counts if one network and n has several
    reference : model and n_workers of the WFBP row that sets alpha, one row per network

    A ring's price is calibrated in two steps. The rows without overlap (BSP) set beta for each
    model and n_workers: T(BSP) = T1 + C(S, n). The reference row sets alpha, the latency of a hop,
    for each network: the value at which the recursion gives the measured time. Choose a row in
    which latency is exposed; at 8 workers it hides behind backward and cannot be seen.
    """
    columns = "model batch network method n_workers one_worker_samples_per_s samples_per_s"
    _needs(throughput, columns, "throughput")
    _needs(planned, "network n_workers alpha beta", "planned")
    rows = []
    for network, table in throughput.groupby("network", sort=False):
        alpha = _latency(table, gradients, reference)
        for cell in table[table["method"] != "BSP"].itertuples():
            calibrates = (cell.model, cell.n_workers) == reference and cell.method == "WFBP"
            if cell.n_workers < 8 or calibrates:  # fewer than 8 share one node, with another link
                continue
            n = cell.n_workers
            scenario = _on_ring(table, cell.model, n, gradients, alpha)
            if cell.method == "MG-WFBP":
                scenario = replace(scenario, fusion=_merged(planned, network, n))
            measured = cell.samples_per_s / n / cell.one_worker_samples_per_s
            used = f"BSP of the model, WFBP of {reference[0]} at {reference[1]}"
            what = ("ddl-benchmarks", cell.model, network, n, cell.method, "scaling factor")
            rows.append(_row(what, measured, predict(scenario).scaling_factor, used))
    table = _noted(pd.DataFrame(rows), "overlap hides less: messages slow compute", over=OFF)
    return _noted(table, "a hop's latency differs between models", under=-OFF)


def _latency(table: pd.DataFrame, gradients: dict, reference: tuple) -> float:
    """Return the alpha at which WFBP of the reference takes its measured time, s per hop."""
    measured_s = _iteration_s(table, *reference, "WFBP")

    def late_s(alpha: float) -> float:
        scenario = _on_ring(table, *reference, gradients, alpha)
        return predict(scenario).iteration_s - measured_s

    return _solved(late_s, _HIGHEST_HOP_S, "alpha")


def _on_ring(table, model: str, n: int, gradients: dict, alpha: float) -> Scenario:
    """Return WFBP on a ring with this alpha, on which one message takes as long as BSP exposes."""
    cell = table[table["model"] == model].iloc[0]
    one_worker_s = cell["batch"] / cell["one_worker_samples_per_s"]
    backward_s = BACKWARD * one_worker_s
    own = stretched(gradients[model], backward_s)
    exposed_s = _iteration_s(table, model, n, "BSP") - one_worker_s
    hop = Ring(Link(alpha, 0.0))
    beta = (exposed_s - hop(0, n)) / hop.moved(own["nbytes"].sum(), n)
    cost = Ring(Link(alpha, max(0.0, beta)))
    return Scenario(own, one_worker_s, backward_s, int(n), cost, PerTensor())


def _merged(planned: pd.DataFrame, network: str, n: int) -> MergedGradients:
    """Return the fusion that MG-WFBP plans with the prices its authors give for the network."""
    row = rows_with(planned, "planned", network=network, n_workers=n)
    alpha, beta = row[["alpha", "beta"]].iloc[-1]
    return MergedGradients(Affine(Link(alpha, beta)), int(n))


def _iteration_s(table: pd.DataFrame, model: str, n: int, method: str) -> float:
    cell = rows_with(table, "throughput", model=model, n_workers=n, method=method).iloc[0]
    return cell["batch"] * n / cell["samples_per_s"]


def validate_horovod(
    runs: pd.DataFrame, gradients: pd.DataFrame, small_message_s: float = 0.30 * MS
) -> pd.DataFrame:
    """Return VALIDATION of Horovod 0.20.3 with and without fusion (64 MiB, 5 ms), ResNet-50.

    runs : setting (one worker, fusion on, fusion off), n_workers, seconds, messages
    gradients : GRADIENTS with the ready times of that model and device
    small_message_s : published time of a message of 1 KiB or less there: the latency

    A message takes small_message_s + beta S; beta is the value at which the run with fusion takes
    its measured time. The gap to the run without fusion is then predicted. Ticks of Horovod's
    thread come at any phase: the mean over four counts. T1 is that of the run on one worker, which
    waited for its data.
    """
    _needs(runs, "setting n_workers seconds messages", "runs")
    check(gradients, GRADIENTS, "gradients")
    settings = ("one worker", "fusion on", "fusion off")
    one, on, off = (rows_with(runs, "runs", setting=each).iloc[0] for each in settings)
    n, backward_s = int(on["n_workers"]), gradients["ready_s"].max()
    fused, alone = (phases(HorovodFusion(each, 5 * MS, "0.20.3")) for each in (64 * MIB, 0))

    def seconds(beta: float, policies: list) -> float:
        cost = Affine(Link(small_message_s, beta))
        each = Scenario(gradients, one["seconds"], backward_s, n, cost, PerTensor())
        return float(np.mean([predict(replace(each, fusion=p)).iteration_s for p in policies]))

    beta = _solved(lambda beta: seconds(beta, fused) - on["seconds"], _HIGHEST_BYTE_S, "beta")
    gap_s = seconds(beta, alone) - on["seconds"]
    counts = [np.mean([len(fuse(gradients, p)) for p in each]) for each in (alone, fused)]
    basis = "small messages, and the run with fusion"
    rows = [
        ("off - on", "s", off["seconds"] - on["seconds"], gap_s, basis),
        ("fusion off", "s", off["seconds"], on["seconds"] + gap_s, basis),
        ("fusion off", "messages", off["messages"], counts[0], "-"),
        ("fusion on", "messages", on["messages"], counts[1], "-"),
    ]
    what = ("huyutuo", "ResNet-50", "V100, 16 Gbit/s", n)
    table = [_row((*what, how, f"{unit} an iteration"), *row) for how, unit, *row in rows]
    late = "messages of 0.2 MB took longer than alpha + beta S there"
    return _noted(pd.DataFrame(table), late, under=-OFF)


def validate_gpus(
    speed: pd.DataFrame, gradients: pd.DataFrame, reference: str = "p100"
) -> pd.DataFrame:
    """Return VALIDATION of ResNet-50 on four devices over one network: a trend, not an aim.

    speed : gpu, backend ("one worker" or the network), n_workers, images_per_s of all; batch 64
    gradients : GRADIENTS; their ready times are stretched to BACKWARD of each device's T1
    reference : the device whose rows set the price: for each network and n_workers the beta at
        which Horovod's fusion takes the measured time

    Only T1 differs between devices: a faster one has less backward to hide the same messages.
    """
    _needs(speed, "gpu backend n_workers images_per_s", "speed")
    one = speed[speed["backend"] == "one worker"].set_index("gpu")["images_per_s"]
    several = speed[(speed["n_workers"] >= 8) & (speed["backend"] != "one worker")]
    policy = HorovodFusion(64 * MIB, 5 * MS, "0.15")

    def factor(gpu: str, n: int, beta: float) -> float:
        one_worker_s = 64 / one[gpu]
        backward_s = BACKWARD * one_worker_s
        own, cost = stretched(gradients, backward_s), Ring(Link(0.0, beta))
        return predict(Scenario(own, one_worker_s, backward_s, n, cost, policy)).scaling_factor

    rows = []
    for (backend, n), cells in several.groupby(["backend", "n_workers"], sort=False):
        measured = cells.set_index("gpu")["images_per_s"] / (n * one[cells["gpu"]])
        target = measured[rows_with(cells, "speed", gpu=reference)["gpu"].iloc[0]]
        at = partial(factor, reference, n)
        beta = _solved(lambda b, at=at, t=target: t - at(b), _HIGHEST_BYTE_S, "beta")
        for gpu in measured.index.drop(reference):
            what = ("BatchAI", "ResNet-50", backend, n, gpu, "scaling factor")
            used = f"{reference}, same network and n"
            rows.append(_row(what, measured[gpu], factor(gpu, n, beta), used))
    return _noted(pd.DataFrame(rows), "not due to the network: as slow on one node", over=OFF)


def validate_contention(contention: pd.DataFrame) -> pd.DataFrame:
    """Return VALIDATION of m all-reduces that share one link, from the time of one alone: a trend.

    contention : n_jobs, nbytes, seconds (the mean latency)

    One message alone takes C; m that start together get 1/m of the bandwidth each, so all end at
    m C if all of C is transfer.
    """
    _needs(contention, "n_jobs nbytes seconds", "contention")
    rows = []
    for cell in contention[contention["n_jobs"] > 1].itertuples():
        m, zeros = cell.n_jobs, np.zeros(cell.n_jobs)
        alone = rows_with(contention, "contention", n_jobs=1, nbytes=cell.nbytes).iloc[0]
        predicted = side_by_side(zeros, zeros, zeros + alone["seconds"], zeros, m)[1].mean()
        case = f"{m} at once, {cell.nbytes / MIB:.0f} MiB"
        what = ("dl-scheduling", "all-reduce", case, m, "shared link", "s a message")
        rows.append(_row(what, cell.seconds, predicted, "one alone"))
    return _noted(pd.DataFrame(rows), "messages disturb each other beyond sharing", under=-OFF)


def validate_pollux(rows: pd.DataFrame, gradients: dict, nodes: int = 4) -> pd.DataFrame:
    """Return VALIDATION of iterations on more nodes than were fitted, OSF and the model of Pollux.

    rows : PLACEMENTS of any number of applications of one cluster
    gradients : application -> GRADIENTS of its model
    nodes : rows on at most this many nodes calibrate both models, all others are predicted
    """
    check(rows, PLACEMENTS, "rows")
    few = rows["n_nodes"] <= nodes
    require(not few.all(), "rows", f"some on more than {nodes} nodes to predict", found="none")
    ours = fit_placements(rows[few], gradients)
    found = []
    for name, cells in rows[~few].groupby("application", sort=False):
        theirs = fit_pollux(rows[few & (rows["application"] == name)])
        at = [cells[column] for column in ("n_nodes", "n_workers", "batch")]
        used = {"OSF": (ours[name], "all applications"), "Pollux": (theirs, name)}
        for method, (model, which) in used.items():
            basis = f"placements of at most {nodes} nodes, {which}"
            for cell, predicted in zip(cells.itertuples(), model(*at), strict=True):
                case = f"{cell.n_nodes} nodes, batch {cell.batch}"
                what = ("Pollux", name, case, cell.n_workers, method, "s an iteration")
                found.append(_row(what, cell.step_s, predicted, basis))
    table = pd.DataFrame(found)
    few = f"at most {nodes} nodes do not show how the price grows with n"
    return _noted(_noted(table, few, under=-OFF), "placements of one size scatter", over=OFF)


def one_link_or_own(rows: pd.DataFrame, gradients: dict, nodes: int = 4) -> pd.DataFrame:
    """Return mean absolute errors if all applications share one link, and if each has its own.

    rows, gradients, nodes : as in validate_pollux

    One row per model and method. Columns: predictions from `nodes` nodes for more, and from one
    node less for `nodes`, each with one link and with own links.
    """
    check(rows, PLACEMENTS, "rows")
    parts, errors = [part for _, part in rows.groupby("application")], {}
    for case, most in ((f"from {nodes}", nodes), (f"{nodes} from {nodes - 1}", nodes - 1)):
        for link, cut in (("one link", [rows]), ("own links", parts)):
            used = [part if most == nodes else part[part["n_nodes"] <= nodes] for part in cut]
            cells = pd.concat([validate_pollux(part, gradients, most) for part in used])
            by_model = summary(cells, ("model", "method")).set_index(["model", "method"])
            errors[f"{case}, {link}"] = by_model["mean_absolute"]
    return pd.DataFrame(errors)


def _noted(table: pd.DataFrame, note: str, over=np.inf, under=-np.inf) -> pd.DataFrame:
    """Return the table with the note where the error is above `over` or below `under`."""
    off = (table["error"] > over) | (table["error"] < under)
    return table.assign(note=table["note"].mask(off, note))


def rows_with(table: pd.DataFrame, what: str, **where) -> pd.DataFrame:
    """Return the rows that have these values, or raise ValueError if there is none."""
    same = np.logical_and.reduce([table[name] == value for name, value in where.items()])
    wanted = ", ".join(f"{name} {value}" for name, value in where.items())
    require(same.any(), what, f"a row with {wanted}", found="none")
    return table[same]


def _solved(late: Callable, highest: float, what: str) -> float:
    """Return the price from 0 to highest at which late, which rises with it, is 0.

    0 if a free link is late already. Raises ValueError if the highest price is not late enough.
    """
    if late(0.0) >= 0:
        return 0.0
    expected = f"a price up to {highest:g} s that gives the calibrating row's measured time"
    require(late(highest) >= 0, what, expected, found="none", do="Check the units of that row")
    return brentq(late, 0.0, highest, xtol=1e-12 * highest)


def _needs(table: pd.DataFrame, columns: str, what: str):
    check(table, dict.fromkeys(columns.split(), "as the docstring describes it"), what)


def _row(what: tuple, measured: float, predicted: float, calibrated_on: str) -> dict:
    values = (*what, measured, predicted, predicted / measured - 1, calibrated_on, "")
    return dict(zip(VALIDATION, values, strict=True))
