"""What a bench has an SSD tier hold: chains of the smallest blocks, no two of them alike.

They are laid onto the disk of a stopped node by the node's own code, since through a running one
half a million would take many minutes: sealed in a small arena, written with their heads, synced
and recorded, each under the key that the node would give it. Tokens and bytes follow from a chain's
and a block's number, so a bench knows what it is to find without keeping it.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from bench.pool import bfloat16_like, touched
from kvstore.block import stored_key
from kvstore.client import PAGED, Chain, Client
from kvstore.config import DEFAULT_TENANT
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.slabs import Slabs
from kvstore.disk.protocol import Disk
from kvstore.disk.volumes import Volumes
from kvstore.layout import SlotLayout
from kvstore.limits import MiB
from kvstore.memory.heads import Heads
from kvstore.memory.strips import StripWriter
from kvstore.metadata import open_metadata
from kvstore.metadata.records import TenantRecord
from kvstore.node.frozen import Frozen
from kvstore.node.recovery import record_of
from kvstore.node.threads import DEPTH
from kvstore.wire.v1 import admin_pb2 as pb

CHAIN_BLOCKS = 40
BATCH_BLOCKS = 4_000  # written, synced and recorded at once
SLAB_BYTES = 32 * MiB
FIRST_EPOCH = 1  # generations are the node's first start's, and no later one's
SPEC = bfloat16_like("recovery", layers=1, kv_heads=1, block_tokens=8)
LAYOUT = SlotLayout.of(SPEC, 0)


@dataclass(frozen=True, slots=True)
class Filling:
    """What the tier holds: chains of tokens drawn by their number, blocks that carry theirs."""

    blocks: int
    bytes: npt.NDArray[np.uint8]  # (BATCH_BLOCKS, bytes of a block), random

    @classmethod
    def of(cls, blocks: int) -> Filling:
        shape = (BATCH_BLOCKS, LAYOUT.payload_bytes)
        return cls(blocks, np.random.default_rng(0).integers(0, 256, shape, np.uint8))

    @property
    def chains(self) -> int:
        return -(-self.blocks // CHAIN_BLOCKS)

    def numbers(self, chain: int) -> range:
        """Those of a chain's blocks; the last chain may have fewer."""
        return range(chain * CHAIN_BLOCKS, min(self.blocks, (chain + 1) * CHAIN_BLOCKS))

    def chain(self, client: Client, number: int) -> Chain:
        count = len(self.numbers(number)) * LAYOUT.block_tokens
        return client.chain(np.random.default_rng(number).integers(0, 1 << 31, count))

    def payload(self, numbers: range) -> npt.NDArray[np.uint8]:
        """One layer, as a client stores and loads it: no two blocks are alike."""
        shape = (len(numbers), LAYOUT.kv_heads, LAYOUT.block_tokens, LAYOUT.parts, LAYOUT.run_bytes)
        layer, each = touched(shape), np.array(numbers, np.uint64)
        flat = layer.reshape(len(numbers), -1)
        flat[:] = self.bytes[each % np.uint64(BATCH_BLOCKS)]
        flat[:, :8] = each.view(np.uint8).reshape(-1, 8)
        return layer

    def check(self, client: Client, number: int) -> None:
        """A chain is matched whole, read, verified, and what was stored."""
        chain, want = self.chain(client, number), self.payload(self.numbers(number))
        found = client.match(chain)
        if found.blocks != len(chain):
            raise RuntimeError(f"chain {number}: {found.blocks} of {len(chain)}: {found.miss}")
        got = np.zeros_like(want)
        found = client.get(chain, client.memory([got], PAGED, np.arange(len(chain))))
        if found.blocks != len(chain) or not np.array_equal(got, want):
            raise RuntimeError(f"chain {number} was read wrong, or not whole: {found}")


def fill(directory: Path, filling: Filling, client: Client, disk: Disk) -> None:
    """Lay every block onto the disk of a node that is stopped, and record it as the node does."""
    secret = asyncio.run(_secret(directory))
    volumes = Volumes({"filled": disk})
    slabs = Slabs(volumes.capacity_bytes, SLAB_BYTES, Tier.SSD, FIRST_EPOCH << 40)
    view = memoryview(mmap.mmap(-1, BATCH_BLOCKS * LAYOUT.slot_bytes))
    heads, frozen = Heads(view), Frozen(view, volumes)
    batch = BATCH_BLOCKS // CHAIN_BLOCKS
    with (
        ThreadPoolExecutor(DEPTH) as threads,
        tqdm(total=filling.blocks, unit=" blocks", desc="on SSD", mininterval=1) as bar,
    ):
        for first in range(0, filling.chains, batch):
            numbers = range(first, min(filling.chains, first + batch))
            chains = [filling.chain(client, number) for number in numbers]
            sources = _named(client, chains, secret)
            begin = first * CHAIN_BLOCKS
            payload = filling.payload(range(begin, begin + len(sources)))
            for source, data in zip(sources, payload, strict=True):
                _seal(source, data.tobytes(), view, heads)
            targets = [slabs.take(source.owner, LAYOUT.slot_bytes) for source in sources]
            placed = [target for target in targets if target is not None]
            if not all(threads.map(frozen.write, sources, placed, repeat(LAYOUT, len(sources)))):
                raise RuntimeError(f"of blocks {begin} on some were damaged in memory")
            for file in {volumes.file_of(target.offset) for target in placed}:
                volumes.sync(file)
            pairs = zip(sources, placed, strict=True)
            volumes.commit(0, {one.key: record_of(one, at, volumes) for one, at in pairs}, ())
            bar.update(len(sources))


def _named(client: Client, chains: Sequence[Chain], secret: bytes) -> list[Slot]:
    """Slots of the arena, one behind the other, with the words of each block."""
    space = client.space
    slots: list[Slot] = []
    for chain in chains:
        parent = b""
        for one, tokens in zip(chain.hashes, chain.tokens, strict=True):
            key = stored_key(secret, space.digest, space.group, one)
            number = len(slots)
            slot = Slot(number, number * LAYOUT.slot_bytes, (space.digest, space.group))
            slot.key, slot.parent, slot.tokens, slot.tenant = key, parent, tokens, DEFAULT_TENANT
            slots.append(slot)
            parent = key
    return slots


def _seal(slot: Slot, data: bytes, view: memoryview, heads: Heads) -> None:
    slot.move(State.FILLING)
    heads.fill(slot, LAYOUT)
    StripWriter(view, heads, slot, LAYOUT, LAYOUT.whole).write(data)
    slot.root = heads.root(slot, LAYOUT)
    slot.move(State.SEALED)
    heads.seal(slot)


async def _secret(directory: Path) -> bytes:
    """The tenant's, which the node drew when it first started."""
    metadata = open_metadata(os.fspath(directory / "metadata.db"))
    try:
        entry = await metadata.get(TenantRecord.prefix + DEFAULT_TENANT)
        assert entry is not None, "the node has never run"
        return bytes.fromhex(TenantRecord.parse(entry).secret)
    finally:
        await metadata.close()


def stats(client: Client) -> pb.StatsReply:
    request = pb.StatsRequest()
    reply: pb.StatsReply = client.connection.call(lambda link: link.admin.Stats, request)
    return reply
