"""What the simulated world is made of beside the node: an oracle, and what stands in for nature."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from kvstore.block import Chain, chain
from kvstore.core.spread import ALIKE
from kvstore.metadata.protocol import Entry
from tests.node.rig import SLAB, SMALL, TOKENS
from tests.simulation.sim_disk import Faults, SimDisk


class Wrong(AssertionError):
    """The node broke a promise."""


class Memory:
    """An arena that no other process maps: thousands of nodes need no descriptor each."""

    def __init__(self, size: int, hbm_bytes: int = 0) -> None:
        self.size, self.hbm_bytes = size, hbm_bytes
        self.view = memoryview(bytearray(size + hbm_bytes))
        self.spread = ALIKE


def copied(memory: Memory, here: int, there: int, size: int) -> None:
    """As a GPU would from HBM: the payloads of slots there lie where their heads are."""
    memory.view[there : there + size] = memory.view[here : here + size]


class Prompts:
    """What callers ask for: something new, or something that was asked for before."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._chains, self._made = rng, list[Chain](), 0

    def one(self) -> Chain:
        """A prompt's blocks."""
        rng = self._rng
        if not self._chains or rng.random() < 0.3:
            self._made += 1
            size = rng.randrange(1, 5 * TOKENS)
            tokens = range(1_000 * self._made, 1_000 * self._made + size)
            self._chains.append(chain(SMALL.owner[0], SMALL.owner[1], tokens, TOKENS))
        return rng.choice(self._chains)


class Notes:
    """Metadata that outlives every crash and never fails."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    async def put(self, key: str, value: bytes) -> int:
        await asyncio.sleep(0)
        self._entries[key] = Entry(key, value, 1)
        await asyncio.sleep(0)
        return 1

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        return [one for key, one in self._entries.items() if key.startswith(prefix)], 1


@dataclass
class Oracle:
    """What may be read, and what must be."""

    offered: dict[bytes, set[bytes]] = field(default_factory=dict)  # by block hash
    acked: set[bytes] = field(default_factory=set)
    spoiled: bool = False  # a fault may have destroyed what was acknowledged
    flipped: bool = False  # memory has been damaged: blocks in it may be, and none on SSD
    reads: int = 0
    hits: int = 0

    def forget(self, before: dict[bytes, set[bytes]]) -> None:
        """A purge has returned: of what was offered before it nothing may be read."""
        for block, payloads in before.items():
            self.offered[block] = self.offered[block] - payloads

    def check_read(self, block: bytes, data: bytes) -> None:
        self.reads += 1
        self.hits += 1
        if data not in self.offered.get(block, ()):
            raise Wrong(f"block {block.hex()[:8]} was read as bytes that nobody offered for it")


def harmful(faults: Faults) -> bool:
    """Whether they may destroy what was acknowledged."""
    return bool(faults.lost or faults.misdirected or faults.misdirected_too or faults.read_fails)


def some_faults(rng: random.Random) -> Faults:
    """Each seed has some kinds of fault and not others: together they hide one another."""
    often = {name: rng.choice([0.01, 0.1]) for name in Faults.__slots__ if name != "read_only"}
    return Faults(**{name: often[name] if rng.random() < 0.15 else 0.0 for name in often})


def some_disks(rng: random.Random, file_slabs: int) -> dict[str, SimDisk]:
    """Paths of one file or several, most of them with the same faults, by name."""
    sizes = rng.choice([(2,), (1, 1), (2, 1), (3, 2)])  # files of each path
    faults = some_faults(rng)
    return {
        f"path {number}": SimDisk(
            files, file_slabs * SLAB, rng, faults if rng.random() < 0.7 else Faults()
        )
        for number, files in enumerate(sizes)
    }
