"""A module whose gradients are averaged in the messages of a plan, by our own hooks."""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from .hooks import trained
from .plans import Messages


class Planned(nn.Module):
    """A module trained in parallel: one asynchronous all-reduce per message, in the plan's order.

    Used as DistributedDataParallel is: `.module` is the module itself, `no_sync()` accumulates.
    A post-accumulate hook copies each gradient, divided by the workers, into its message's buffer;
    a message is sent when it and those before it are complete; the end of backward waits for all
    and copies the means back. A message of several types of data is sent as one for each type.

    module : on its device, the same on all workers; rank 0's values are sent to the others
    plan : gradients' names in the order they get ready -> Messages
    order : those names; None takes those of the first backward, all of whose gradients are sent
        together at its end

    The hooks are removed when this wrapper is dropped; a copy would not have them, so it cannot be
    copied. Raises ValueError if the parameters have changed since it was made.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Callable[[list[str]], Messages],
        order: list[str] | None,
        *,
        group=None,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
    ):
        super().__init__()
        self.module = module
        self._plan, self._group = plan, group
        self._finds_unused, self._broadcasts = find_unused_parameters, broadcast_buffers
        self._parameters_by_name = trained(module)
        self._synchronises = self._buffers_due = True
        self._expected = False  # whether the gradients of the next backward are to be sent
        self._sent = False  # whether those of the last forward have been
        self._learnt: list[str] | None = [] if order is None else None
        self._used: set[str] = set()  # since the last reduction, this worker's
        self._broadcast([*module.parameters(), *module.buffers()])
        backwards = list(self._parameters_by_name)[::-1]
        self._arrange([backwards] if order is None else plan(order))
        this = weakref.ref(self)  # the module has the hooks and outlives this wrapper
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_accumulated, this, name))
            for name, parameter in self._parameters_by_name.items()
        ]
        weakref.finalize(self, lambda: [hook.remove() for hook in hooks])

    @property
    def messages(self) -> Messages:
        """The gradients in each message, in the order of sending; one message per type of data."""
        return [bucket.names for bucket in self._buckets]

    def forward(self, *inputs, **named):
        if self._expected:  # nothing was sent since: no backward, or one of other parameters
            self._refuse_others()
        if self._buffers_due and self._broadcasts:
            self._broadcast(list(self.module.buffers()))
        # As in DistributedDataParallel: an evaluation after training has rank 0's buffers, too.
        self._buffers_due = self._synchronises and torch.is_grad_enabled()
        if torch.is_grad_enabled():
            self._expected, self._sent = self._synchronises, False
            if self._seen:  # of a backward that an error ended
                self._begin()
        return self.module(*inputs, **named)

    def __reduce_ex__(self, protocol):
        raise ValueError(
            "Planned: cannot be copied or pickled, as the copy would send no gradients. "
            "Copy its .module, or save its state_dict()"
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator:
        """Accumulate gradients without sending them, in forward and backward of this block."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def _arrange(self, messages: Messages) -> None:
        """Make the buffers of messages and prepare for a backward."""
        found = self._parameters_by_name
        self._buckets = [
            _Bucket({name: found[name] for name in message if found[name].dtype == dtype})
            for message in messages
            for dtype in dict.fromkeys(found[name].dtype for name in message)
        ]
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._made_for = _kinds(found)
        self._begin()

    def _begin(self) -> None:
        self._seen: set[str] = set()
        self._next = 0
        if self._learnt is not None:
            self._learnt = []
        for bucket in self._buckets:
            bucket.empty()

    def _accumulated(self, name: str, grad: torch.Tensor | None) -> None:
        """Take a gradient that is ready; the first makes the end of backward wait for all."""
        self._refuse(name, grad)
        self._used.add(name)
        if not self._expected:
            return
        if not self._seen:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._seen.add(name)
        if self._learnt is not None:
            self._learnt.append(name)
        self._fill(name, grad)

    def _refuse(self, name: str, grad: torch.Tensor | None) -> None:
        if grad is None:
            raise ValueError(
                f"{name}: expected its gradient, got none, as another hook took it. Register such "
                "hooks after apply_plan"
            )
        if name in self._seen or self._sent:
            raise ValueError(
                f"{name}: expected one gradient per forward, got another after it was sent. Run "
                "one backward per forward, and checkpoints with use_reentrant=False"
            )
        if grad.is_sparse:
            raise ValueError(f"{name}: expected a dense gradient (sparse=False), got a sparse one")

    def _fill(self, name: str, grad: torch.Tensor | None) -> None:
        """Put a gradient's share of the mean into its message, and send what is complete."""
        bucket = self._bucket_of[name]
        if grad is None:
            bucket.views[name].zero_()
        else:
            # Divided before the sum, as DistributedDataParallel does: the same bits come out.
            share = 1.0 / dist.get_world_size(self._group)
            torch.mul(grad.detach(), share, out=bucket.views[name])
        bucket.missing -= 1
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._buckets[self._next].send(self._group)
            self._next += 1

    def _finish(self) -> None:
        """Send what waits for unused parameters, wait for all messages, and set the means."""
        unused = [name for name in self._parameters_by_name if name not in self._seen]
        if unused and not self._finds_unused:
            self._begin()
            raise ValueError(
                f"{unused[0]}: expected a gradient in this backward, got none, nor for "
                f"{len(unused) - 1} others. Pass find_unused_parameters=True, and give checkpoints "
                "use_reentrant=False"
            )
        for name in unused:
            self._fill(name, self._parameters_by_name[name].grad)
        self._refuse_others()  # while messages are on their way
        used = self._used_anywhere() if self._finds_unused else self._parameters_by_name
        for bucket in self._buckets:
            bucket.receive(used)
        self._used.clear()
        self._expected, self._sent = False, True
        if self._learnt is not None:
            order = [*self._learnt, *unused[::-1]]
            self._learnt = None
            self._arrange(self._plan(self._of_rank_0(order)))
        self._begin()

    def _refuse_others(self) -> None:
        """Raise ValueError if the parameters to train are not those this was made for."""
        found = _kinds(trained(self.module))
        changed = [n for n in {**found, **self._made_for} if found.get(n) != self._made_for.get(n)]
        if changed:
            self._expected = False
            raise ValueError(
                f"{changed[0]}: expected it as when the plan was applied, got it added, replaced, "
                "frozen or moved. Change the module first, then apply the plan to it"
            )

    def _used_anywhere(self) -> list[str]:
        names = list(self._parameters_by_name)
        device = self._buckets[0].buffer.device
        used = torch.tensor([name in self._used for name in names], dtype=torch.int32).to(device)
        dist.all_reduce(used, group=self._group)
        return [name for name, n in zip(names, used.tolist(), strict=True) if n]

    def _of_rank_0(self, order: list[str]) -> list[str]:
        said = [order]
        device = self._buckets[0].buffer.device
        dist.broadcast_object_list(said, group=self._group, group_src=0, device=device)
        return said[0]

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Give all workers rank 0's values, one type of data at a time."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same])
            # As bytes, because gloo does not know every type of data.
            dist.broadcast(flat.view(torch.uint8), group=self._group, group_src=0)
            parts = flat.split([tensor.numel() for tensor in same])
            # An earlier forward whose backward is to come had the same values or needs none.
            # DistributedDataParallel, too, hides the change from autograd.
            with torch.autograd._unsafe_preserve_version_counter(tuple(same)):
                for tensor, part in zip(same, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))


