"""Units as numbers, and numbers as text. The package computes in seconds and bytes."""

import math

US = 1e-6
MS = 1e-3
KIB = 2**10
MIB = 2**20
GIB = 2**30
GBIT = 1e9 / 8  # bytes: links are decimal, 1 Gbit/s = 0.125e9 bytes/s
GB = 1e9


def format_seconds(seconds: float) -> str:
    """Return three significant digits in the best unit: `12.3 ms`."""
    if not math.isfinite(seconds):
        return "unknown"
    for unit, name in ((1.0, "s"), (MS, "ms"), (US, "us")):
        if abs(seconds) >= unit * 0.9995:
            return f"{_three_digits(seconds / unit)} {name}"
    return "0 s" if seconds == 0 else f"{_three_digits(seconds / 1e-9)} ns"


def format_bytes(nbytes: float) -> str:
    """Return three significant digits in binary units, `25.0 MiB`; whole bytes below 1 KiB."""
    if not math.isfinite(nbytes):
        return "unknown"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= unit * 0.9995:
            return f"{_three_digits(nbytes / unit)} {name}"
    return f"{nbytes:.0f} B"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: `1 worker`, `8 workers`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _three_digits(value: float) -> str:
    value = float(f"{value:.3g}")
    return f"{value:.{max(0, 2 - int(math.floor(math.log10(abs(value)))))}f}"
