"""Predicted against measured on published runs, cell by cell; no cell that is predicted is fitted.

Each validate_* takes tables of data/published and returns VALIDATION: a row a measured number, the
prediction beside it, and the rows that set the prices it rests on.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from ..base.tables import GRADIENTS, check
from ..base.units import MIB, MS
from ..costs import Affine, Link, Ring
from ..fits import fit_all_reduce
from ..fusion import HorovodFusion, MergedGradients, OneMessage, PerTensor, fuse
from ..fusion.frameworks import phases
from ..timeline import Scenario, predict, schedule
from ..timeline.queues import share
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
OFF = 0.084  # the largest error in the paper's abstract; what is off by more has a note
HIGHEST_HOP_S = 1e-2  # of the latencies tried, s a hop
HIGHEST_BYTE_S = 1e-6  # of the prices tried, s a byte: 1 MB/s


def evenly_ready(sizes: pd.DataFrame, backward_s: float) -> pd.DataFrame:
    """Return GRADIENTS of a model without a trace, the k-th of L ready at k/L of backward.

    sizes has name and nbytes in backward order. Layers of one width take about the same time, so
    it suits transformers and residual networks; it does not suit networks led by a large layer.
    """
    ready = backward_s * np.arange(1, len(sizes) + 1) / max(1, len(sizes))
    return sizes[["name", "nbytes"]].reset_index(drop=True).assign(ready_s=ready)


def stretched(gradients: pd.DataFrame, backward_s: float) -> pd.DataFrame:
    """Return the GRADIENTS with ready times in proportion, the last at backward_s."""
    check(gradients, GRADIENTS, "gradients")
    ready = gradients["ready_s"] * (backward_s / gradients["ready_s"].max())
    return gradients.assign(ready_s=ready)


def summary(table: pd.DataFrame, by: tuple = ("dataset", "method", "quantity")) -> pd.DataFrame:
    """Return mean and largest absolute error (shares), mean error and cells, for each group."""
    check(table, VALIDATION, "summary")
    groups = table.assign(size=table["error"].abs()).groupby(list(by), sort=False)
    return groups.agg(
        cells=("error", "size"),
        mean_absolute=("size", "mean"),
        largest=("size", "max"),
        mean_error=("error", "mean"),
    ).reset_index()


def validate_bcaffe(trace: pd.DataFrame, speed: pd.DataFrame) -> pd.DataFrame:
    """Return VALIDATION of GoogLeNet on 2, 4 and 8 K80 nodes: WFBP, MG-WFBP and SyncEASGD.

    trace : logged runs of WFBP: run, n_workers, and GRADIENTS with comm_s, each layer's all-reduce
    speed : method, n_workers, batch and images_per_s of all workers, the measurement

    T1 is the speed of one worker. WFBP is the recursion on the logged times of its messages; the
    other two take alpha + beta S fitted to those same messages, and their own fusion. Where
    several runs were logged the mean of their predictions counts. No speed of several workers is
    used but to compare.
    """
    _needs(trace, "run n_workers name nbytes ready_s comm_s", "trace")
    _needs(speed, "method n_workers batch images_per_s", "speed")
    one = _found(speed, "speed", n_workers=1).iloc[0]
    one_worker_s = one["batch"] / one["images_per_s"]
    rows = []
    for n, runs in trace.groupby("n_workers"):
        found = pd.DataFrame([_logged(run, one_worker_s) for _, run in runs.groupby("run")])
        for method, predicted in found.mean().items():
            at = _found(speed, "speed", n_workers=n, method=method)
            measured = at["images_per_s"].iloc[0] / (n * one["images_per_s"])
            logged = "logged times of the messages" + ", fitted" * (method != "WFBP")
            what = ("B-Caffe", "GoogLeNet", "K80, 10GbE", n, method, "scaling factor")
            rows.append(_row(what, measured, predicted, logged))
    return _noted(pd.DataFrame(rows), "time beside the messages that no log tells", over=OFF)


def _logged(run: pd.DataFrame, one_worker_s: float) -> dict:
    """Return the scaling factor of each method from one logged run of WFBP."""
    gradients = run[list(GRADIENTS)].reset_index(drop=True)
    n, backward_s = int(run["n_workers"].iloc[0]), gradients["ready_s"].max()
    end_s = schedule(fuse(gradients, PerTensor()), run["comm_s"].to_numpy())["end_s"].iloc[-1]
    cost = _priced(run)
    plain = Scenario(gradients, one_worker_s, backward_s, n, cost, MergedGradients(cost, n))
    after = replace(plain, fusion=OneMessage(), overlap=False)
    return {
        "WFBP": one_worker_s / (one_worker_s + max(0.0, end_s - backward_s)),
        "MG-WFBP": predict(plain).scaling_factor,
        "SyncEASGD": predict(after).scaling_factor,
    }


def _priced(run: pd.DataFrame) -> Affine:
    timed = run[["n_workers", "nbytes"]].assign(op="all_reduce", n_nodes=run["n_workers"])
    return fit_all_reduce(timed.assign(seconds=run["comm_s"]), Affine).model


def logged_links(trace: pd.DataFrame) -> pd.DataFrame:
    """Return source, network, n_workers, alpha (s a message) and beta (s a byte) of logged runs.

    trace : as in validate_bcaffe; a row a run, fitted to its own messages
    """
    _needs(trace, "run n_workers nbytes comm_s", "trace")
    rows = [
        {"source": "B-Caffe", "network": "10GbE, K80", "n_workers": run["n_workers"].iloc[0]}
        | _priced(run).parameters
        for _, run in trace.groupby("run")
    ]
    return pd.DataFrame(rows)


def validate_ddl(
    throughput: pd.DataFrame,
    gradients: dict,
    planned: pd.DataFrame,
    reference: tuple = ("ResNet-50", 32),
) -> pd.DataFrame:
    """Return VALIDATION of WFBP and MG-WFBP on 8, 16 and 32 V100s over two networks.

    throughput : model, batch, network, method, n_workers, one_worker_samples_per_s, samples_per_s
    gradients : model -> GRADIENTS; their ready times are stretched to BACKWARD of T1
    planned : network, n_workers, alpha, beta that MG-WFBP's authors plan its messages with; of
        several rows for one network and n the last counts
    reference : model and n_workers of the one WFBP row a network that sets alpha

    A ring's price is calibrated in two steps. The rows without overlap (BSP) set beta for each
    model and n_workers: T(BSP) = T1 + C(S, n). The reference row sets alpha, the latency of a hop,
    one number a network: the one at which the recursion gives the measured time. Choose it where
    latency is exposed; at 8 workers it hides behind backward, and no row tells it.
    """
    columns = "model batch network method n_workers one_worker_samples_per_s samples_per_s"
    _needs(throughput, columns, "throughput")
    _needs(planned, "network n_workers alpha beta", "planned")
    rows = []
    for network, table in throughput.groupby("network", sort=False):
        alpha = _latency(table, gradients, reference)
        for cell in table[table["method"] != "BSP"].itertuples():
            told = (cell.model, cell.n_workers) == reference and cell.method == "WFBP"
            if cell.n_workers < 8 or told:  # fewer share one node, whose link is another
                continue
            scenario = _on_ring(table, cell.model, cell.n_workers, gradients, alpha)
            if cell.method == "MG-WFBP":
                scenario = replace(scenario, fusion=_merged(planned, network, cell.n_workers))
            predicted = predict(scenario)
            each = cell.samples_per_s / cell.n_workers
            told = f"BSP of the model, WFBP of {reference[0]} at {reference[1]}"
            what = ("ddl-benchmarks", cell.model, network, cell.n_workers, cell.method)
            what = (*what, "scaling factor")
            measured = each / cell.one_worker_samples_per_s
            rows.append(_row(what, measured, predicted.scaling_factor, told))
    table = _noted(pd.DataFrame(rows), "overlap hides less: messages slow compute", over=OFF)
    return _noted(table, "a hop's latency differs between models", under=-OFF)


def _latency(table: pd.DataFrame, gradients: dict, reference: tuple) -> float:
    """Return the alpha at which WFBP of the reference takes its measured time, s a hop."""
    measured_s = _iteration_s(table, *reference, "WFBP")

    def late_s(alpha: float) -> float:
        scenario = _on_ring(table, *reference, gradients, alpha)
        return predict(scenario).iteration_s - measured_s

    return _solved(late_s, HIGHEST_HOP_S, "alpha")


def _on_ring(table, model: str, n: int, gradients: dict, alpha: float) -> Scenario:
    """Return WFBP on the ring of this alpha on which one message takes what BSP exposes."""
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
    found = _found(planned, "planned", network=network, n_workers=n)
    alpha, beta = found[["alpha", "beta"]].iloc[-1]
    return MergedGradients(Affine(Link(alpha, beta)), int(n))


def _iteration_s(table: pd.DataFrame, model: str, n: int, method: str) -> float:
    cell = _found(table, "throughput", model=model, n_workers=n, method=method).iloc[0]
    return cell["batch"] * n / cell["samples_per_s"]


def validate_horovod(
    runs: pd.DataFrame, gradients: pd.DataFrame, small_message_s: float = 0.30 * MS
) -> pd.DataFrame:
    """Return VALIDATION of Horovod 0.20.3 with and without fusion (64 MiB, 5 ms), ResNet-50.

    runs : setting (one worker, fusion on, fusion off), n_workers, seconds, messages
    gradients : GRADIENTS with the ready times of that model and device
    small_message_s : published time of a message of 1 KiB or less there: the latency

    A message takes small_message_s + beta S; beta is the one at which the run with fusion takes its
    measured time. The gap to the run without is then predicted. Ticks of Horovod's thread come at
    any phase: the mean over four counts. The lone worker, which waited for its data, sets T1.
    """
    _needs(runs, "setting n_workers seconds messages", "runs")
    check(gradients, GRADIENTS, "gradients")
    for how in ("one worker", "fusion on", "fusion off"):
        _found(runs, "runs", setting=how)
    at = runs.set_index("setting")
    n, backward_s = int(at.loc["fusion on", "n_workers"]), gradients["ready_s"].max()
    fused = phases(HorovodFusion(64 * MIB, 5 * MS, "0.20.3"))
    alone = phases(HorovodFusion(0, 5 * MS, "0.20.3"))

    def seconds(beta: float, policies: list) -> float:
        cost = Affine(Link(small_message_s, beta))
        one = Scenario(gradients, at.loc["one worker", "seconds"], backward_s, n, cost, PerTensor())
        return float(np.mean([predict(replace(one, fusion=p)).iteration_s for p in policies]))

    on_s, off_s = at.loc[["fusion on", "fusion off"], "seconds"]
    beta = _solved(lambda beta: seconds(beta, fused) - on_s, HIGHEST_BYTE_S, "beta")
    found = {"fusion off": alone, "fusion on": fused}
    found = {how: np.mean([len(fuse(gradients, p)) for p in found[how]]) for how in found}
    latency = "small messages, and the run with fusion"
    what = ("huyutuo", "ResNet-50", "V100, 16 Gbit/s", n)
    gap_s = seconds(beta, alone) - on_s
    table = pd.DataFrame(
        [
            _row((*what, "off - on", "s an iteration"), off_s - on_s, gap_s, latency),
            _row((*what, "fusion off", "s an iteration"), off_s, on_s + gap_s, latency),
            *(
                _row((*what, how, "messages an iteration"), at.loc[how, "messages"], count, "-")
                for how, count in found.items()
            ),
        ]
    )
    return _noted(table, "messages of 0.2 MB took longer than alpha + beta S there", under=-OFF)


def validate_gpus(
    speed: pd.DataFrame, gradients: pd.DataFrame, reference: str = "p100"
) -> pd.DataFrame:
    """Return VALIDATION of ResNet-50 on four devices over one network: a trend, not an aim.

    speed : gpu, backend ("one worker" or the network), n_workers, images_per_s of all; 64 a worker
    gradients : GRADIENTS; their ready times are stretched to BACKWARD of each device's T1
    reference : the device whose rows set the price: one beta for each network and n_workers, at
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
        target = measured[_found(cells, "speed", gpu=reference)["gpu"].iloc[0]]
        beta = _solved(lambda b, n=n, t=target: t - factor(reference, n, b), HIGHEST_BYTE_S, "beta")
        for gpu in measured.index.drop(reference):
            what = ("BatchAI", "ResNet-50", backend, n, gpu, "scaling factor")
            told = f"{reference}, same network and n"
            rows.append(_row(what, measured[gpu], factor(gpu, n, beta), told))
    return _noted(pd.DataFrame(rows), "not the network: as slow on one node", over=OFF)


