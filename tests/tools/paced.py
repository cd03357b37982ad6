"""Models whose gradients come at the times of real ones, without the work.

Real compute would take the cores that carry the messages, and on a GPU cluster it does not. So
backward sleeps until the time at which each gradient was ready on a GPU, and makes a gradient of
its size, to scale; forward sleeps as well. All else is real: the modules, their parameters,
autograd, the update, and every message.
"""

import itertools
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from workbench.capture import Workload

DATA = Path(__file__).parents[2] / "data"
_VECTORS = 32_000  # bytes; biases and norms are smaller, and join the weight that follows them
_RATE = 2**-10  # of learning
_LSTM = {  # of Zaremba et al., arXiv:1409.2329, "large": 10,000 words, 2 layers of 1500
    "decoder": (10_000 * 1_501, 0.06),
    "lstm.1": (4 * 1_500 * 3_002, 0.55),
    "lstm.0": (4 * 1_500 * 3_002, 0.99),
    "encoder": (10_000 * 1_500, 1.0),
}


@dataclass(frozen=True)
class Paced:
    """A model with sizes 1 / scale of a real one's: layers (name, nbytes, ready_s), forward_s."""

    layers: pd.DataFrame
    forward_s: float
    scale: int


def models() -> dict[str, Paced]:
    """Return the four models of the study, by name.

    ResNet-50 and VGG-16-BN have the ready times of a V100 (data/published), BERT-Base ready times
    spread evenly over its tensors, the LSTM those of a backward through time, which has the
    gradients of a layer when it ends. Their sizes are to scale.
    """
    trace = pd.read_csv(DATA / "published" / "v100_backward_trace.csv", comment="#")
    sizes = pd.read_csv(DATA / "models" / "gradients.csv", comment="#")
    found = {}
    for name, scale in (("resnet50", 20), ("vgg16_bn", 96)):
        layers = trace[trace["model"] == name].merge(sizes, on=["model", "index", "nbytes"])
        forward_s = layers["one_worker_s"].iloc[0] - layers["ready_s"].iloc[-1]
        found[name] = Paced(_scaled(layers, scale), forward_s, scale)
    layers = sizes[sizes["model"] == "bert_base"]
    ready = 0.14 * (layers["index"] + 1) / len(layers)
    found["bert_base"] = Paced(_scaled(layers.assign(ready_s=ready), 64), 0.07, 64)
    rows = [(name, 4 * n, 0.08 * at) for name, (n, at) in _LSTM.items()]
    layers = pd.DataFrame(rows, columns=["name", "nbytes", "ready_s"])
    found["lstm"] = Paced(_scaled(layers, 48), 0.04, 48)
    return found


def _scaled(gradients: pd.DataFrame, scale: int) -> pd.DataFrame:
    """Return layers of gradients in backward order, sizes divided by scale.

    A layer is a weight with the vectors (biases, norms) that come before it in backward.
    """
    weight = gradients["nbytes"] > _VECTORS
    layer = weight.shift(fill_value=False).cumsum().clip(upper=weight.sum() - 1)
    each = gradients.groupby(layer, sort=False)
    # Named by its largest gradient; parameters' names have no dots.
    largest = gradients.loc[each["nbytes"].idxmax(), "name"].str.replace(".", "_")
    table = each.agg(nbytes=("nbytes", "sum"), ready_s=("ready_s", "max")).reset_index(drop=True)
    nbytes = 4 * (table["nbytes"] / (4 * scale)).round().astype("int64").clip(lower=1)
    return table.assign(name=largest.to_numpy(), nbytes=nbytes)[["name", "nbytes", "ready_s"]]


def workload(paced: Paced, rank: int = 0) -> Workload:
    """Return a worker's training; every value of its gradients is rank + 1."""
    model = _Model(paced, float(rank + 1))
    batches = itertools.repeat((torch.ones(1), torch.zeros(1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    return Workload(model, batches, lambda y, _: y.sum(), optimizer)


def trained_well(model: nn.Module, n_workers: int, iterations: int) -> bool:
    """Return whether a model was moved by the mean of all workers' gradients in each iteration.

    Exactly so, because float32 represents these numbers exactly.
    """
    due = -_RATE * (n_workers + 1) / 2 * iterations
    return all(bool((weight == due).all()) for weight in model.parameters())


class _Model(nn.Module):
    """A chain of layers without compute, in forward order."""

    def __init__(self, paced: Paced, value: float):
        super().__init__()
        self.forward_s, self.pace = paced.forward_s, _Pace()
        self.layers = []
        for name, nbytes, ready_s in paced.layers[::-1].itertuples(index=False):
            weight = nn.Parameter(torch.zeros(nbytes // 4))
            self.register_parameter(name, weight)
            self.layers.append((weight, ready_s, value))

    def forward(self, x):
        self.pace.begin()
        for weight, ready_s, value in self.layers:
            x = _Layer.apply(x, weight, self.pace, ready_s, value)
        self.pace.wait(self.forward_s)
        return _Begin.apply(x, self.pace)


class _Pace:
    """Sleeps until a time after a beginning; a late sleep does not delay the next."""

    def begin(self) -> None:
        self.began = time.perf_counter()

    def wait(self, seconds: float) -> None:
        left = self.began + seconds - time.perf_counter()
        if left > 0:
            time.sleep(left)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, pace, ready_s, value):
        ctx.given = weight.numel(), pace, ready_s, value
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        numel, pace, ready_s, value = ctx.given
        made = torch.full((numel,), value)
        pace.wait(ready_s)
        return grad, made, None, None, None


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, pace):
        ctx.pace = pace
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        ctx.pace.begin()
        return grad, None
