"""A cost after optimisations: compressed messages, a faster link, extra copies."""

from dataclasses import dataclass, replace

import numpy as np

from .links import Cost


@dataclass(frozen=True)
class Adjusted:
    """A cost with compressed messages, a faster link or an extra copy of each message.

        C'(S) = C(0)/latency + (C(S/compression) - C(0))/bandwidth + copy_s_per_byte S

    copy_s_per_byte is spent in the queue and is 0 for one worker. C is any cost.
    """

    cost: Cost
    compression: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    copy_s_per_byte: float = 0.0

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        nbytes, n = np.asarray(nbytes, float), np.asarray(n_workers, float)
        idle = np.asarray(self.cost(np.zeros_like(nbytes), n_workers), float)
        seconds = np.asarray(self.cost(nbytes / self.compression, n_workers), float)
        copies = np.where(n > 1, self.copy_s_per_byte, 0.0) * nbytes
        return idle / self.latency + (seconds - idle) / self.bandwidth + copies


def around(all_reduce: Cost, cost: Cost) -> Cost:
    """Return another cost with the adjustments, if any, of a scenario's all_reduce."""
    return replace(all_reduce, cost=cost) if isinstance(all_reduce, Adjusted) else cost


def adjusted(all_reduce: Cost) -> Adjusted:
    """Return a cost that can be adjusted further."""
    return all_reduce if isinstance(all_reduce, Adjusted) else Adjusted(all_reduce)
