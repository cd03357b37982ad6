"""Applying a plan: gradients equal to DDP's, the messages planned, and what is refused."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from apply_child import Failing
from conftest import refusal
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from workbench.capture import apply_plan, messages_of, read_plan, write_plan
from workbench.costs import Link, Ring
from workbench.fusion import FixedBuffer, OneMessage, PerTensor, Plan
from workbench.whatif import optimal_fusion

CHILD = Path(__file__).parent / "tools" / "apply_child.py"
NAMES = ["2.bias", "2.weight", "0.bias", "0.weight"]


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def table(names=NAMES):
    rows = {"name": names, "nbytes": [4, 16, 16, 48], "ready_s": [0.0, 0.0, 1e-3, 1e-3]}
    return pd.DataFrame(rows)


@pytest.fixture
def alone():
    """A process group of one worker, in which a plan can be applied in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


FEW, MORE = "resnet50,bert-base", "vgg16,gpt2-small,lstm,transformer"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_workers", "models", "least"),
    [
        (2, FEW, 30),
        pytest.param(2, MORE, 40, marks=pytest.mark.all),
        pytest.param(4, f"{FEW},{MORE}", 40, marks=pytest.mark.all),
    ],
)
def test_gradients_of_every_plan_are_those_of_ddp(n_workers, models, least, tmp_path):
    """What held on all gloo workers; see apply_child."""
    out = tmp_path / "verdicts.json"
    command = [sys.executable, str(CHILD), str(n_workers), str(out), models]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(out.read_text())
    assert len(verdicts) > least
    assert [name for name, held in verdicts.items() if not held] == []


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(counts=(1, 3)), [["2.bias"], ["2.weight", "0.bias", "0.weight"]]),
        (FixedBuffer(32), [["2.bias", "2.weight"], ["0.bias"], ["0.weight"]]),
        (PerTensor(), [[name] for name in NAMES]),  # which torch's limits of 1 KiB cannot make
    ],
)
def test_messages_are_those_planned(alone, plan, expected):
    model = apply_plan(net(), plan, table())
    assert messages_of(model) == expected
    assert not isinstance(model, DistributedDataParallel)


def test_without_gradients_the_order_is_that_of_the_first_backward(alone):
    model = apply_plan(net(), Plan(counts=(1, 3)))
    assert len(messages_of(model)) == 1
    model(torch.ones(2, 3)).sum().backward()
    first, second = messages_of(model)
    assert len(first) == 1 and first[0].startswith("2.")  # the last layer's come first
    assert set(second) == set(NAMES) - set(first)


def test_an_optimal_plan_goes_by_a_file_into_a_model(alone, tmp_path):
    plan = optimal_fusion(table(), Ring(Link(1e-4, 1e-9)), 2)
    again, names = read_plan(write_plan(tmp_path / "plan.json", plan, table()))
    assert (again, names) == (plan, NAMES)
    model = apply_plan(net(), again, names)
    assert list(map(len, messages_of(model))) == list(plan.counts) == [2, 2]


def test_ddp_is_taken_where_its_limits_make_the_plan(alone):
    model = apply_plan(net(), OneMessage(), table())
    assert isinstance(model, DistributedDataParallel)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
    assert [set(message) for message in messages_of(model)] == [set(NAMES)]


def wide():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def settled(model):
    """Train until DistributedDataParallel has regrouped its messages and says so."""
    for _ in range(5):
        model(torch.ones(2, 64)).sum().backward()


@pytest.mark.parametrize("how", ["auto", "ddp"])
def test_another_order_than_that_of_the_plan_is_warned_of_once(alone, how):
    plan = Plan(counts=(1, 3))
    wrong = ["0.weight", "0.bias", "2.weight", "2.bias"]
    model = apply_plan(wide(), plan, wrong, how=how)
    with pytest.warns(
        UserWarning, match="^gradients: expected the order.*2 other messages"
    ) as said:
        settled(model)
    assert len(said) == 1
    settled(model)  # in silence


