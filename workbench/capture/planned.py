"""A module whose gradients are averaged in the messages of a plan, by hooks of our own."""

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from .hooks import trained
from .plans import Messages


class Planned(nn.Module):
    """A module trained in parallel: one asynchronous all-reduce a message, in the plan's order.

    Used as DistributedDataParallel is: `.module` is the module itself, `no_sync()` accumulates.
    A post-accumulate hook copies each gradient, divided by the workers, into its message's buffer;
    a message leaves when it and those before it are complete; the end of backward waits for all
    and copies the means back. A message of several types of data travels as one for each type.

    module : on its device, the same on all workers; rank 0's values are sent to the others
    plan : gradients' names in the order they get ready -> Messages
    order : those names; where not known (None), they are those of the first backward, all of whose
        gradients travel together at its end
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
        for name, parameter in self._parameters_by_name.items():
            parameter.register_post_accumulate_grad_hook(self._hook(name))

    @property
    def messages(self) -> Messages:
        """The gradients in each message, in the order they are sent; types of data apart."""
        return [bucket.names for bucket in self._buckets]

    def forward(self, *inputs, **named):
        if torch.is_grad_enabled():
            if self._buffers_due and self._broadcasts:
                self._broadcast(list(self.module.buffers()))
            self._expected = self._buffers_due = self._synchronises
            self._sent = False
            if self._seen:  # of a backward that an error ended
                self._begin()
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator:
        """Accumulate gradients without sending them, in forward and backward of this block."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def _arrange(self, messages: Messages) -> None:
        """Make the buffers of messages, and begin a backward that has sent none."""
        found = self._parameters_by_name
        self._buckets = [
            _Bucket({name: found[name] for name in message if found[name].dtype == dtype})
            for message in messages
            for dtype in dict.fromkeys(found[name].dtype for name in message)
        ]
        self._bucket_of = {name: bucket for bucket in self._buckets for name in bucket.names}
        self._begin()

    def _begin(self) -> None:
        self._seen: set[str] = set()
        self._next = 0
        if self._learnt is not None:
            self._learnt = []
        for bucket in self._buckets:
            bucket.missing = len(bucket.names)

    def _hook(self, name: str) -> Callable:
        def accumulated(parameter: nn.Parameter) -> None:
            self._refuse(name, parameter.grad)
            self._used.add(name)
            if not self._expected:
                return
            if not self._seen:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._seen.add(name)
            if self._learnt is not None:
                self._learnt.append(name)
            self._fill(name, parameter.grad)

        return accumulated

    def _refuse(self, name: str, grad: torch.Tensor) -> None:
        if name in self._seen or self._sent:
            raise ValueError(
                f"{name}: its gradient came again after it was sent, so that it would not be "
                "averaged. Expected one backward a forward, and checkpoints with "
                "use_reentrant=False"
            )
        if grad.is_sparse:
            raise ValueError(f"{name}: its gradient is sparse; expected dense ones (sparse=False)")

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
                f"{unused[0]}: no gradient in this backward, nor for {len(unused) - 1} others. "
                "Expected a gradient for each; pass find_unused_parameters=True, and give "
                "checkpoints use_reentrant=False"
            )
        for name in unused:
            self._fill(name, self._parameters_by_name[name].grad)
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

    def _used_anywhere(self) -> list[str]:
        names = list(self._parameters_by_name)
        device = self._buckets[0].buffer.device
        used = torch.tensor([name in self._used for name in names], dtype=torch.int32)
        used = used.to(device)
        dist.all_reduce(used, group=self._group)
        return [name for name, n in zip(names, used.tolist(), strict=True) if n]

    def _of_rank_0(self, order: list[str]) -> list[str]:
        said = [order]
        device = self._buckets[0].buffer.device
        first = dist.get_global_rank(self._group, 0) if self._group else 0
        dist.broadcast_object_list(said, first, group=self._group, device=device)
        return said[0]

    @torch.no_grad()
    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        """Give all workers rank 0's values, a type of data at a time."""
        first = dist.get_global_rank(self._group, 0) if self._group else 0
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(flat, first, group=self._group)
            for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                tensor.copy_(part.view_as(tensor))


class _Bucket:
    """One message: gradients of one type of data, one after another in a buffer."""

    def __init__(self, parameters: dict[str, nn.Parameter]):
        self.names, self.parameters = list(parameters), parameters
        first = next(iter(parameters.values()))
        counts = [p.numel() for p in parameters.values()]
        self.buffer = torch.zeros(sum(counts), dtype=first.dtype, device=first.device)
        parts = zip(parameters.items(), self.buffer.split(counts), strict=True)
        self.views = {name: part.view(p.shape) for (name, p), part in parts}
        self.missing, self.work = len(counts), None

    def send(self, group) -> None:
        self.work = dist.all_reduce(self.buffer, group=group, async_op=True)

    def receive(self, used) -> None:
        """Wait for the sum and copy it to the gradients of the parameters used anywhere."""
        self.work.wait()
        for name, parameter in self.parameters.items():
            if name not in used:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(self.views[name])
