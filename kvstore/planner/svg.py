"""Plots as SVG that stands in a page: lines, or bars. No scripts; colours are classes of the page,
so that it can be light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44
_TICKS = 5
_NAMED = 11  # classes of colours: s0 to s10

Value = float | None  # None: nothing is known there, and the line is broken


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `number` tells its colour."""

    name: str
    x: Sequence[float]
    y: Sequence[Value]
    number: int


@dataclass(frozen=True, slots=True)
class Axes:
    """What is on them."""

    x: str
    y: str
    y_max: float | None = None  # None: of the values


def lines(axes: Axes, series: Sequence[Series], mark: float | None = None) -> str:
    """Lines over x from 0; `mark` is a value of y that is drawn across."""
    x_max = _nice(max((max(one.x, default=0.0) for one in series), default=1.0))
    known = [value for one in series for value in one.y if value is not None]
    y_max = axes.y_max or _nice(max([*known, mark or 0.0], default=1.0))
    parts = _frame(axes, x_max, y_max, [x_max * i / _TICKS for i in range(_TICKS + 1)])
    if mark is not None:
        at = _y(mark, y_max)
        parts.append(f'<path class="mark" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
    for one in reversed(series):  # the first, which all are held against, lies on top
        points = [
            (_x(x, x_max), _y(min(y, y_max), y_max)) if y is not None else None
            for x, y in zip(one.x, one.y, strict=True)
        ]
        title = f"<title>{escape(one.name)}</title>"
        kind = f"line s{one.number % _NAMED}"
        parts.append(f'<path class="{kind}" d="{_path(points)}">{title}</path>')
    return _drawn(axes, parts) + _legend(series)


def bars(axes: Axes, names: Sequence[str], values: Sequence[float], marked: int | None) -> str:
    """One bar a name; the one that is `marked` stands out."""
    y_max = axes.y_max or _nice(max(values, default=1.0))
    parts = _frame(axes, 1.0, y_max, [])
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(names))
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        left, top = _LEFT + step * (place + 0.15), _y(value, y_max)
        height = HEIGHT - _BOTTOM - top
        kind = "bar best" if place == marked else "bar"
        middle, said = left + step * 0.35, escape(name)
        parts.append(
            f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{step * 0.7:.1f}"'
            f' height="{max(0.0, height):.1f}"><title>{said}: {_number(value)}</title></rect>'
            f'<text x="{middle:.1f}" y="{HEIGHT - _BOTTOM + 16}" class="middle">{said}</text>'
            f'<text x="{middle:.1f}" y="{top - 4:.1f}" class="middle">{_number(value)}</text>'
        )
    return _drawn(axes, parts)


def _frame(axes: Axes, x_max: float, y_max: float, ticks: Sequence[float]) -> list[str]:
    parts = []
    for i in range(_TICKS + 1):
        value = y_max * i / _TICKS
        at = _y(value, y_max)
        parts.append(
            f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" class="end">{_number(value)}</text>'
        )
    for value in ticks:
        at, low = _x(value, x_max), HEIGHT - _BOTTOM + 16
        parts.append(f'<text x="{at:.1f}" y="{low}" class="middle">{_number(value)}</text>')
    return parts


def _drawn(axes: Axes, parts: Sequence[str]) -> str:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(axes.y, quote=True)} against {escape(axes.x, quote=True)}">'
        + "".join(parts)
        + f'<text x="{middle}" y="{HEIGHT - 8}" class="middle name">{escape(axes.x)}</text>'
        + f'<text x="14" y="{HEIGHT / 2}" class="middle name"'
        + f' transform="rotate(-90 14 {HEIGHT / 2})">{escape(axes.y)}</text></svg>'
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = "".join(f'<li class="s{one.number % _NAMED}">{escape(one.name)}</li>' for one in series)
    return f'<ul class="legend">{items}</ul>'


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    """A point that stands alone is a line of no length, which round ends make a dot."""
    drawn, pen = [], "M"
    for point, following in zip(points, [*points[1:], None], strict=True):
        if point is None:
            pen = "M"
            continue
        alone = "h0" if pen == "M" and following is None else ""
        drawn.append(f"{pen}{point[0]:.1f} {point[1]:.1f}{alone}")
        pen = "L"
    return "".join(drawn)


def _x(value: float, x_max: float) -> float:
    return _LEFT + value / x_max * (WIDTH - _LEFT - _RIGHT)


def _y(value: float, y_max: float) -> float:
    return HEIGHT - _BOTTOM - value / y_max * (HEIGHT - _TOP - _BOTTOM)


def _nice(value: float) -> float:
    """The next value that is round."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        times * power for times in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if times * power >= value
    )


def _number(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
