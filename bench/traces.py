"""Traces of requests: whose blocks stand behind whose, and nothing of what is in them.

Two formats are read, each JSON lines, and recognised by the fields of the first line:

- Mooncake's: timestamp (ms), input_length, output_length, hash_ids; 512 tokens a block.
- Qwen-Bailian's: the same with timestamp in seconds, and chat_id, parent_chat_id, type and turn;
  16 tokens a block.

An id stands for a block and all before it, as in Mooncake's. Where the same id is met behind
another block it is taken for another block: a key is of the id and of the key before it. Whether
there are as many ids as the tokens fill blocks is not asked: a trace may name the answer's too. A
line that is not as it should be is an error that names file, line and field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

KEY_BYTES = 32


class BadTrace(ValueError):
    """A trace that cannot be read, and where."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way of writing a trace down."""

    name: str
    block_tokens: int
    fields: frozenset[str]


_COMMON = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE = Format("Mooncake", 512, frozenset(_COMMON))
BAILIAN = Format(
    "Qwen-Bailian", 16, frozenset((*_COMMON, "chat_id", "parent_chat_id", "type", "turn"))
)
FORMATS = (BAILIAN, MOONCAKE)  # the one with more fields first: it has the other's too


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt: the stored keys of its blocks from the start, the last of which may be short."""

    keys: tuple[bytes, ...]
    tokens: int
    short: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they came."""

    block_tokens: int
    requests: tuple[Request, ...]

    @property
    def blocks(self) -> int:
        return sum(len(request.keys) for request in self.requests)


def read(path: Path) -> Trace:
    """A trace file of either format."""
    try:
        with path.open(encoding="utf-8") as lines:
            parsed = list(_lines(path, enumerate(lines, 1)))
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {error}") from None
    if not parsed:
        raise BadTrace(f"{path}: no request in it")
    form = _format_of(*parsed[0])
    seen: dict[tuple[bytes, int], bytes] = {}
    requests = tuple(_request(where, line, form, seen) for where, line in parsed)
    return Trace(form.block_tokens, requests)


def key_of(parent: bytes, block_id: int) -> bytes:
    """The stored key that stands for an id behind a block."""
    return blake2b(parent + block_id.to_bytes(16, "big"), digest_size=KEY_BYTES).digest()


def _lines(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, text in lines:
        if not text.strip():
            continue
        where = f"{path}:{number}"
        try:
            line = json.loads(text)
        except ValueError as error:
            raise BadTrace(f"{where}: not JSON: {error}") from None
        if not isinstance(line, dict):
            raise BadTrace(f"{where}: not an object with fields")
        yield where, line


def _format_of(where: str, line: Mapping[str, Any]) -> Format:
    for form in FORMATS:
        if form.fields <= line.keys():
            return form
    missing = sorted(MOONCAKE.fields - line.keys()) or sorted(BAILIAN.fields - line.keys())
    raise BadTrace(f"{where}: {missing[0]}: not there, in {described()}")


def described() -> str:
    """The formats, for a message."""
    return " or ".join(f"{one.name} ({', '.join(sorted(one.fields))})" for one in FORMATS)


def _request(
    where: str, line: Mapping[str, Any], form: Format, seen: dict[tuple[bytes, int], bytes]
) -> Request:
    for name in sorted(form.fields - line.keys()):
        raise BadTrace(f"{where}: {name}: not there")
    stamp = line["timestamp"]
    if isinstance(stamp, bool) or not isinstance(stamp, (int, float)) or stamp < 0:
        raise BadTrace(f"{where}: timestamp: {stamp!r} is no time")
    for name in ("input_length", "output_length"):
        if not _is_count(line[name]):
            raise BadTrace(f"{where}: {name}: {line[name]!r} is no number of tokens")
    ids, tokens = line["hash_ids"], line["input_length"]
    if not isinstance(ids, list) or not all(map(_is_count, ids)):
        raise BadTrace(f"{where}: hash_ids: not a list of whole numbers")
    keys: list[bytes] = []
    for one in ids:
        parent = keys[-1] if keys else b""
        key = seen.get((parent, one))
        if key is None:
            key = seen[parent, one] = key_of(parent, one)
        keys.append(key)
    return Request(tuple(keys), tokens, len(ids) * form.block_tokens > tokens)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 127
