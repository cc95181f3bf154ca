"""A pool of some size as it would be: the node's own index, and its own policy of what goes first.

All hosts' memory counts as one. With SSD a block is in both tiers until it leaves DRAM, as nodes
have it, so what the pool holds is what the larger of the two does. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lifecycle import Slot, State
from kvstore.layout import SLOT_ALIGN
from kvstore.limits import HASH_BYTES

_OWNER = (b"\0" * HASH_BYTES, 0)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a pool, and of what lies in it."""

    dram: int
    ssd: int
    token: int  # of KV

    def slot(self, block_tokens: int) -> int:
        """A block and its head, in whole pages."""
        return SLOT_ALIGN * (1 + -(-block_tokens * self.token // SLOT_ALIGN))


@dataclass(frozen=True, slots=True)
class Held:
    """Leading blocks of a prompt that a pool has."""

    blocks: int
    on_ssd: int  # of these, not in DRAM


class Pool:
    """Empty at first. Blocks are numbers, those of one prompt in their order."""

    def __init__(self, size: Size, block_tokens: int) -> None:
        slot = size.slot(block_tokens)
        self._dram, self._room = size.dram // slot, max(size.dram, size.ssd) // slot
        self._tokens = block_tokens
        self._index = Index()
        self._near: OrderedDict[bytes, None] = OrderedDict()  # in DRAM, least recent first
        self._made = 0
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._index)

    def look_up(self, path: Sequence[int]) -> Held:
        """What it has of a prompt, which is used now."""
        keys = [_key(one) for one in path]
        found = keys[: self._index.longest(keys)]
        self._index.touch(found)
        far = sum(key not in self._near for key in found)
        self._bring_near(found)
        return Held(len(found), far)

    def store(self, path: Sequence[int], count: int) -> None:
        """The last `count` blocks of a prompt have been computed."""
        keys = [_key(one) for one in path]
        first = len(keys) - count
        new = [at for at in range(first, len(keys)) if keys[at] not in self._index]
        new = new[: self._room]
        short = len(self._index) + len(new) - self._room
        if short > 0:
            gone = list(islice(self._index.coldest(spared=set(keys)), short))
            for slot in gone:
                self._near.pop(slot.key, None)
                self._index.drop(slot.key, Miss.EVICTED)
            self.evicted += len(gone)
            new = new[: len(new) - (short - len(gone))]
        slots = [self._slot(keys[at], keys[at - 1] if at else b"") for at in new]
        self._index.add_all(slots)
        self._bring_near([slot.key for slot in slots])

    def check(self) -> None:
        assert len(self._index) <= self._room, "more is there than fits"
        assert len(self._near) <= self._dram
        assert all(key in self._index for key in self._near)
        self._index.check()

    def _slot(self, key: bytes, parent: bytes) -> Slot:
        self._made += 1
        slot = Slot(self._made, 0, _OWNER, State.SEALED, 1, key, parent, tokens=self._tokens)
        slot.root = b"\0" * 16
        return slot

    def _bring_near(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._near[key] = None
            self._near.move_to_end(key)
        while len(self._near) > self._dram:
            self._near.popitem(last=False)


def _key(number: int) -> bytes:
    return number.to_bytes(HASH_BYTES, "big")