def _accumulated(planned: weakref.ref, name: str, parameter: nn.Parameter) -> None:
    """Pass a parameter's gradient to its wrapper when it is ready."""
    planned()._accumulated(name, parameter.grad)


def is_planned(parameter: nn.Parameter) -> bool:
    """Return whether a Planned sends the gradients of a parameter already."""
    hooks = (parameter._post_accumulate_grad_hooks or {}).values()
    return any(isinstance(hook, partial) and hook.func is _accumulated for hook in hooks)


def _kinds(parameters: dict[str, nn.Parameter]) -> dict[str, tuple]:
    """Return what buffers depend on: which parameters, their type of data and device."""
    return {name: (id(p), p.dtype, p.device) for name, p in parameters.items()}


class _Bucket:
    """One message: a buffer of gradients of one type of data."""

    def __init__(self, parameters: dict[str, nn.Parameter]):
        self.names, self.parameters = list(parameters), parameters
        first = next(iter(parameters.values()))
        counts = [p.numel() for p in parameters.values()]
        self.buffer = torch.zeros(sum(counts), dtype=first.dtype, device=first.device)
        parts = zip(parameters.items(), self.buffer.split(counts), strict=True)
        self.views = {name: part.view(p.shape) for (name, p), part in parts}
        self.missing, self.work = len(counts), None  # gradients to come, and the message sent

    def empty(self) -> None:
        """Prepare to be filled, after waiting for what an interrupted backward sent."""
        if self.work is not None:
            self.work.wait()
        self.missing, self.work = len(self.names), None

    def send(self, group) -> None:
        self.work = dist.all_reduce(self.buffer, group=group, async_op=True)

    @torch.no_grad()  # also in a backward with create_graph
    def receive(self, used) -> None:
        """Wait for the sum and copy it to the gradients of the parameters used anywhere."""
        self.work.wait()
        self.work = None
        for name, parameter in self.parameters.items():
            if name not in used:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(self.views[name])