def validate_contention(contention: pd.DataFrame) -> pd.DataFrame:
    """Return VALIDATION of m all-reduces that share one link, from the time of one alone: a trend.

    contention : n_jobs, nbytes, seconds (the mean latency). One that is alone takes C; m that
    start together get 1/m of the bandwidth each, and all end at m C, if all is transfer.
    """
    _needs(contention, "n_jobs nbytes seconds", "contention")
    rows, columns = [], ["n_jobs", "nbytes", "seconds"]
    for cell in contention.loc[contention["n_jobs"] > 1, columns].itertuples(index=False):
        m, nbytes, seconds = cell
        alone_s = _found(contention, "contention", n_jobs=1, nbytes=nbytes)["seconds"].iloc[0]
        zeros, transfer_s = np.zeros(m), np.full(m, alone_s)
        predicted = share(zeros, zeros, transfer_s, zeros, m)[1].mean()
        case = f"{m} at once, {nbytes / MIB:.0f} MiB"
        what = ("dl-scheduling", "all-reduce", case, m, "shared link", "s a message")
        rows.append(_row(what, seconds, predicted, "one alone"))
    return _noted(pd.DataFrame(rows), "messages disturb each other beyond sharing", under=-OFF)


def validate_pollux(rows: pd.DataFrame, gradients: dict, nodes: int = 4) -> pd.DataFrame:
    """Return VALIDATION of iterations on more nodes than were fitted, OSF and the model of Pollux.

    rows : PLACEMENTS of any number of applications of one cluster
    gradients : application -> GRADIENTS of its model
    nodes : rows on at most so many nodes calibrate both models, all others are predicted
    """
    check(rows, PLACEMENTS, "rows")
    few = rows["n_nodes"] <= nodes
    if few.all():
        raise ValueError(f"rows: expected some on more than {nodes} nodes to predict, found none")
    ours = fit_placements(rows[few], gradients)
    tables = []
    for name, found in rows.groupby("application", sort=False):
        fitted, cells = found[found["n_nodes"] <= nodes], found[found["n_nodes"] > nodes]
        at = (cells["n_nodes"], cells["n_workers"], cells["batch"])
        told = {"OSF": "all applications", "Pollux": name}
        for method, model in {"OSF": ours[name], "Pollux": fit_pollux(fitted)}.items():
            table = pd.DataFrame({"dataset": "Pollux", "model": name}, index=cells.index)
            table["case"] = [f"{n} nodes, batch {b}" for n, b in zip(at[0], at[2], strict=True)]
            table = table.assign(n_workers=at[1], method=method, quantity="s an iteration")
            table = table.assign(measured=cells["step_s"], predicted=model(*at))
            table["error"] = table["predicted"] / table["measured"] - 1
            told_by = f"placements of at most {nodes} nodes, {told[method]}"
            tables.append(table.assign(calibrated_on=told_by, note=""))
    table = pd.concat(tables, ignore_index=True)
    few = f"at most {nodes} nodes do not tell how the price grows with n"
    return _noted(_noted(table, few, under=-OFF), "placements of one size scatter", over=OFF)


