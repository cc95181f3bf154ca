"""JSON that is written as it comes and leaves part by part: however much it is, nobody waits for
all of it at once, and what several answers have in common is written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

PART_BYTES = 64 << 10  # of one that is not gone on with


class Written:
    """A list, of which so much is JSON already."""

    def __init__(self) -> None:
        self._full: list[bytes] = []
        self._last = bytearray(b"[")
        self._begun = False

    def extend(self, values: list[Any]) -> None:
        if not values:
            return
        if len(self._last) >= PART_BYTES:
            self._full.append(bytes(self._last))
            self._last.clear()
        if self._begun:
            self._last += b","
        self._begun = True
        self._last += encoded(values)[1:-1]

    def parts(self) -> Iterator[bytes]:
        yield from self._full
        yield bytes(self._last) + b"]"


class Lists:
    """An object's, as they grow; all else of it stays as it is."""

    def __init__(self) -> None:
        self.whole: dict[str, Any] = {}

    def add(self, found: dict[str, Any]) -> None:
        """More of them, by the same names each time."""
        for name, value in found.items():
            if isinstance(value, list):
                self.whole.setdefault(name, Written()).extend(value)
            else:
                self.whole[name] = value


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def parts_of(value: Any) -> list[bytes]:
    """All of it, of which what is written is not copied."""
    parts: list[bytes] = []
    small = bytearray()
    for piece in _pieces(value):
        if len(piece) < PART_BYTES:
            small += piece
            continue
        parts += [bytes(small), piece] if small else [piece]
        small.clear()
    return [*parts, bytes(small)] if small else parts


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Written):
        yield from value.parts()
    elif isinstance(value, dict):
        named = ((encoded(name) + b":", one) for name, one in value.items())
        yield from _between(b"{", named, b"}")
    elif isinstance(value, list):
        yield from _between(b"[", ((b"", one) for one in value), b"]")
    else:
        yield encoded(value)


def _between(begin: bytes, each: Iterable[tuple[bytes, Any]], end: bytes) -> Iterator[bytes]:
    behind = begin
    for name, one in each:
        yield behind + name
        yield from _pieces(one)
        behind = b","
    yield end if behind == b"," else begin + end
