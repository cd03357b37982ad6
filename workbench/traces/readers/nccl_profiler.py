"""JSON lines of an NCCL profiler plug-in: messages as NCCL sees them, all ranks of a process.

The line of a message (`ncclProfileColl`, `ncclProfileP2p`) times only the host that queues it. Its
time on the GPU comes from the kernel recorded by CUPTI, otherwise from the GPU timers of its
channels (`ncclProfileKernelCh`). Times are us on the host's clock, kept as integer ns.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any

import msgspec
import pandas as pd

from ...base.checks import refuse
from . import chrome
from .collectives import collective, dtype_bytes, is_communication
from .salvage import decoded
from .source import Source, entry

_MESSAGES = ("ncclProfileColl", "ncclProfileP2p")
_CALLS = ("ncclProfileCollApi", "ncclProfileP2pApi", "ncclProfileGroupApi")
_LAUNCH, _CHANNEL = "ncclProfileKernelLaunch", "ncclProfileKernelCh"
_RECORDS = {"event", "state", "cuptiActivity"}
_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")  # NCCL's count is one worker's part
_LARGEST_LINE = 2**20  # bytes; records have hundreds
_INT64_US = 9 * 10**15  # the limit of int64 ns
_Number = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Moment(msgspec.Struct):
    ts: Decimal | None = None  # float64 us would be off by up to 1 ns
    pid: _Number = 0
    tid: _Number = -1


class _Line(msgspec.Struct):
    record: str = msgspec.field(name="recordType", default="")
    type: str = ""
    name: str = ""
    rank: _Rank | None = None
    communicator: int | str | None = msgspec.field(name="commId", default=None)
    start: _Moment | None = None
    stop: _Moment | None = None
    parent: str = msgspec.field(name="parentObj", default="")
    address: str = msgspec.field(name="eventAddr", default="")
    launch: _Number = msgspec.field(name="extCorrId", default=-1)
    stream: Any = None
    timer: _Number | None = msgspec.field(name="pTimer", default=None)
    details: dict[str, Any] = {}


class _Any(msgspec.Struct):
    """The fields that identify such a line."""

    record: Any = msgspec.field(name="recordType", default=None)
    type: Any = None
    performance: Any = msgspec.field(name="coll_perf", default=None)


def recognises(head: bytes) -> bool:
    """Return whether one of the first lines is a record of an NCCL profiler or inspector."""
    for line in head.split(b"\n", 5)[:5]:
        if (found := decoded(line, _Any)) is None:
            continue
        profiler = str(found.type).startswith(("ncclProfile", "ProfilerLifecycle"))
        if profiler or str(found.record) in _RECORDS or isinstance(found.performance, dict):
            return True
    return False


def read(source: Source) -> tuple[pd.DataFrame, dict, list[dict]]:
    """Return EVENTS (with `start_ns`, `end_ns`), information on the file, and LEDGER rows.

    comm rows are kernels with the sum of their messages, or messages by their channels if there are
    no kernels; host rows are API calls and launches. The rank is that within the communicator.
    Raises ValueError if no line times a message on the GPU.
    """
    record = _Record()
    for number, line in enumerate(_lines(source.chunks()), start=1):
        record.add(number, line)
    rows = record.device_rows()
    if not rows:
        found = ", ".join(f"{n} {what}" for (what, *_), n in record.ledger.most_common(6))
        expected = f"messages with a time on the GPU, in lines of type KERNEL or {_CHANNEL}"
        do = "Record again with NCCL_PROFILE_EVENT_MASK=4095"
        do += "; NCCL's inspector (coll_perf) writes durations without starts"
        refuse(source.file, expected, found=found or "none", do=do)
    if source.keep == "kernels":
        record.give_up_host()
    table = _table(rows + record.host)
    return table, record.info(table), record.rows(source.file)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines; a line longer than any record is cut, so that it does not decode."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        rest = rest[:_LARGEST_LINE]
    if rest.strip():
        yield rest


@dataclass
class _Message:
    """A collective or a send: its bytes, and when its channels ran."""

    rank: int | None
    op: str
    nbytes: int | None
    communicator: Any
    queued_ns: int
    seen: list[int] = field(default_factory=list)  # ns on the host's clock
    timers: list[int] = field(default_factory=list)  # ns on the GPU's clock


@dataclass
class _Record:
    """The lines read so far, by their use. Addresses are reused, so the order matters."""

    messages: list[_Message] = field(default_factory=list)
    launches: dict[int, tuple] = field(default_factory=dict)  # number -> rank and start
    kernels: list[tuple[_Line, int, int, int]] = field(default_factory=list)
    host: list[dict] = field(default_factory=list)
    workers: dict = field(default_factory=dict)  # communicator -> number of ranks
    ledger: Counter = field(default_factory=Counter)
    broken: list[int] = field(default_factory=list)
    lags: dict = field(default_factory=dict)  # rank -> least (host's - GPU's clock), ns
    _open: dict[str, _Message] = field(default_factory=dict)
    _stopped: dict[str, int] = field(default_factory=dict)
    _numbers: dict[tuple, int] = field(default_factory=dict)
    n_lines: int = 0

    def add(self, number: int, text: bytes) -> None:
        if not text.strip():
            return
        self.n_lines = number
        if (line := decoded(text, _Line)) is None:
            self.broken.append(number)
            return
        if line.name == "KernelChStop" and line.timer is not None:
            self._stopped[line.address] = line.timer
        if isinstance(n := line.details.get("nranks"), int) and 0 < n < 2**20:
            self.workers[line.communicator] = n
        start, end = _ns(line.start), _ns(line.stop)
        if line.record == "state" or line.type == "ProfilerLifecycle":
            self._drop(line, "a moment: takes no time")
        elif start is None or end is None or end < start:
            self._drop(line, "no usable start and stop")
        else:
            self._interval(line, start, end)

    def _interval(self, line: _Line, start: int, end: int) -> None:
        if line.record == "cuptiActivity":
            self.kernels.append((line, start, end, self._number(line)))
        elif line.type in _MESSAGES:
            self._add_message(line, start)
        elif line.type == _CHANNEL:
            self._add_channel(line, start, end)
        elif line.type == _LAUNCH or line.type in _CALLS:
            number = self._number(line) if line.type == _LAUNCH else -1
            if number >= 0:
                self.launches[number] = (line.rank, start)
            name = f"{line.type} {line.details.get('func') or ''}".strip()
            row = _row(line.rank, "host", name, start, end, number)
            self.host.append(row | {"stream": -1, "thread": line.start.tid})
            self.ledger[line.type, True, ""] += 1
        else:
            is_proxy = line.type.startswith("ncclProfileProxy")
            why = "NCCL's proxy thread: lies within its message"
            self._drop(line, why if is_proxy else "how the host queues messages")

    def _drop(self, line: _Line, why: str) -> None:
        self.ledger[line.type or line.record or "line", False, why] += 1

    def _number(self, line: _Line) -> int:
        """Return the number of the launch, unique across processes; -1 for none."""
        if line.launch < 0:
            return -1
        return self._numbers.setdefault((line.start.pid, line.launch), len(self._numbers))

    def _add_message(self, line: _Line, start: int) -> None:
        op = collective(str(line.details.get("func"))) or "unknown"
        count = line.details.get("count")
        size = dtype_bytes(str(line.details.get("dtype")).removeprefix("nccl"))
        workers = self.workers.get(line.communicator) if op in _PER_RANK else 1
        known = isinstance(count, int) and 0 < count < 2**40 and size and workers
        nbytes = count * size * workers if known else None
        self._open[line.address] = _Message(line.rank, op, nbytes, line.communicator, start)
        self.messages.append(self._open[line.address])

    def _add_channel(self, line: _Line, start: int, end: int) -> None:
        begun, ended = line.details.get("pTimer"), self._stopped.pop(line.address, None)
        if (message := self._open.get(line.parent)) is None:
            self._drop(line, "a channel whose message is not in the file")
            return
        self._drop(line, "one channel of a message: in the message's row")
        message.seen += [start, end]
        if isinstance(begun, int) and ended is not None and 0 < begun <= ended < 2**62:
            message.timers += [begun, ended]
            lag = min(start - begun, end - ended)
            self.lags[message.rank] = min(lag, self.lags.get(message.rank, lag))

    def device_rows(self) -> list[dict]:
        """Return rows of kernels, or of messages if the file has no kernel of a collective."""
        rows = [self._kernel_row(*kernel) for kernel in self.kernels]
        by_kernel = any(row["kind"] == "comm" for row in rows)
        timed = [] if by_kernel else [message for message in self.messages if message.seen]
        why = "no channel recorded: only the host's time to queue it is known"
        why = "carried by a kernel: in the kernel's row" if by_kernel else why
        self.ledger["message", False, why] += len(self.messages) - len(timed)
        why = "while its channels ran on the GPU; possibly late by the proxy thread's delay"
        self.ledger["message", True, why] += len(timed)
        return rows + [self._message_row(message) for message in timed]

    def _kernel_row(self, line: _Line, start: int, end: int, number: int) -> dict:
        rank, carried = self._carried.get(number, (line.rank, []))
        kind = "comm" if is_communication(line.name) else "compute"
        kind = kind if line.type == "KERNEL" else "memory"
        self.ledger[line.type, True, ""] += 1
        row = _row(rank, kind, line.name or line.type, start, end, number)
        row["stream"] = _stream(line.stream)
        if kind == "comm":
            ops = {message.op for message in carried} or {collective(line.name) or "unknown"}
            row |= self._moves(carried) | {"op": ops.pop() if len(ops) == 1 else "unknown"}
        return row

    @cached_property
    def _carried(self) -> dict[int, tuple]:
        """Return number of launch -> rank and messages, which NCCL reports just after it."""
        order, found = defaultdict(list), {}
        for number, (rank, start) in sorted(self.launches.items(), key=lambda item: item[1][1]):
            found[number] = (rank, [])
            order[rank].append((start, found[number][1]))
        for message in self.messages:
            mine = order[message.rank]
            if at := bisect_right(mine, message.queued_ns, key=lambda launch: launch[0]):
                mine[at - 1][1].append(message)
        return found

    def _moves(self, messages: list[_Message]) -> dict:
        """Return bytes, group and workers of the messages in one kernel, if of one kind."""
        communicators = {message.communicator for message in messages}
        sizes = [message.nbytes for message in messages]
        one = communicators.pop() if len(communicators) == 1 else None
        mixed = len({message.op for message in messages}) != 1 or None in sizes
        nbytes = None if mixed or sum(sizes) >= 2**62 else sum(sizes)
        group = "" if one is None else str(one)
        return {"nbytes": nbytes, "group": group, "n_workers": self.workers.get(one)}

    def _message_row(self, message: _Message) -> dict:
        start, end = min(message.seen), max(message.seen)
        if 2 * len(message.timers) >= len(message.seen):
            lag = self.lags[message.rank]
            start, end = min(message.timers) + lag, max(message.timers) + lag
        row = _row(message.rank, "comm", f"nccl {message.op}", start, end, -1)
        return row | {"op": message.op} | self._moves([message])

    def give_up_host(self) -> None:
        why = "not a device row: only kernels are kept"
        for what, kept, said in list(self.ledger):
            if kept and (what in _CALLS or what == _LAUNCH):
                self.ledger[what, False, why] += self.ledger.pop((what, kept, said))
        self.host = []

    def info(self, table: pd.DataFrame) -> dict:
        ranks = sorted(int(rank) for rank in table["rank"].dropna().unique())
        groups = [{"pg_name": str(c), "pg_size": n} for c, n in self.workers.items()]
        size = max(self.workers.values(), default=None)
        return chrome.info(ranks=ranks, world_size=size, backend="nccl", groups=groups)

    def rows(self, file: str) -> list[dict]:
        """Return the LEDGER rows."""
        found = self.ledger.items()
        rows = [entry(what, n, why, kept=kept) for (what, kept, why), n in found if n]
        rows.append(entry("note", 0, "no iterations in the file: all of it is iteration 0"))
        if len(set(self.workers.values())) > 1:
            why = "communicators of several sizes: rank is that within the communicator"
            rows.append(entry("note", 0, why))
        if self.broken[-1:] == [self.n_lines]:
            why = f"the file is cut: its last line, {self.broken.pop()}, is incomplete"
            rows.append(entry("line", 1, why, kept=False, warn=True))
        if self.broken:
            first = ", ".join(map(str, self.broken[:5]))
            why = f"not a JSON record of a profiler: line {first}"
            rows.append(entry("line", len(self.broken), why, kept=False, warn=True))
        return [{"file": file, "rank": None} | row for row in rows]


def _row(rank: int | None, kind: str, name: str, start: int, end: int, number: int) -> dict:
    row = {"rank": rank, "stream": 0, "thread": -1, "kind": kind, "name": name}
    return row | {"correlation": number, "start_ns": start, "end_ns": end}


def _ns(moment: _Moment | None) -> int | None:
    us = moment.ts if moment else None
    known = us is not None and us.is_finite() and abs(us) < _INT64_US
    return round(us * 1000) if known else None


def _stream(value) -> int:
    """Return the number of a stream, which may be hexadecimal; 0 if unknown."""
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
    return number if 0 <= number < 2**63 else 0


def _table(rows: list[dict]) -> pd.DataFrame:
    empty = dict.fromkeys(["rank", "nbytes", "n_workers"]) | {"op": "", "group": ""}
    columns = {c: [(empty | row)[c] for row in rows] for c in empty | rows[0]}
    whole = {c: pd.array(columns[c], dtype="Int64") for c in ("rank", "nbytes", "n_workers")}
    table = chrome.table(None, len(rows), **columns | whole)
    return table.sort_values("start_ns", kind="stable", ignore_index=True)
