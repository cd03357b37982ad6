"""From a plan to a training run: DistributedDataParallel, or hooks of our own, in its messages."""

import inspect
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..base.checks import check_callable, shown
from ..base.units import MIB
from ..fusion import Plan
from ..fusion.frameworks import cap_list
from .hooks import check_trained, trained
from .planned import Planned, is_planned
from .plans import Messages, grouped, in_order, table_of


def apply_plan(
    module: nn.Module,
    plan,
    gradients=None,
    *,
    group=None,
    find_unused_parameters: bool = False,
    broadcast_buffers: bool = True,
    how: str = "auto",
) -> nn.Module:
    """Return the module wrapped for training in parallel, its gradients fused as planned.

    Parameters
    ----------
    module : on its device, not wrapped; in a process group
    plan : what optimal_fusion returns, or any policy such as FixedBuffer(64 * MIB)
    gradients : the GRADIENTS the plan was made for, or just their names in that order. Where not
        given, the order is that of the first backward, whose gradients all travel at its end; a
        policy may then group by sizes alone
    group : of processes; all of them by default
    find_unused_parameters, broadcast_buffers : as in DistributedDataParallel. Messages with an
        unused parameter leave when backward ends
    how : "ddp" is DistributedDataParallel with bucket_cap_mb_list (torch 2.13 or later), "hooks"
        is Planned, "auto" the former where its rule makes exactly these messages of gradients that
        get ready in the order given, and of one type of data, else the latter. In another order
        DistributedDataParallel sends other messages, and warns of it once it has settled

    The gradients are the means over workers. In fp32 they are DistributedDataParallel's to the
    bit on two workers, whatever the plan, and on more where the messages are the same. Else gloo
    and NCCL add up in an order that depends on a value's place in its message, and a mean may
    differ by (n - 1) * eps / n * (sum over workers of the value's size), eps = 2**-23.

    Raises ValueError for what cannot be sent so: a module wrapped already, with nothing to train,
    of lazy, complex, sharded or sparse gradients, on several devices, different between workers;
    for a plan of other gradients; and, of Planned in backward, for a parameter without a gradient
    unless find_unused_parameters, for gradients that come after theirs were sent, in a second
    backward of one forward or of reentrant checkpoints, and for parameters that were added,
    replaced, frozen or moved later.
    """
    check_callable(plan, "plan", "Plan(counts=(2, 3))")
    if how not in ("auto", "ddp", "hooks"):
        raise ValueError(f'how: expected "auto", "ddp" or "hooks", got {shown(how)}')
    _check(module, group)
    _check_same(module, group)
    table = None if gradients is None else in_order(gradients, module)
    if isinstance(plan, Plan):
        plan(table_of(module, trained(module)))  # raises unless it covers them all
    caps = None
    if how != "hooks" and table is not None and not find_unused_parameters:
        planned = grouped(plan, table)
        caps = _caps(module, planned)
    if caps:
        device = next(iter(trained(module).values())).device
        ids = [device] if device.type == "cuda" else None
        options = {"process_group": group, "bucket_cap_mb_list": caps, "device_ids": ids}
        if not broadcast_buffers:
            options["broadcast_buffers"] = False
        model = DistributedDataParallel(module, **options)
        _watch_order(model, planned)
        return model
    if how == "ddp":
        raise ValueError(
            'how="ddp": bucket_cap_mb_list cannot make this plan here: it needs torch 2.13 or '
            "later, the gradients in order, one type of data, messages that a limit can close, and "
            'no unused parameters. Take how="hooks"'
        )
    order = None if table is None else table["name"].astype(str).tolist()

    def messages(names: list[str]) -> Messages:
        return grouped(plan, table_of(module, names) if table is None else table)

    return Planned(
        module,
        messages,
        order,
        group=group,
        find_unused_parameters=find_unused_parameters,
        broadcast_buffers=broadcast_buffers,
    )


