"""One request's use of the pool: what it wants, what it holds, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvstore.client import Chain, Miss, Reader, Windows

STALLED_SECONDS = 5.0  # a hand-off that brings nothing new for this long is given up
_REASONS = ("", *Miss)  # by number, as ranks tell them to each other


@dataclass(frozen=True, slots=True)
class Found:
    """What came of loading a prompt, at one rank or at all of them."""

    landing: bool = False  # more may come
    tokens: int = 0  # leading ones whose KV is in the pages
    sealed_tokens: int = 0  # of these, the ones in blocks that were sealed when they were opened
    loaded_bytes: int = 0
    miss: str = ""

    def numbers(self) -> Sequence[int]:
        reason = _REASONS.index(self.miss)
        return int(self.landing), self.tokens, self.sealed_tokens, self.loaded_bytes, reason

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Found:
        landing, tokens, sealed, loaded, reason = numbers
        return cls(bool(landing), tokens, sealed, loaded, _REASONS[reason])


def agreed(ranks: Sequence[Found]) -> Found:
    """What all ranks may use: no more than any of them has, and nothing while one waits. Pure."""
    least = min(ranks, key=lambda one: one.tokens)
    return Found(
        landing=any(one.landing for one in ranks),
        tokens=least.tokens,
        sealed_tokens=min(least.tokens, *(one.sealed_tokens for one in ranks)),
        loaded_bytes=sum(one.loaded_bytes for one in ranks),
        miss=least.miss,
    )


def same_copies(ranks: Sequence[Sequence[int]]) -> bool:
    """Whether all ranks have parts of the same bytes, by `Reader.copies` of each. Pure."""
    by_slot, by_root = (set(column) for column in zip(*ranks, strict=True))
    return len(by_slot) == 1 or (len(by_root) == 1 and 0 not in by_root)


@dataclass(slots=True)
class PoolUse:
    """What one request wants of the pool, and what came of it."""

    enabled: bool = True
    hand_offs: tuple[bytes, ...] | None = None  # follow a prefill, instead of asking by prefix
    handed_off: bool = False  # whether whoever asked passes a hand-off on
    reserved: Callable[[tuple[bytes, ...]], None] | None = None  # told of it
    writer_group: str = ""  # that a team's ranks write as; a rank alone needs none
    chain: Chain | None = None  # of the prompt
    found: Found = Found()  # at this rank
    pool_tokens: int = 0
    hand_off_tokens: int = 0
    loaded_bytes: int = 0
    miss: str = ""
    published_blocks: int = 0
    complete: bool = True  # whether all that was computed of the prompt has been sealed
    reader: Reader | None = field(default=None, repr=False)
    read: Reader | None = field(default=None, repr=False)  # that has loaded what it could
    windows: Windows | None = field(default=None, repr=False)
    progress: tuple[float, int] = (0.0, 0)  # when the reader last brought something, and its bytes

    def begin_anew(self) -> None:
        """Its request is admitted once more."""
        self.chain = self.reader = self.read = self.windows = None
        self.found, self.complete = Found(), True

    def stores_of(self, blocks: Chain) -> bool:
        """Whether it may store any of these: then the first that it stores is one of them."""
        if self.windows is None or self.chain is None:
            return False
        own = slice(self.windows.first, self.windows.first + 1)
        return self.chain.hashes[own] == blocks.hashes[own] != ()

    def stalled(self) -> bool:
        """Whether a followed prefill has brought nothing new for too long."""
        assert self.reader is not None
        since, seen = self.progress
        if self.reader.bytes_loaded > seen:
            self.progress = (time.monotonic(), self.reader.bytes_loaded)
            return False
        return time.monotonic() - since > STALLED_SECONDS
