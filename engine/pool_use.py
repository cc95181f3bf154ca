"""One request's use of the pool: what it wants, what it holds, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvstore.client import Chain, Reader, Writer

STALLED_SECONDS = 5.0  # a hand-off that brings nothing new for this long is given up


@dataclass(slots=True)
class PoolUse:
    """What one request wants of the pool, and what came of it."""

    enabled: bool = True
    hand_offs: tuple[bytes, ...] | None = None  # follow a prefill, instead of asking by prefix
    reserved: Callable[[tuple[bytes, ...]], None] | None = None  # told the hand-off to pass on
    chain: Chain | None = None  # of the prompt
    pool_tokens: int = 0
    hand_off_tokens: int = 0
    loaded_bytes: int = 0
    miss: str = ""
    published_blocks: int = 0
    complete: bool = True  # whether everything that was reserved has been sealed
    reader: Reader | None = field(default=None, repr=False)
    writer: Writer | None = field(default=None, repr=False)
    progress: tuple[float, int] = (0.0, 0)  # when the reader last brought something, and its bytes

    def stalled(self) -> bool:
        """Whether a followed prefill has brought nothing new for too long."""
        assert self.reader is not None
        since, seen = self.progress
        if self.reader.bytes_loaded > seen:
            self.progress = (time.monotonic(), self.reader.bytes_loaded)
            return False
        return time.monotonic() - since > STALLED_SECONDS
