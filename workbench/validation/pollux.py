"""Iterations of applications placed over the nodes of a cluster: OSF, and the model of Pollux.

Both are fitted to PLACEMENTS, the timings published with Pollux (OSDI 2021). OSF takes one link for
the cluster, whatever is trained on it; the model of Pollux has parameters for each application.
"""

from dataclasses import asdict, dataclass, field

import numpy as np
import pandas as pd
from scipy.optimize import least_squares, minimize

from ..base.checks import require
from ..base.tables import check
from ..costs import Link, Ring
from ..fusion import DDPBuckets, fuse
from ..timeline import NormalJitter
from ..timeline.queues import beyond_compute

PLACEMENTS = {
    "application": "what was trained",
    "n_nodes": "nodes",
    "n_workers": "workers on all nodes",
    "batch": "samples per worker",
    "step_s": "s per iteration",
    "sync_s": "s of it from the last gradient to the end of synchronisation",
}
_RING = Ring(Link(0.0, 0.0))
_SCALE = np.array([1e-3, 1e-9, 1e-9, 1e-9])  # brings the numbers of a Cluster to the order of 1


@dataclass(frozen=True)
class PolluxModel:
    """The throughput model of Pollux: s per iteration of K workers on N nodes with batch b each.

        T_grad = alpha_c + beta_c b        T_net = alpha + beta max(K - 2, 0)
        T = (T_grad^gamma + T_net^gamma)^(1/gamma)

    alpha and beta are alpha_n, beta_n across nodes and alpha_r, beta_r inside one; T_net is 0 for
    one worker. Source: adaptdl/goodput.py of petuum/adaptdl.
    """

    alpha_c: float
    beta_c: float
    alpha_n: float
    beta_n: float
    alpha_r: float
    beta_r: float
    gamma: float

    def compute_s(self, batch) -> np.ndarray:
        """Return T_grad, s."""
        return self.alpha_c + self.beta_c * np.asarray(batch, float)

    def __call__(self, n_nodes, n_workers, batch) -> np.ndarray:
        """Return T, s; the arguments broadcast."""
        nodes, workers = np.asarray(n_nodes), np.asarray(n_workers)
        where = [workers == 1, nodes > 1]
        alpha = np.select(where, [0.0, self.alpha_n], self.alpha_r)
        beta = np.select(where, [0.0, self.beta_n], self.beta_r)
        net = alpha + beta * np.maximum(workers - 2, 0)
        return (self.compute_s(batch) ** self.gamma + net**self.gamma) ** (1 / self.gamma)


def fit_pollux(rows: pd.DataFrame) -> PolluxModel:
    """Return the model of Pollux for one application, fitted as Pollux does.

    Minimises RMSE(log T) + RMSE(log T_grad) + 1e-3 (gamma - 1)^2 + 1e-2 sum of (beta / alpha)^2
    over both links, with gamma from 1 to 10 and all else above 0. It starts where Pollux does and
    from another gamma, as one may end in a local minimum. T_grad is compared with step_s - sync_s.
    """
    check(rows, PLACEMENTS, "fit_pollux")
    at = _at(rows)
    step, compute = np.log(rows["step_s"]), np.log(rows["step_s"] - rows["sync_s"])

    def loss(values):
        model = PolluxModel(*values)
        errors = np.log(model(*at)) - step, np.log(model.compute_s(at[2])) - compute
        _, _, alpha_n, beta_n, alpha_r, beta_r, gamma = values
        kept_small = (beta_n / alpha_n) ** 2 + (beta_r / alpha_r) ** 2
        spread = sum(np.sqrt(np.mean(each**2)) for each in errors)
        return spread + 1e-3 * (gamma - 1) ** 2 + 1e-2 * kept_small

    bounds = [(1e-8, None)] * 6 + [(1.0, 10.0)]
    starts = ([0.1, 0.01] * 3 + [gamma] for gamma in (1.001, 2.0))
    found = min((minimize(loss, start, bounds=bounds) for start in starts), key=lambda f: f.fun)
    return PolluxModel(*map(float, found.x))


@dataclass(frozen=True)
class Cluster:
    """The link of a cluster: alpha in s per hop between nodes, betas in s per byte moved.

        C = 2(n-1)/n S inside                             on one node
        C = 2(n-1) alpha + 2(n-1)/n S beta                on two nodes (pair), or more (between)

    Two nodes have a separate price, as in NCCL's tables (src/graph/tuning.cc has columns for 1, 2,
    and 4 or more nodes).
    """

    alpha: float
    inside: float
    pair: float
    between: float

    def seconds(self, nbytes, n_workers, n_nodes) -> np.ndarray:
        """Return C, s; the arguments broadcast."""
        nodes = np.asarray(n_nodes)
        beta = np.select([nodes == 1, nodes == 2], [self.inside, self.pair], self.between)
        moved, hops = _RING.moved(nbytes, n_workers), _RING.messages(n_workers)
        return hops * self.alpha * (nodes > 1) + moved * beta


