"""Apply a plan to training: DistributedDataParallel or our own hooks send its messages."""

import inspect
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..base.checks import a_policy, checked, instance, one_of, require, shown
from ..base.units import MIB
from ..fusion import Plan
from ..fusion.frameworks import cap_list
from .hooks import check_trained, trained
from .planned import Planned, is_planned
from .plans import Messages, grouped, in_order, unready_gradients


@checked(
    module=instance(nn.Module, "a torch.nn.Module"),
    plan=a_policy,
    how=one_of(["auto", "ddp", "hooks"]),
)
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
    gradients : the GRADIENTS the plan was made for, or just their names in that order. By default
        the order is that of the first backward, whose gradients are all sent at its end; a policy
        may then group by sizes alone
    group : of processes; all of them by default
    find_unused_parameters, broadcast_buffers : as in DistributedDataParallel. Messages with an
        unused parameter are sent when backward ends
    how : "ddp" is DistributedDataParallel with bucket_cap_mb_list (torch 2.13 or later), "hooks"
        is Planned. "auto" takes the former if its rule makes exactly these messages of gradients
        that get ready in the order given and have one type of data, otherwise the latter. In
        another order DistributedDataParallel sends other messages, and warns once it has settled

    The gradients are the means over workers. In fp32 they equal DistributedDataParallel's to the
    bit on two workers with any plan, and on more workers if the messages are the same. Otherwise
    gloo and NCCL add up in an order that depends on a value's place in its message, and a mean may
    differ by (n - 1) * eps / n * (sum over workers of the value's size), eps = 2**-23.

    Raises ValueError for a module that is wrapped already, has nothing to train, has lazy, complex,
    sharded or sparse gradients, is on several devices or differs between workers; and for a plan of
    other gradients. Backward of Planned raises it for a parameter without a gradient unless
    find_unused_parameters is set, for gradients that come after theirs were sent, in a second
    backward of one forward or of reentrant checkpoints, and for parameters that were added,
    replaced, frozen or moved later.
    """
    _check(module, group)
    _check_same(module, group)
    table = None if gradients is None else in_order(gradients, module)
    if isinstance(plan, Plan):
        plan(unready_gradients(module, trained(module)))  # raises unless it covers them all
    if how != "hooks" and table is not None and not find_unused_parameters:
        planned = grouped(plan, table)
        if caps := _caps(module, planned):
            # Not passed unless False: torch 2.13 warns of it.
            options = {} if broadcast_buffers else {"broadcast_buffers": False}
            model = in_ddp(module, process_group=group, bucket_cap_mb_list=caps, **options)
            _watch_order(model, planned)
            return model
    expected = "a plan that bucket_cap_mb_list can make: " + _NEEDS
    require(how != "ddp", "how", expected, found="another", do='Take how="hooks"')
    order = None if table is None else table["name"].astype(str).tolist()

    def messages(names: list[str]) -> Messages:
        return grouped(plan, unready_gradients(module, names) if table is None else table)

    return Planned(
        module,
        messages,
        order,
        group=group,
        find_unused_parameters=find_unused_parameters,
        broadcast_buffers=broadcast_buffers,
    )


_NEEDS = (
    "torch 2.13 or later, gradients in order, one type of data, messages that a limit can close, "
    "no unused parameters"
)


def in_ddp(module: nn.Module, **options) -> DistributedDataParallel:
    """Return the module in DistributedDataParallel, on its device."""
    device = next(iter(trained(module).values())).device
    return DistributedDataParallel(
        module, device_ids=[device] if device.type == "cuda" else None, **options
    )


def messages_of(model: nn.Module) -> Messages:
    """Return the names in each message of a wrapped module, in the order they are sent.

    Those of a DistributedDataParallel are final after the second iteration. [] for other modules.
    """
    if isinstance(model, Planned):
        return model.messages
    if not isinstance(model, DistributedDataParallel):
        return []
    name_of = {id(parameter): name for name, parameter in trained(model.module).items()}
    buckets = model.reducer._get_zeros_like_grad_buckets()
    return [[name_of[id(p)] for p in bucket.parameters()] for bucket in buckets]


def _caps(module: nn.Module, messages: Messages) -> list[float] | None:
    """Return limits in MiB with which torch makes exactly these messages, or None."""
    found = trained(module)
    order = [name for message in messages for name in message]
    known = inspect.signature(DistributedDataParallel).parameters
    if "bucket_cap_mb_list" not in known or len({p.dtype for p in found.values()}) > 1:
        return None
    table = unready_gradients(module, order)
    caps = cap_list(table, Plan(counts=tuple(map(len, messages))))[1].caps
    made, _ = dist._compute_bucket_assignment_by_size([found[n] for n in order], list(caps))
    same = [[order[index] for index in indices] for indices in made] == messages
    return [cap / MIB for cap in caps] if same else None


def _watch_order(model: DistributedDataParallel, messages: Messages) -> None:
    """Warn once if the messages it settled on, in the order it saw, are not those planned."""

    def look(wrapped: DistributedDataParallel, *_) -> None:
        if not wrapped._get_ddp_logging_data().get("has_rebuilt_buckets"):
            return
        handle.remove()
        found = messages_of(wrapped)
        if list(map(set, found)) != list(map(set, messages)):
            warnings.warn(
                f"gradients: expected the order in which they get ready, got another; {len(found)} "
                f"other messages are sent than the {len(messages)} planned. Take the order of a "
                'profile of this model, or how="hooks"',
                stacklevel=2,
            )

    handle = model.register_forward_pre_hook(look)


def _check(module: nn.Module, group) -> None:
    """Raise ValueError for a module that a plan cannot be applied to."""
    started = dist.is_available() and dist.is_initialized()
    do = "Start with torchrun and call torch.distributed.init_process_group()"
    require(started, "group", "a process group", found="none", do=do)
    outside = group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0
    do = "Apply the plan on its members alone"
    require(not outside, "group", "one with this worker", found="one without it", do=do)
    for name, part in module.named_modules():
        wrapped = isinstance(part, Planned | DistributedDataParallel)
        found, do = f"{shown(part)} {name}", "" if name else "Pass module.module"
        require(not wrapped, "module", "no wrapper in or around it", found=found, do=do)
    check_trained(module, "module")
    for name, parameter in trained(module).items():
        do = "Drop what apply_plan returned before (del model)"
        planned = is_planned(parameter)
        require(not planned, "module", "no other plan", found=f"one applied to {name}", do=do)
        kind = (
            parameter.is_complex() and "complex" or hasattr(parameter, "device_mesh") and "sharded"
        )
        require(not kind, "module", "real, whole parameters", found=f"{name}, which is {kind}")
    devices = sorted({str(p.device) for p in trained(module).values()})
    require(len(devices) == 1, "module", "one device", found=", ".join(devices))
    for name, buffer in module.named_buffers():
        dense = buffer.layout == torch.strided
        require(dense, "module", "dense buffers", found=f"{name}, which is sparse")


def _check_same(module: nn.Module, group) -> None:
    """Raise ValueError, on every worker, unless all have the same parameters and buffers."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    own = [(name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors]
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, other in enumerate(everyone):
        found = f"others on rank {rank} than on rank 0"
        same = other == everyone[0]
        require(same, "module", "the same parameters and buffers on all workers", found=found)
