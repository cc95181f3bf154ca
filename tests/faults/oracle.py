"""What a reader may find of the blocks that one caller put, and what it must.

Each caller has prompts of its own, so its calls say all there is to know of them. A call that
failed may have had its effect or not. A put that was answered as durable and stored leaves one
payload that may be read, and that must be there; a remove that was answered leaves none, over
restarts too.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvstore.block import Chain
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import payload

BLOCK_BYTES = len(payload(bytes(32)))


def offer(block: bytes, variant: int) -> bytes:
    """The bytes that a put of this number offers for a block."""
    return hashlib.shake_128(block + variant.to_bytes(4, "little")).digest(BLOCK_BYTES)


@dataclass
class Known:
    """One prompt as its caller knows it. Its blocks are put, acknowledged and removed together."""

    blocks: Chain
    possible: set[int] = field(default_factory=set)  # variants
    durable: bool = False  # one of them has to be there


class Oracle:
    """The prompts of one caller; `lock` guards them while another thread looks."""

    def __init__(self) -> None:
        self.known: list[Known] = []
        self.lock = threading.Lock()
        self._variants = 0

    def begin_put(self, one: Known) -> int:
        with self.lock:
            self._variants += 1
            one.possible.add(self._variants)
            return self._variants

    def end_put(self, one: Known, variant: int, stored: Sequence[int], durable: bool) -> None:
        """The put was answered: `durable` is what was asked for."""
        with self.lock:
            if not durable:
                return
            one.durable = True
            if set(stored) == {pb.PutReply.STORED}:
                one.possible = {variant}

    def begin_remove(self, one: Known) -> None:
        with self.lock:
            one.durable = False

    def end_remove(self, one: Known) -> None:
        with self.lock:
            one.possible = set()

    def check_bytes(self, one: Known, outcomes: Sequence[int], found: Sequence[bytes]) -> int:
        """Fails for bytes that nobody offered; how many blocks were there."""
        assert len(outcomes) == len(found) == len(one.blocks)
        for name, outcome, data in zip(one.blocks.hashes, outcomes, found, strict=True):
            if outcome != pb.HIT:
                continue
            offered = {offer(name, variant) for variant in one.possible}
            assert data in offered, (
                f"{name.hex()[:8]}: bytes that nobody offered, or a removed block"
            )
        return list(outcomes).count(pb.HIT)

    def check_all_there(self, one: Known, outcomes: Sequence[int]) -> None:
        assert not one.durable or set(outcomes) == {pb.HIT}, (
            f"durable blocks are gone: {[pb.Outcome.Name(o) for o in outcomes]}"
        )
