import math

import pytest

from workbench import GBIT, GIB, KIB, MIB, MS, US, format_bytes, format_seconds


def test_links_are_decimal_and_sizes_binary():
    assert 8 * GBIT == 1e9
    assert (KIB, MIB, GIB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_seconds(0), "0 s"),
        (format_seconds(1.5), "1.50 s"),
        (format_seconds(0.0123 * MS), "12.3 us"),
        (format_seconds(250 * MS), "250 ms"),
        (format_seconds(999.6 * US), "1.00 ms"),
        (format_seconds(4e-9), "4.00 ns"),
        (format_seconds(-2 * MS), "-2.00 ms"),
        (format_seconds(1234.0), "1230 s"),
        (format_seconds(math.nan), "unknown"),
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(25 * MIB), "25.0 MiB"),
        (format_bytes(1536), "1.50 KiB"),
        (format_bytes(3 * GIB), "3.00 GiB"),
    ],
)
def test_numbers_read_with_three_digits(shown, text):
    assert shown == text