def messages_of(model: nn.Module) -> Messages:
    """Return the names in each message of a wrapped module, in the order they are sent.

    Of a DistributedDataParallel they are final after the second iteration; [] for any other module.
    """
    if isinstance(model, Planned):
        return model.messages
    if not isinstance(model, DistributedDataParallel):
        return []
    name_of = {id(parameter): name for name, parameter in trained(model.module).items()}
    buckets = model.reducer._get_zeros_like_grad_buckets()
    return [[name_of[id(p)] for p in bucket.parameters()] for bucket in buckets]


def _caps(module: nn.Module, messages: Messages) -> list[float] | None:
    """Return limits in MiB by which torch makes exactly these messages; None if there are none."""
    found = trained(module)
    order = [name for message in messages for name in message]
    known = inspect.signature(DistributedDataParallel).parameters
    if "bucket_cap_mb_list" not in known or len({p.dtype for p in found.values()}) > 1:
        return None
    table = table_of(module, order)
    caps = cap_list(table, Plan(counts=tuple(map(len, messages))))[1].caps
    made, _ = dist._compute_bucket_assignment_by_size([found[n] for n in order], list(caps))
    same = [[order[index] for index in indices] for indices in made] == messages
    return [cap / MIB for cap in caps] if same else None


def _watch_order(model: DistributedDataParallel, messages: Messages) -> None:
    """Warn once when the messages it settled on, in the order it saw, are not those planned."""

    def look(wrapped: DistributedDataParallel, *_) -> None:
        if not wrapped._get_ddp_logging_data().get("has_rebuilt_buckets"):
            return
        handle.remove()
        found = messages_of(wrapped)
        if list(map(set, found)) != list(map(set, messages)):
            warnings.warn(
                f"apply_plan: gradients get ready in another order than that of the plan, so "
                f"{len(found)} other messages are sent than the {len(messages)} planned. Give the "
                'gradients in the order that a profile of this model tells, or how="hooks"',
                stacklevel=2,
            )

    handle = model.register_forward_pre_hook(look)


def _check(module: nn.Module, group) -> None:
    """Raise ValueError for a module that a plan cannot be applied to."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError(
            "apply_plan: expected a process group, got none: start with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
        raise ValueError("group: this worker is not in it; apply the plan on its members alone")
    if not isinstance(module, nn.Module):
        raise ValueError(f"module: expected a torch.nn.Module, got {shown(module)}")
    _check_bare(module)
    check_trained(module, "module")
    found = trained(module)
    for name, parameter in found.items():
        if parameter.is_complex() or hasattr(parameter, "device_mesh"):
            kind = "complex" if parameter.is_complex() else "sharded (a DTensor)"
            raise ValueError(f"module: {name} is {kind}, to which a plan cannot be applied")
    devices = sorted({str(p.device) for p in found.values()})
    if len(devices) > 1:
        raise ValueError(f"module: expected one device, got {', '.join(devices)}")
    for name, buffer in module.named_buffers():
        if buffer.layout != torch.strided:
            raise ValueError(f"module: buffer {name} is sparse, to which a plan cannot be applied")


def _check_bare(module: nn.Module) -> None:
    """Raise ValueError for a module whose gradients another wrapper sends, wholly or in part."""
    if isinstance(module, Planned | DistributedDataParallel):
        raise ValueError(f"module: expected it bare, got {shown(module)}; pass module.module")
    for name, part in module.named_modules():
        if isinstance(part, Planned | DistributedDataParallel):
            raise ValueError(
                f"module: expected it bare, but its part {name} is {shown(part)} already"
            )
    for name, parameter in trained(module).items():
        if is_planned(parameter):
            raise ValueError(
                f"module: a plan is applied to {name} already. Drop what apply_plan returned for "
                "it (del model) before you apply another"
            )


def _check_same(module: nn.Module, group) -> None:
    """Raise ValueError, on every worker, unless all have the same parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    own = [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors]
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise ValueError(
                f"module: rank {rank} has other parameters or buffers than rank 0 ({len(other)} "
                f"and {len(everyone[0])}, or other shapes); expected the same on all workers"
            )
