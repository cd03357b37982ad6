"""Ranks for test_apply: plans compared with DDP, on gloo.

    python apply_child.py N_WORKERS OUT.json MODEL,MODEL

Each rank is forked, so torch is imported once; OUT has for each check whether it held on every
rank.
"""

import contextlib
import copy
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


def as_plan(messages):
    return Plan(counts=tuple(map(len, messages))), [n for message in messages for n in message]


def train(model, batch, loss, iterations=2):
    """Return gradients of the last iteration, and the parameters and buffers after it.

    Nothing is updated in the first, in which DDP sends other messages than later.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(iterations + 1):
        optimizer.zero_grad()
        torch.manual_seed(number)  # dropout
        loss(model(batch[0]), batch[1]).backward()
        grads = {
            k: None if p.grad is None else p.grad.clone() for k, p in trained(model.module).items()
        }
        if number:
            optimizer.step()
    return grads, {k: v.clone() for k, v in model.module.state_dict().items()}


def same(a, b):
    def equal(x, y):
        return x is y if x is None or y is None else torch.equal(x, y)

    return all(equal(a[0][k], b[0][k]) for k in a[0]) and all(equal(a[1][k], b[1][k]) for k in a[1])


def model_checks(name, rank, n):
    work = workload(name, 2, small=True)  # the same seed, hence the same weights, on all ranks
    batch = next(iter(workload(name, 2, small=True, seed=rank).batches))

    def run(model, iterations=2):
        return train(model, batch, work.loss, iterations)

    plain = DistributedDataParallel(copy.deepcopy(work.model), bucket_cap_mb=0.02)
    expected = run(plain)
    plan, order = as_plan(messages_of(plain))
    yield "several messages", len(plan.counts) > 2
    for how in ("hooks", "auto"):
        model = apply_plan(copy.deepcopy(work.model), plan, order, how=how)
        yield f"equals DDP in DDP's messages, {how}", same(run(model), expected)
        yield f"sends DDP's messages, {how}", messages_of(model) == messages_of(plain)
    for policy in (FixedBuffer(15_000), PerTensor()) if n == 2 else ():
        model = apply_plan(copy.deepcopy(work.model), policy)
        found = run(model)
        yield f"other messages, {type(policy).__name__}", messages_of(model) != messages_of(plain)
        yield f"equals DDP to the bit, {type(policy).__name__}", same(found, expected)
    # In other messages more than two workers' values are added up in another order.
    fresh = DistributedDataParallel(copy.deepcopy(work.model), bucket_cap_mb=0.02)
    a, b = (run(m, 0)[0] for m in (fresh, apply_plan(copy.deepcopy(work.model), FixedBuffer(9e3))))
    alone = copy.deepcopy(work.model)
    torch.manual_seed(0)
    work.loss(alone(batch[0]), batch[1]).backward()
    within = []
    for key, parameter in alone.named_parameters():
        size = parameter.grad.abs()
        dist.all_reduce(size)
        within.append(((a[key] - b[key]).abs() <= (n - 1) * EPS / n * size).all().item())
    yield "other messages differ by rounding at most", all(within)


def accumulation(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    xs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(rank))

    def run(model):
        for _ in range(3):
            model.zero_grad()
            with model.no_sync():
                for x in xs[:2]:
                    model(x).square().mean().backward()
            model(xs[2]).square().mean().backward()
        return {k: p.grad.clone() for k, p in trained(model.module).items()}, {}

    plain = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1e-4)
    expected = run(plain)
    plan, order = as_plan(messages_of(plain))
    yield len(plan.counts) > 1 and same(
        run(apply_plan(copy.deepcopy(model), plan, order)), expected
    )
    yield dist.get_world_size() > 2 or same(run(apply_plan(copy.deepcopy(model), plan)), expected)
    local = copy.deepcopy(model)
    sum(local(x).square().mean() for x in xs).backward()
    yield not torch.equal(local[0].weight.grad, expected[0]["0.weight"])


def unused(rank):
    torch.manual_seed(0)
    model = Branches()
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank)), None

    def loss(found, _):
        return found.square().mean()

    options = {"find_unused_parameters": True}
    plain = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1e-4, **options)
    expected = train(plain, batch, loss)
    plan, order = as_plan(messages_of(plain))
    planned = apply_plan(copy.deepcopy(model), plan, order, **options)
    yield same(train(planned, batch, loss), expected)
    yield expected[0]["never.weight"] is None and expected[0]["sometimes.weight"] is not None
    unordered = apply_plan(copy.deepcopy(model), PerTensor(), **options)
    yield train(unordered, batch, loss)[0]["never.weight"] is None
    try:
        train(apply_plan(copy.deepcopy(model), PerTensor()), batch, loss)
    except ValueError as error:
        yield str(error).startswith("never.weight:")


def mixed(rank):
    torch.manual_seed(0)
    model = Mixed()
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank)), None

    def loss(found, _):
        return found.square().mean()

    plain = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1e-4)
    expected = train(plain, batch, loss)
    plan, order = as_plan(messages_of(plain))
    planned = apply_plan(copy.deepcopy(model), plan, order)
    yield same(train(planned, batch, loss), expected)
    one = apply_plan(copy.deepcopy(model), Plan(counts=(6,)))
    found = train(one, batch, loss)
    types = [{trained(model)[name].dtype for name in message} for message in messages_of(one)]
    yield types == [{torch.float32}, {torch.bfloat16}]  # one message of the plan, two on the wire
    yield dist.get_world_size() > 2 or same(found, expected)


def normalised(rank):
    """Training and evaluation in turns, with statistics that differ by worker until sent."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    xs = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(rank))

    def run(model):
        found = []
        for _ in range(3):
            model.zero_grad()
            (model(xs[0]).square().mean() + model(xs[1]).mean()).backward()  # two forwards
            model.eval()
            with torch.no_grad():
                found.append(model(xs[0]))
            model.train()
        named = {k: p.grad.clone() for k, p in trained(model.module).items()}
        return named, dict(enumerate([*found, *model.module.buffers()]))

    expected = run(DistributedDataParallel(copy.deepcopy(model)))
    found = run(apply_plan(copy.deepcopy(model), Plan(counts=(6,))))
    yield same(found, expected)


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
    torch.manual_seed(0)
    first, last = nn.Linear(4, 1000), nn.Linear(1000, 1000)
    model = nn.Sequential(first, nn.Identity(), last)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))
    plain = DistributedDataParallel(copy.deepcopy(model))
    plain(x).square().mean().backward()
    model[1].forward = Failing.apply
    order = ["2.bias", "2.weight", "0.bias", "0.weight"]
    planned = apply_plan(model, Plan(counts=(2, 2)), order, how="hooks")
    with contextlib.suppress(ArithmeticError):
        planned(2 * x).square().mean().backward()
    Failing.fails = False
    planned.zero_grad()
    planned(x).square().mean().backward()
    expected, found = ([p.grad for p in m.module.parameters()] for m in (plain, planned))
    # In other messages more than two workers' values are added up in another order.
    close = torch.equal if dist.get_world_size() == 2 else torch.allclose
    yield all(map(close, expected, found))


def sub_worlds(rank):
    """Two models in pairs of workers, and a worker that is in none of a group."""
    n = dist.get_world_size()
    torch.manual_seed(rank // 2)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, n, 2)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank))
    models = [
        wrap(copy.deepcopy(model))
        for wrap in (
            lambda m: DistributedDataParallel(m, process_group=pairs[rank // 2]),
            lambda m: apply_plan(m, PerTensor(), group=pairs[rank // 2]),
            lambda m: apply_plan(m, Plan(counts=(1, 3)), group=pairs[rank // 2]),
        )
    ]
    for _ in range(2):
        sum(each(x).square().mean() for each in models).backward()
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
    for check in (
        accumulation,
        unused,
        mixed,
        normalised,
        interrupted,
        sub_worlds,
        other_parameters,
    ):
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
        each.join(120)
        if each.exitcode is None:
            each.kill()
    os._exit(any(each.exitcode != 0 for each in ranks))