@dataclass(frozen=True, eq=False)
class Placed:
    """OSF for one application on a cluster: rows -> s per iteration.

        Tn = compute + exposed + jitter compute z(n)

    buckets : what DDP sends, ready_s as shares of backward
    compute_s : s of compute by batch, interpolated between measured batches
    backward : share of the compute that backward takes
    jitter : standard deviation of a worker's compute, as a share of it; z(n) is the expected
        largest of n standard normals
    """

    cluster: Cluster
    buckets: pd.DataFrame = field(repr=False)
    compute_s: pd.Series = field(repr=False)
    backward: float
    jitter: float

    def __call__(self, n_nodes, n_workers, batch) -> np.ndarray:
        """Return Tn, s, shape (rows,)."""
        workers, where = np.unique(n_workers, return_inverse=True)
        slowest = NormalJitter(1.0)(workers)[where]
        compute = np.interp(batch, self.compute_s.index, self.compute_s)
        backward = self.backward * compute
        ready = self.buckets["ready_s"].to_numpy()[:, None] * backward
        nbytes = self.buckets["nbytes"].to_numpy()[:, None]
        seconds = self.cluster.seconds(nbytes, np.asarray(n_workers), n_nodes)
        exposed, _, _ = beyond_compute(ready, 0.0, seconds, backward, 0.0)
        return compute + exposed + self.jitter * compute * slowest


def fit_placements(rows: pd.DataFrame, gradients: dict) -> dict:
    """Return application -> Placed: OSF fitted to PLACEMENTS of all applications of one cluster.

    gradients : application -> GRADIENTS of its model; only proportions of ready times count. DDP
        sends them in its buckets

    The compute of a batch is the median of step_s - sync_s. The four numbers of the one Cluster,
    and share of backward and jitter of each application, are least squares of log(Tn / step_s),
    none below 0. Raises ValueError if an application has no gradients, or if no row has several
    workers on one, on two, or on three or more nodes.
    """
    check(rows, PLACEMENTS, "fit_placements")
    for name in rows["application"].unique():
        require(name in gradients, "gradients", f"a table for {name!r}", found="none")
    nodes = set(rows.loc[rows["n_workers"] > 1, "n_nodes"].clip(upper=3))
    for count, words in ((1, "one node"), (2, "two nodes"), (3, "three or more nodes")):
        expected = f"several workers on {words}, which set the price there"
        require(count in nodes, "rows n_nodes", expected, found="none")
    parts = {name: part for name, part in rows.groupby("application", sort=False)}
    fixed = {name: _fixed(part, gradients[name]) for name, part in parts.items()}

    def models(values: np.ndarray) -> dict:
        cluster = Cluster(*map(float, values[:4] * _SCALE))
        own = values[4:].reshape(-1, 2).tolist()
        each = zip(fixed.items(), own, strict=True)
        return {name: Placed(cluster, *known, *two) for (name, known), two in each}

    def errors(values: np.ndarray) -> np.ndarray:
        found = models(values)
        return np.concatenate([np.log(found[k](*_at(t)) / t["step_s"]) for k, t in parts.items()])

    start = np.r_[0.1, 0.5, 1.5, 1.5, [2 / 3, 0.01] * len(parts)]
    most = np.r_[[np.inf] * 4, [1.0, np.inf] * len(parts)]
    return models(least_squares(errors, start, bounds=(0.0, most)).x)


def _fixed(rows: pd.DataFrame, gradients: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Return buckets, ready at shares of backward, and the compute of each batch."""
    shares = gradients.assign(ready_s=gradients["ready_s"] / gradients["ready_s"].max())
    compute_s = (rows["step_s"] - rows["sync_s"]).groupby(rows["batch"]).median()
    return fuse(shares, DDPBuckets()), compute_s


def _at(rows: pd.DataFrame) -> list[np.ndarray]:
    return [rows[name].to_numpy() for name in ("n_nodes", "n_workers", "batch")]


def fitted_parameters(models: dict) -> pd.DataFrame:
    """Return one row per application: alpha, betas, share of backward, jitter."""
    each = {
        name: asdict(m.cluster) | {"backward": m.backward, "jitter": m.jitter}
        for name, m in models.items()
    }
    return pd.DataFrame.from_dict(each, orient="index")
