"""Ranks for test_apply: plans compared with DDP, on gloo.

    python apply_child.py N_WORKERS OUT.json MODEL,MODEL

Each rank is forked, so torch is imported once; OUT has for each check whether it held on every
rank.
"""

import contextlib
import copy
import itertools
import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.capture import apply_plan, messages_of, workload
from workbench.capture.hooks import trained
from workbench.fusion import FixedBuffer, PerTensor, Plan

EPS = 2**-23  # of float32
SEVERAL = {"bucket_cap_mb": 1e-4}  # a limit that makes several messages


class Branches(nn.Module):
    """Some parameters are used by rank 0 alone, some by no rank; registered last to first."""

    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 2)
        self.first = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x + self.sometimes(x) if dist.get_rank() == 0 else x)


class Mixed(nn.Module):
    """Some parameters of float32, some of bfloat16."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.middle = nn.Linear(8, 8).to(torch.bfloat16)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        x = self.middle(torch.tanh(self.first(x)).to(torch.bfloat16))
        return self.last(torch.tanh(x).to(torch.float32))


def in_ddp(model, **options):
    return DistributedDataParallel(copy.deepcopy(model), **options)


def planned(model, *plan, **options):
    return apply_plan(copy.deepcopy(model), *plan, **options)


def as_ddp(model, ddp, **options):
    """Return the model in the messages of a trained DistributedDataParallel."""
    messages = messages_of(ddp)
    plan = Plan(counts=tuple(map(len, messages)))
    return planned(model, plan, [name for message in messages for name in message], **options)


def seeded(make):
    torch.manual_seed(0)
    return make()


def inputs(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


def mean_square(found, _=None):
    return found.square().mean()


def gradients(model):
    return {k: None if p.grad is None else p.grad.clone() for k, p in trained(model).items()}


def train(model, batch, loss=mean_square, iterations=2):
    """Return gradients of the last iteration, and the parameters and buffers after it.

    Nothing is updated in the first, in which DDP sends other messages than later.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(iterations + 1):
        optimizer.zero_grad()
        torch.manual_seed(number)  # dropout
        loss(model(batch[0]), batch[1]).backward()
        grads = gradients(model.module)
        if number:
            optimizer.step()
    return grads, {k: v.clone() for k, v in model.module.state_dict().items()}


def same(found, expected):
    def equal(x, y):
        return x is y if x is None or y is None else torch.equal(x, y)

    pairs = zip(found, expected, strict=True)
    return all(equal(a[k], b[k]) for a, b in pairs for k in a)


def two_or(held):
    """Return whether a check held that is of two workers, or True on more.

    In other messages more than two workers' values are added up in another order.
    """
    return dist.get_world_size() > 2 or held()


def model_checks(name, rank, n):
    work = workload(name, 2, small=True)  # the same seed, hence the same weights, on all ranks
    batch = next(iter(workload(name, 2, small=True, seed=rank).batches))
    ddp = in_ddp(work.model, bucket_cap_mb=0.02)
    expected = train(ddp, batch, work.loss)
    yield "several messages", len(messages_of(ddp)) > 2
    for how in ("hooks", "auto"):
        model = as_ddp(work.model, ddp, how=how)
        yield f"equals DDP in DDP's messages, {how}", same(train(model, batch, work.loss), expected)
        yield f"sends DDP's messages, {how}", messages_of(model) == messages_of(ddp)
    for policy in (FixedBuffer(15_000), PerTensor()) if n == 2 else ():
        model = planned(work.model, policy)
        found = train(model, batch, work.loss)
        yield f"other messages, {type(policy).__name__}", messages_of(model) != messages_of(ddp)
        yield f"equals DDP to the bit, {type(policy).__name__}", same(found, expected)
    both = in_ddp(work.model, bucket_cap_mb=0.02), planned(work.model, FixedBuffer(9e3))
    a, b = (train(model, batch, work.loss, 0)[0] for model in both)
    alone = copy.deepcopy(work.model)
    torch.manual_seed(0)
    work.loss(alone(batch[0]), batch[1]).backward()
    within = []
    for key, parameter in alone.named_parameters():
        size = parameter.grad.abs()
        dist.all_reduce(size)
        within.append(((a[key] - b[key]).abs() <= (n - 1) * EPS / n * size).all().item())
    yield "other messages differ by rounding at most", all(within)


def chain(*widths):
    layers = [nn.Linear(n, m) for n, m in itertools.pairwise(widths)]
    return nn.Sequential(*[each for layer in layers for each in (layer, nn.Tanh())][:-1])


def accumulation(rank):
    model, xs = seeded(lambda: chain(4, 8, 8, 1)), inputs(rank, 3, 5, 4)

    def run(model):
        for _ in range(3):
            model.zero_grad()
            with model.no_sync():
                for x in xs[:2]:
                    mean_square(model(x)).backward()
            mean_square(model(xs[2])).backward()
        return [gradients(model.module)]

    ddp = in_ddp(model, **SEVERAL)
    expected = run(ddp)
    yield len(messages_of(ddp)) > 1 and same(run(as_ddp(model, ddp)), expected)
    plan = Plan(counts=tuple(map(len, messages_of(ddp))))
    yield two_or(lambda: same(run(planned(model, plan)), expected))
    sum(mean_square(model(x)) for x in xs).backward()
    yield not torch.equal(model[0].weight.grad, expected[0]["0.weight"])