@pytest.mark.parametrize("how", ["auto", "ddp", "hooks"])
def test_the_order_of_the_plan_is_sent_in_silence(alone, how):
    model = apply_plan(wide(), Plan(counts=(2, 2)), NAMES, how=how)
    with model.no_sync():  # accumulates, which does not change the order
        settled(model)
    settled(model)
    assert [set(message) for message in messages_of(model)] == [set(NAMES[:2]), set(NAMES[2:])]


def test_gradients_of_one_worker_are_the_modules_own(alone):
    model, x = net(), torch.randn(5, 3)
    model(x).sum().backward()
    own = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    wrapped = apply_plan(model, PerTensor())
    found = wrapped(x)
    with torch.no_grad():  # a forward without gradients does not disturb
        wrapped(x)
    found.sum().backward()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), own, strict=True))


def test_frozen_parameters_are_not_in_the_plan(alone):
    model = net()
    model[0].requires_grad_(False)
    assert messages_of(apply_plan(model, PerTensor(), NAMES[:2])) == [["2.bias"], ["2.weight"]]


def test_without_a_process_group_the_plan_is_refused():
    refusal(lambda: apply_plan(net(), PerTensor()), "group", "none")


def lazy():
    return nn.Sequential(nn.LazyLinear(2))


def half_on_meta():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def with_sparse_buffer():
    model = net()
    model.register_buffer("state", torch.eye(2).to_sparse())
    return model


@pytest.mark.filterwarnings("ignore:(Lazy|Complex) modules:UserWarning")
@pytest.mark.parametrize(
    ("make", "plan", "gradients", "argument", "value"),
    [
        (net, PerTensor, None, "plan", PerTensor),
        (net, 5, None, "plan", 5),
        (net, Plan(counts=(1, 2)), None, "", ""),  # in the words of fusion
        (net, Plan(counts=(5,)), None, "", ""),
        (net, Plan(counts=(3,)), table(), "", ""),
        (lambda: 7, PerTensor(), None, "module", 7),
        (net, PerTensor(), "2.bias", "gradients", "2.bias"),
        (net, PerTensor(), 4, "gradients", 4),
        (net, PerTensor(), table().replace("0.bias", "1.bias"), "gradients", "1.bias"),
        (net, PerTensor(), NAMES[1:], "gradients", "2.bias"),
        (net, PerTensor(), [*NAMES, "0.bias"], "gradients", "0.bias"),
        (nn.Tanh, PerTensor(), None, "module", "none"),
        (lambda: net().to(torch.complex64), PerTensor(), None, "module", "0.weight"),
        (lazy, PerTensor(), None, "module", "0.weight"),
        (half_on_meta, PerTensor(), None, "module", "1.weight"),
        (with_sparse_buffer, PerTensor(), None, "module", "state"),
        (lambda: nn.Embedding(3, 2, sparse=True), PerTensor(), None, "module", "sparse"),
        (net, lambda _: [0, 0, 2, 2], NAMES, "", ""),
    ],
)
def test_what_cannot_be_applied_is_refused(alone, make, plan, gradients, argument, value):
    refusal(lambda: apply_plan(make(), plan, gradients), argument, value)


@pytest.mark.parametrize("how", ["ddp", "nccl"])
def test_a_way_that_cannot_make_the_plan_is_refused(alone, how):
    refusal(lambda: apply_plan(net(), PerTensor(), table(), how=how), "how")


@pytest.mark.parametrize(
    "wrap",
    [
        DistributedDataParallel,
        lambda module: apply_plan(module, PerTensor()),
        lambda module: nn.Sequential(DistributedDataParallel(module), nn.Tanh()),
    ],
)
def test_a_module_wrapped_already_wholly_or_in_part_is_refused(alone, wrap):
    refusal(lambda: apply_plan(wrap(net()), PerTensor()), "module")


def test_a_plan_follows_another_only_once_that_is_dropped(alone):
    inner, x = net(), torch.ones(2, 3)
    model = apply_plan(inner, PerTensor())
    model(x).sum().backward()
    refusal(lambda: apply_plan(inner, OneMessage()), "module", "0.weight")
    del model
    assert not any(p._post_accumulate_grad_hooks for p in inner.parameters())
    model = apply_plan(inner, Plan(counts=(1, 3)))
    model(x).sum().backward()
    assert list(map(len, messages_of(model))) == [1, 3]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_copy_that_would_send_nothing_is_refused(alone, duplicate):
    refusal(lambda: duplicate(apply_plan(net(), PerTensor())), "Planned")


