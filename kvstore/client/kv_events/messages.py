"""Batches of KV events as engines publish them: msgpack of [time, events, rank].

An event is a map with its `type`, or in older engines an array that begins with it; hashes are
whole numbers or bytes. Nothing that is received is trusted: what is of another kind than it should
be, is unknown, or tells of blocks whose key we do not know is passed over and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ConfigError
from kvstore.limits import BLOCK_TOKENS_MAX

Hash: TypeAlias = int | bytes
Tokens: TypeAlias = NDArray[np.uint32]

_HASH_BYTES_MAX = 64
_TOKEN_MAX = 2**32 - 1
_ELSEWHERE = ("other memory", "other group")  # why an event is passed over that is none of ours
_OWN = (None, "GPU")  # media that are an engine's own memory
# What stands where in an array, behind the type; where a map has a name that is not among these it
# is of no interest. In the place of the adapter's name some versions have the salt: either says
# that we do not know the block's key.
_STORED = (
    *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
    *("lora_name", "extra_keys", "group_idx"),
)
_REMOVED = ("block_hashes", "medium", "group_idx")
_FIELDS = {"BlockStored": _STORED, "BlockRemoved": _REMOVED, "AllBlocksCleared": ()}


class Unreadable(ValueError):
    """What was received is no batch of events: nobody knows what it would have said."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one chain, each of `block_tokens`, are in the engine's memory."""

    hashes: tuple[Hash, ...]
    parent: Hash | None  # of the first of them; None: it begins a chain
    tokens: Tokens  # of all of them
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Removed:
    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is there any more."""


Event: TypeAlias = Stored | Removed | Cleared


class Messages:
    """Those of one engine, of one of its KV groups. `passed_over` counts events by the reason;
    `made` is when the engine made the batch that was read last, by its own clock.

    Raises `ConfigError` where msgspec is not installed.
    """

    def __init__(self, group: int = 0) -> None:
        self._group, self._decode = group, _decoder()
        self.passed_over: Counter[str] = Counter()
        self.made = 0.0

    @property
    def unread(self) -> int:
        """Events of the engine's own memory that nothing could be made of."""
        return sum(count for why, count in self.passed_over.items() if why not in _ELSEWHERE)

    def read(self, payload: bytes) -> list[Event]:
        """The events of one batch. Raises `Unreadable`."""
        try:
            batch = self._decode(payload)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"not msgpack: {error}") from None
        if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
            raise Unreadable("not a list of a time and events")
        self.made = float(batch[0]) if isinstance(batch[0], int | float) else 0.0
        found = []
        for raw in batch[1]:
            event = self._event(raw)
            if isinstance(event, str):
                self.passed_over[event] += 1
            else:
                found.append(event)
        return found

    def _event(self, raw: Any) -> Event | str:
        """An event, or why it is passed over."""
        said = _fields(raw)
        if isinstance(said, str):
            return said
        if said["type"] == "AllBlocksCleared":
            return Cleared()
        if said.get("medium") not in _OWN:
            return _ELSEWHERE[0]
        if (said.get("group_idx") or 0) != self._group:
            return _ELSEWHERE[1]
        hashes = said.get("block_hashes")
        if not isinstance(hashes, list) or not all(map(_is_hash, hashes)):
            return "malformed"
        if said["type"] == "BlockRemoved":
            return Removed(tuple(hashes))
        return _stored(said, hashes)


def _decoder() -> Callable[[bytes], Any]:
    try:
        import msgspec
    except ImportError as error:
        text = f"KV events are read by msgspec, which is not installed ({error})"
        raise ConfigError(f"{text}: `pip install 'moonpool[events]'`") from error
    return msgspec.msgpack.decode  # what it raises is a ValueError


def _fields(raw: Any) -> dict[str, Any] | str:
    """The fields of an event that are of interest, by name."""
    if isinstance(raw, list) and raw and isinstance(raw[0], str):
        names = _FIELDS.get(raw[0])
        return "unknown" if names is None else {"type": raw[0], **dict(zip(names, raw[1:]))}  # noqa: B905
    if isinstance(raw, dict) and isinstance(raw.get("type"), str):
        return raw if raw["type"] in _FIELDS else "unknown"
    return "malformed"


def _stored(said: dict[str, Any], hashes: list[Hash]) -> Event | str:
    if any(said.get(name) is not None for name in ("lora_id", "lora_name", "cache_salt")):
        return "key unknown"
    parent, size = said.get("parent_block_hash"), said.get("block_size")
    tokens = _tokens(said.get("token_ids"))
    if not (parent is None or _is_hash(parent)) or tokens is None:
        return "malformed"
    if type(size) is not int or not 0 < size <= BLOCK_TOKENS_MAX:
        return "malformed"
    if len(tokens) != size * len(hashes):
        return "blocks left out"  # of a window: which of the tokens are whose is not said
    known, keys = len(hashes), said.get("extra_keys")
    if isinstance(keys, list):
        known = next((at for at, key in enumerate(keys[:known]) if key is not None), known)
    elif keys is not None:
        return "malformed"
    # What stands for an image is no token: what the image is, nobody says.
    others = np.flatnonzero(tokens > _TOKEN_MAX)
    known = min(known, int(others[0]) // size) if len(others) else known
    if not known:
        return "key unknown"  # and so are those of all that follow it
    return Stored(tuple(hashes[:known]), parent, tokens[: known * size].astype(np.uint32), size)


def _tokens(raw: Any) -> NDArray[np.integer] | None:
    """Whole numbers, as token ids are, and what stands among them for an image."""
    if not isinstance(raw, list):
        return None
    try:
        ids = np.asarray(raw)
    except ValueError:
        return None  # lists of several lengths
    if not raw or ids.ndim != 1 or ids.dtype.kind not in "iu":
        return None
    return ids if ids.min() >= 0 else None


def _is_hash(one: Any) -> bool:
    if isinstance(one, bytes):
        return 0 < len(one) <= _HASH_BYTES_MAX
    return type(one) is int
