"""A figure as a person reads it, with its unit. The page writes them likewise."""

from __future__ import annotations

from kvstore.dashboard.panels import Unit
from kvstore.percent import percent

_LONG = ((86_400, "days"), (3_600, "h"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def written(unit: Unit, value: float) -> str:
    match unit:
        case Unit.SHARE:
            return percent(value).replace("%", " %")
        case Unit.SECONDS:
            return _seconds(value)
        case Unit.BYTES:
            return _bytes(value)
        case Unit.BYTES_PER_SECOND:
            return f"{_bytes(value)}/s"
        case Unit.PER_SECOND:
            return f"{_number(value)}/s"
        case Unit.COUNT:
            return _number(value)


def _seconds(value: float) -> str:
    if value < 0:  # as where a certificate is over
        return f"-{_seconds(-value)}"
    for size, name in _LONG:
        if value >= 2 * size:
            return f"{value / size:,.1f} {name}"
    if not value:
        return "0 s"
    if value >= 1:
        return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"
    if value >= 0.001:
        return f"{1e3 * value:.0f} ms" if value >= 0.1 else f"{1e3 * value:.1f} ms"
    return f"{1e6 * value:.0f} µs"


def _bytes(value: float) -> str:
    power = 0
    while value >= 1024 and power < len(_BYTES) - 1:
        value, power = value / 1024, power + 1
    digits = 0 if value >= 100 or not power else 1
    return f"{value:.{digits}f} {_BYTES[power]}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