def unfrozen(model):
    model.module[0].requires_grad_(True)


def assigned(model):
    model.load_state_dict(model.state_dict(), assign=True)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (unfrozen, "0.weight"),
        (assigned, "2.weight"),
        (lambda model: model.module.append(nn.Linear(1, 1)), "3.weight"),
        (
            lambda model: model.module.register_parameter("more", nn.Parameter(torch.ones(1))),
            "more",
        ),
        (lambda model: model.double(), "2.weight"),
    ],
)
def test_parameters_changed_later_are_refused_by_name(alone, change, name):
    inner = net()
    inner[0].requires_grad_(False)
    model = apply_plan(inner, PerTensor())
    model(torch.ones(2, 3)).sum().backward()
    change(model)
    x = torch.ones(2, 3, dtype=model.module[0].weight.dtype)

    def train_on():  # a parameter without a gradient is seen by the next forward
        for _ in range(2):
            model(x).sum().backward()

    refusal(train_on, name)


def test_a_gradient_that_another_hook_takes_is_refused(alone):
    inner = net()
    inner[2].bias.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    model = apply_plan(inner, PerTensor())
    refusal(lambda: model(torch.ones(2, 3)).sum().backward(), "2.bias", "none")


def test_a_graph_of_the_gradients_does_not_hold_their_messages(alone):
    model = apply_plan(net(), PerTensor())
    loss = model(torch.ones(2, 3)).square().sum()
    names, parameters = zip(*model.module.named_parameters(), strict=True)
    torch.autograd.grad(loss, parameters, create_graph=True)
    loss.backward()
    assert {n for n, p in zip(names, parameters, strict=True) if p.grad is not None} == set(NAMES)


def test_parameters_of_no_size_and_buffers_of_any_type_are_taken(alone):
    inner = net()
    inner.register_parameter("none", nn.Parameter(torch.empty(0)))
    for at, dtype in enumerate((torch.bool, torch.complex64, torch.float8_e4m3fn, torch.int16)):
        inner.register_buffer(f"state{at}", torch.ones(2).to(dtype))
    model = apply_plan(inner, OneMessage())
    (model(torch.ones(2, 3)).sum() + inner.none.sum()).backward()
    assert set(messages_of(model)[0]) == {*NAMES, "none"}


class Odd(nn.Module):
    """A layer that is used twice, once under a checkpoint that runs its own backward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return checkpoint(self.layer, self.layer(x), use_reentrant=True)


def test_two_gradients_of_a_parameter_in_one_backward_are_refused(alone):
    model = apply_plan(Odd(), OneMessage(), find_unused_parameters=True)
    x = torch.ones(2, 3, requires_grad=True)
    refusal(lambda: model(x).sum().backward(), "layer", "another")


def test_a_second_backward_of_a_forward_is_refused(alone):
    model = apply_plan(net(), PerTensor(), table())
    found = model(torch.ones(2, 3)).sum()
    found.backward(retain_graph=True)
    refusal(found.backward, "2.bias", "another")


def test_a_parameter_without_gradient_is_named_and_the_next_backward_is_whole(alone):
    model = apply_plan(net(), PerTensor(), table())
    x = torch.ones(2, 3)
    model(x)
    refusal(model.module[2](torch.ones(2, 4)).sum().backward, "0.weight", "1 others")
    model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("gradients", [None, table()])
def test_a_backward_that_fails_in_the_middle_leaves_the_next_one_whole(
    alone, gradients, monkeypatch
):
    inner = net()
    inner[1] = nn.Sequential(nn.Tanh())
    inner[1].forward = lambda x: Failing.apply(torch.tanh(x))
    model = apply_plan(inner, PerTensor(), gradients)
    with pytest.raises(ArithmeticError):
        model(torch.ones(2, 3)).sum().backward()
    monkeypatch.setattr(Failing, "fails", False)
    model(torch.ones(2, 3)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert len(messages_of(model)) == 4


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"messages": []}', '{"messages": [[]]}', '{"messages": [[1]]}']
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    refusal(lambda: read_plan(path), "plan.json")
