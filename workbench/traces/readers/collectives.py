"""Names of collectives as libraries and profilers write them -> the names used here."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

cache = lru_cache(maxsize=2**14)  # a trace repeats few names many times
Patterns = tuple[tuple[str, str], ...]  # regular expression, collective; the first found holds
_ADDED: ContextVar[Patterns] = ContextVar("patterns of the user", default=())
COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|hcom_|msccl|gloo:|mpi:|ucc:"
    r"|multimem_|symm_mem|two_?shot|one_?shot|cross_device_reduce|custom_?all_?reduce"
    r"|::ep::(?:inter|intra)node|nvshmem",
    re.IGNORECASE,
)
# The order matters: the longer name first ("all_reduce" also holds "reduce").
_OPS = {
    "all_reduce": r"all_?reduce|cross_device_reduce|(?:one|two)_?shot",
    "reduce_scatter": r"reduce_?scatter",
    "all_gather": r"all_?gather",
    "all_to_all": r"all_?to_?all|a2a",
    "broadcast": r"broadcast|bcast",
    "send_recv": r"send_?recv|send|recv",
    "barrier": r"barrier",
    "gather": r"gather",
    "scatter": r"scatter",
    "reduce": r"reduce",
}
_PATTERNS = {op: re.compile(pattern, re.IGNORECASE) for op, pattern in _OPS.items()}
_DTYPES = {
    1: "char byte int8 uint8 bool signedchar unsignedchar float8_e4m3fn float8_e5m2",
    2: "half float16 bfloat16 short int16 uint16",
    4: "float float32 int int32 uint32 unsignedint",
    8: "double float64 long int64 uint64 longint longlong complexfloat complex64",
}
_SIZES = {name: size for size, names in _DTYPES.items() for name in names.split()}


@contextmanager
def added(patterns: Patterns) -> Iterator[None]:
    """Within the block and this thread, `compiled` patterns come before those known here."""
    before = _ADDED.set(patterns)
    try:
        yield
    finally:
        _ADDED.reset(before)


def compiled(patterns: Mapping[str, str] | None) -> Patterns:
    """Return {regular expression: collective}, compiled; an expression may match within a name.

    A collective may be spelt as libraries spell it. "" marks a kernel of communication whose
    collective the launching call names. Raises ValueError for any other mapping.
    """
    if not isinstance(patterns, Mapping | None):
        raise _no_patterns(patterns)
    found = []
    for pattern, name in (patterns or {}).items():
        if not (isinstance(pattern, str) and isinstance(name, str)):
            raise _no_patterns(patterns)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"patterns: {pattern!r} is not a regular expression ({error})"
            ) from None
        if name and not _known(name):
            expected = ", ".join(_OPS)
            raise ValueError(f"patterns: {pattern!r}: expected one of {expected}, got {name!r}")
        found.append((pattern, _known(name)))
    return tuple(found)


def _no_patterns(patterns) -> ValueError:
    return ValueError(
        "patterns: expected {regular expression: collective}, such as "
        f"{{'fast_reduce': 'all_reduce'}}, got {patterns!r}"
    )


def is_communication(kernel: str) -> bool:
    """Return whether a device kernel of this name belongs to a collective."""
    return _is_communication(kernel, _ADDED.get())


def collective(name: str) -> str:
    """Return the collective in a name, or "": `ncclDevKernel_AllReduce_Sum_f32` -> all_reduce.

    A generic or send-receive kernel serves several collectives, so its name gives none.
    """
    return _collective(name, _ADDED.get())


@cache
def _is_communication(kernel: str, patterns: Patterns) -> bool:
    return _match(kernel, patterns) is not None or COMMUNICATION.search(kernel) is not None


@cache
def _collective(name: str, patterns: Patterns) -> str:
    op = _match(name, patterns)
    return _known(name) if op is None else op


def _match(name: str, patterns: Patterns) -> str | None:
    return next((op for pattern, op in patterns if re.search(pattern, name)), None)


def _known(name: str) -> str:
    name = name.split("(")[0]
    if re.search(r"kernel", name, re.IGNORECASE) and re.search(
        r"generic|send_?recv", name, re.IGNORECASE
    ):
        return ""
    return next((op for op, pattern in _PATTERNS.items() if pattern.search(name)), "")


@cache
def dtype_bytes(dtype: str) -> int | None:
    """Return bytes per element of a type as PyTorch or NCCL writes it, None if unknown."""
    name = str(dtype).lower().split("::")[-1].removeprefix("torch.").replace(" ", "")
    return _SIZES.get(name)
