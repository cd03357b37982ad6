"""Marks in time: on the host, or on the device where it computes."""

import time

import torch


class Clock:
    """Marks in time: the host's clock, or events on the GPU's current stream."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self):
        """Return a mark: now on the host, or once the GPU has done what it was given so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Return when the device has done all it was given, so that marks can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def between(self, first, last) -> float:
        """Return the s from one mark to another."""
        if self.device.type != "cuda":
            return last - first
        return first.elapsed_time(last) / 1e3  # elapsed_time is in ms