def one_link_or_own(rows: pd.DataFrame, gradients: dict, nodes: int = 4) -> pd.DataFrame:
    """Return mean absolute errors where all applications share a link, and each has its own.

    rows, gradients, nodes : as in validate_pollux. A row a model and method; the columns are
    forecasts from so many nodes for more, and from one node less for just so many.
    """
    check(rows, PLACEMENTS, "rows")
    few, errors = rows[rows["n_nodes"] <= nodes], {}
    for case, found, most in (
        (f"from {nodes}", rows, nodes),
        (f"{nodes} from {nodes - 1}", few, nodes - 1),
    ):
        parts = [part for _, part in found.groupby("application")]
        for link, cut in (("one link", [found]), ("own links", parts)):
            cells = pd.concat([validate_pollux(part, gradients, most) for part in cut])
            by_model = summary(cells, ("model", "method")).set_index(["model", "method"])
            errors[f"{case}, {link}"] = by_model["mean_absolute"]
    return pd.DataFrame(errors)


def _noted(table: pd.DataFrame, note: str, over=np.inf, under=-np.inf) -> pd.DataFrame:
    """Return the table with the note where the error is above `over` or below `under`."""
    off = (table["error"] > over) | (table["error"] < under)
    return table.assign(note=table["note"].mask(off, note))


