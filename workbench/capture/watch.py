"""Detect lost workers: all beat in a shared store, and one that is left names those who do not.

A worker that is killed, stopped or cut off leaves the others waiting inside a collective that
cannot end. So a thread in each worker watches the beats of the next rank. The first that finds one
silent prints a message, and every process ends. Files written so far stay as they are.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

_BEAT_S = 0.5
_HASTE_S = 4.0  # without a beat, after a first sign of trouble: eight beats missed
_PATIENCE_S = 20.0  # rank 0 waits so long until others know of its end, on a busy machine
_TERMINATED = 128 + signal.SIGTERM  # as shells number it


@contextlib.contextmanager
def watched(rank: int, n_workers: int, timeout_s: float, *, has_store: bool = True) -> Iterator:
    """Watch the other workers for a while; end this process when one of them is lost.

    The first worker that detects it, within timeout_s, prints one message. A worker that raises an
    error is lost, too: the first to fail raises its error, the others just end. Without a store
    (mpi, whose launcher ends all workers when one is lost) nothing is watched.
    """
    if not has_store or n_workers < 2:
        yield
        return
    watch = _Watch(rank, n_workers, timeout_s)
    with _signals_to(watch):
        watch.start()
        try:
            yield
        except BaseException as error:  # also sys.exit() in the user's model
            watch.failed(error)
            raise
        finally:
            watch.end()


@contextlib.contextmanager
def _signals_to(watch: "_Watch") -> Iterator:
    """Let the watch receive SIGTERM instead of the work: launchers send it to those left."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    fd = signal.set_wakeup_fd(watch.waking.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGTERM, before)


class _Watch(threading.Thread):
    """The thread that beats and checks others' beats, on its own connection."""

    def __init__(self, rank: int, n_workers: int, timeout_s: float):
        super().__init__(daemon=True)
        self.rank, self.n_workers, self.timeout_s = rank, n_workers, timeout_s
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"watch{attempt}", store)
        self.over = False
        self.woken, self.waking = socket.socketpair()
        self.waking.setblocking(False)
        self._beat()

    def run(self) -> None:
        try:
            self._watch()
        except Exception:  # the store is gone; torch has several errors for that
            time.sleep(_BEAT_S)
            if not self.over:
                # Without a store nobody knows whether another has spoken: the next rank speaks.
                self._end("rank 0, which holds the store, does not answer", self.rank == 1)

    def _watch(self) -> None:
        following = (self.rank + 1) % self.n_workers
        last, since = -1, time.monotonic()
        while not self.over:
            ready, _, _ = select.select([self.woken], [], [], _BEAT_S)
            terminated = bool(ready) and signal.SIGTERM in self.woken.recv(64)
            self._beat()
            beats = self._beats(following)
            if beats != last or self._left(following):
                last, since = beats, time.monotonic()
            if self.store.add("spoken", 0) and not self.over:
                self._end("", speaks=False)
            if terminated or time.monotonic() - since > self.timeout_s / 2:
                self._look(terminated)

    def _look(self, terminated: bool) -> None:
        lost = self.lost()
        if self.over or not (lost or terminated):
            return
        self._end(_named(lost) if lost else f"rank {self.rank} was ended by SIGTERM")

    def lost(self) -> list[int]:
        """Return the ranks that do not beat for _HASTE_S and have not left."""
        others = [rank for rank in range(self.n_workers) if rank != self.rank]
        before = {rank: self._beats(rank) for rank in others}
        until = time.monotonic() + _HASTE_S
        while time.monotonic() < until:
            time.sleep(_BEAT_S / 2)
            self._beat()
        return [r for r in others if self._beats(r) == before[r] and not self._left(r)]

    def failed(self, error: BaseException) -> None:
        """Leave with an error: return to raise the first one, otherwise name the lost and end."""
        with contextlib.suppress(RuntimeError):
            if isinstance(error, RuntimeError) and not self.store.add("spoken", 0):
                # A collective fails most often because another worker has ended.
                if lost := self.lost():
                    self._end(_named(lost))
            self.over = True  # the thread must not end this process before the error is raised
            if self.store.add("spoken", 1) > 1:
                self._end("", speaks=False)
            if not explained(error):
                _say(f"rank {self.rank} failed: {type(error).__name__}: {error}")
            if self.rank == 0:
                self._wait_for_others()
            return
        self._end("rank 0, which holds the store, does not answer", self.rank == 1)

    def _wait_for_others(self) -> None:
        """Keep the store, which rank 0 may hold, until the others know, at most _PATIENCE_S."""
        until = time.monotonic() + _PATIENCE_S
        while not all(map(self._left, range(1, self.n_workers))) and time.monotonic() < until:
            time.sleep(_BEAT_S / 10)

    def end(self) -> None:
        """Stop watching; others no longer expect this worker's beats."""
        self.over = True
        with contextlib.suppress(RuntimeError):  # the store may have left before
            self.store.add(f"left/{self.rank}", 1)
        with contextlib.suppress(BlockingIOError):
            self.waking.send(b"\0")
        self.join(_HASTE_S)

    def _beat(self) -> None:
        self.store.add(f"beat/{self.rank}", 1)

    def _beats(self, rank: int) -> int:
        return self.store.add(f"beat/{rank}", 0)

    def _left(self, rank: int) -> bool:
        return bool(self.store.add(f"left/{rank}", 0))

    def _end(self, message: str, speaks: bool | None = None) -> None:
        """End this process at once: its main thread may wait forever."""
        if speaks is None:
            speaks = self.store.add("spoken", 1) == 1
        if speaks:
            _say(message)
        with contextlib.suppress(RuntimeError):
            self.store.add(f"left/{self.rank}", 1)
        if not speaks or self.rank == 0:
            # Launchers blame the first to end, and rank 0 may hold the store that others read.
            time.sleep(_HASTE_S)
        os._exit(_TERMINATED if message.endswith("SIGTERM") else 1)


def explained(error: BaseException) -> bool:
    """Return whether this package raised an error, whose message then says what to do."""
    *_, (raising, _) = traceback.walk_tb(error.__traceback__)
    ours = raising.f_globals["__name__"].startswith(__package__.partition(".")[0])
    return ours and isinstance(error, ValueError | OSError)


def _say(message: str) -> None:
    sys.stderr.write(f"\nworkbench.capture: {message}; files written so far are kept\n")
    sys.stderr.flush()


def _named(ranks: list[int]) -> str:
    each = ", ".join(map(str, ranks))
    return f"rank {each} was lost" if len(ranks) == 1 else f"ranks {each} were lost"
