import math

import pytest

from workbench import GBIT, GIB, KIB, MIB, MS, US, format_bytes, format_seconds


def test_links_are_decimal_and_sizes_binary():
    assert 8 * GBIT == 1e9
    assert (KIB, MIB, GIB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (1.5, "1.50 s"),
        (0.0123 * MS, "12.3 us"),
        (250 * MS, "250 ms"),
        (999.6 * US, "1.00 ms"),
        (4e-9, "4.00 ns"),
        (-2 * MS, "-2.00 ms"),
        (1234.0, "1230 s"),
        (math.nan, "unknown"),
    ],
)
def test_seconds_read_with_three_digits(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "nbytes, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (25 * MIB, "25.0 MiB"),
        (1536, "1.50 KiB"),
        (3 * GIB, "3.00 GiB"),
    ],
)
def test_bytes_read_with_three_digits(nbytes, text):
    assert format_bytes(nbytes) == text
