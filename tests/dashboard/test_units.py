from __future__ import annotations

import pytest

from kvstore.dashboard.panels import Unit
from kvstore.dashboard.units import written


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SHARE, 0.9253, "92.5 %"),
        (Unit.SHARE, 0.99996, ">99.9 %"),
        (Unit.SECONDS, 90 * 86_400.0, "90.0 days"),
        (Unit.SECONDS, 9_000.0, "2.5 h"),
        (Unit.SECONDS, 12.34, "12.3 s"),
        (Unit.SECONDS, 0.0, "0 s"),
        (Unit.SECONDS, -5.0, "-5.00 s"),
        (Unit.SECONDS, 1.234, "1.23 s"),
        (Unit.SECONDS, 0.1234, "123 ms"),
        (Unit.SECONDS, 0.01234, "12.3 ms"),
        (Unit.SECONDS, 0.0001234, "123 µs"),
        (Unit.BYTES, 1023, "1023 B"),
        (Unit.BYTES, 1536, "1.5 KiB"),
        (Unit.BYTES, 300 * 2**30, "300 GiB"),
        (Unit.BYTES_PER_SECOND, 2.0**20, "1.0 MiB/s"),
        (Unit.PER_SECOND, 1234.5, "1,234/s"),
        (Unit.PER_SECOND, 12.34, "12.3/s"),
        (Unit.COUNT, 0.0, "0.00"),
    ],
)
def test_a_figure_is_written_as_a_person_reads_it(unit: Unit, value: float, text: str) -> None:
    assert written(unit, value) == text