def _found(table: pd.DataFrame, what: str, **where) -> pd.DataFrame:
    """Return the rows that have these values, or raise ValueError when there is none."""
    same = np.logical_and.reduce([table[name] == value for name, value in where.items()])
    if not same.any():
        wanted = ", ".join(f"{name} {value}" for name, value in where.items())
        raise ValueError(f"{what}: expected a row of {wanted}; found none")
    return table[same]


def _solved(late: Callable, highest: float, what: str) -> float:
    """Return the price from 0 up to highest at which late, which rises with it, is 0.

    0 where a free link is late already; raises ValueError where the highest is not late enough.
    """
    if late(0.0) >= 0:
        return 0.0
    if late(highest) < 0:
        raise ValueError(
            f"{what}: no price up to {highest:g} s gives the measured time of the calibrating row; "
            "look at its units"
        )
    return brentq(late, 0.0, highest, xtol=1e-12 * highest)


def _needs(table: pd.DataFrame, columns: str, what: str):
    check(table, dict.fromkeys(columns.split(), "as the docstring describes it"), what)


def _row(what: tuple, measured: float, predicted: float, calibrated_on: str) -> dict:
    values = (*what, measured, predicted, predicted / measured - 1, calibrated_on, "")
    return dict(zip(VALIDATION, values, strict=True))