def unused(rank):
    model, batch = seeded(Branches), (inputs(rank, 5, 4), None)
    ddp = in_ddp(model, **SEVERAL, find_unused_parameters=True)
    expected = train(ddp, batch)
    yield same(train(as_ddp(model, ddp, find_unused_parameters=True), batch), expected)
    yield expected[0]["never.weight"] is None and expected[0]["sometimes.weight"] is not None
    unordered = planned(model, PerTensor(), find_unused_parameters=True)
    yield train(unordered, batch)[0]["never.weight"] is None
    try:
        train(planned(model, PerTensor()), batch)
    except ValueError as error:
        yield str(error).startswith("never.weight:")


def mixed(rank):
    model, batch = seeded(Mixed), (inputs(rank, 5, 4), None)
    ddp = in_ddp(model, **SEVERAL)
    expected = train(ddp, batch)
    yield same(train(as_ddp(model, ddp), batch), expected)
    one = planned(model, Plan(counts=(6,)))
    found = train(one, batch)
    types = [{trained(model)[name].dtype for name in message} for message in messages_of(one)]
    yield types == [{torch.float32}, {torch.bfloat16}]  # one message of the plan, two are sent
    yield two_or(lambda: same(found, expected))


def normalised(rank):
    """Training and evaluation in turns, with statistics that differ by worker until sent."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    xs = inputs(rank, 2, 5, 4)

    def run(model):
        found = []
        for _ in range(3):
            model.zero_grad()
            (mean_square(model(xs[0])) + model(xs[1]).mean()).backward()  # two forwards
            model.eval()
            with torch.no_grad():
                found.append(model(xs[0]))
            model.train()
        return gradients(model.module), dict(enumerate([*found, *model.module.buffers()]))

    yield same(run(planned(model, Plan(counts=(6,)))), run(in_ddp(model)))


class Failing(torch.autograd.Function):
    """The identity, whose backward fails while `fails` holds."""

    fails = True

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Failing.fails:
            raise ArithmeticError
        return grad


def interrupted(rank):
    """A backward that fails while its first message, of 4 MB, is being sent; then a whole one."""
    model, x = seeded(lambda: chain(4, 1000, 1000)), inputs(rank, 5, 4)
    model[1] = nn.Identity()
    ddp = in_ddp(model)
    mean_square(ddp(x)).backward()
    model[1].forward = Failing.apply
    order = ["2.bias", "2.weight", "0.bias", "0.weight"]
    ours = apply_plan(model, Plan(counts=(2, 2)), order, how="hooks")
    with contextlib.suppress(ArithmeticError):
        mean_square(ours(2 * x)).backward()
    Failing.fails = False
    ours.zero_grad()
    mean_square(ours(x)).backward()
    expected, found = ([p.grad for p in each.module.parameters()] for each in (ddp, ours))
    close = torch.equal if dist.get_world_size() == 2 else torch.allclose
    yield all(map(close, expected, found))


def sub_worlds(rank):
    """Two models in pairs of workers, and a worker that is not in a group."""
    torch.manual_seed(rank // 2)
    pairs = [dist.new_group([k, k + 1]) for k in range(0, dist.get_world_size(), 2)]
    model, x, pair = chain(4, 8, 1), inputs(rank, 5, 4), pairs[rank // 2]
    plans = PerTensor(), Plan(counts=(1, 3))
    models = [in_ddp(model, process_group=pair), *(planned(model, p, group=pair) for p in plans)]
    for _ in range(2):
        sum(mean_square(each(x)) for each in models).backward()
    expected, *found = ([p.grad for p in each.module.parameters()] for each in models)
    yield all(all(map(torch.equal, each, expected)) for each in found)
    first = dist.new_group([0])
    try:
        apply_plan(nn.Linear(2, 2), PerTensor(), group=first)
        yield rank == 0
    except ValueError as error:
        yield rank > 0 and str(error).startswith("group:")


def other_parameters(rank):
    model = nn.Linear(2, 2)
    model.register_buffer("state", torch.zeros(1 if rank == 0 else 3))
    for other in (nn.Linear(2, 2 if rank == 0 else 3), model):
        try:
            apply_plan(other, PerTensor())
        except ValueError as error:
            yield str(error).startswith("module:") and "rank 1" in str(error)


def rank_of(rank, n, store, out, models):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=n, store=dist.FileStore(store, n))
    held = {}
    for name in models.split(","):
        held |= {f"{name}: {what}": held_ for what, held_ in model_checks(name, rank, n)}
    checks = (accumulation, unused, mixed, normalised, interrupted, sub_worlds, other_parameters)
    for check in checks:
        held |= {f"{check.__name__} {at}": found for at, found in enumerate(check(rank))}
    everywhere = torch.tensor([float(each) for each in held.values()])
    dist.all_reduce(everywhere, dist.ReduceOp.MIN)
    if rank == 0:
        verdicts = {name: bool(each) for name, each in zip(held, everywhere, strict=True)}
        Path(out).write_text(json.dumps(verdicts))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    n, out, models = int(sys.argv[1]), *sys.argv[2:]
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=rank_of, args=(r, n, out + ".store", out, models)) for r in range(n)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(900)
        if each.exitcode is None:
            each.kill()
    os._exit(any(each.exitcode != 0 for each in ranks))
