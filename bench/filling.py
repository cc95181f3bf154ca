"""What a bench has an SSD tier hold: chains of the smallest blocks, no two of them alike.

They are stored by a real client in a real node, whose own write-back brings them to SSD; nothing
is laid there behind its back. Tokens and bytes follow from a chain's and a block's number, so a
bench knows what it is to find without keeping it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from bench.pool import bfloat16_like, touched
from kvstore.block import Keyed
from kvstore.client import PAGED, Chain, Client
from kvstore.layout import SlotLayout
from kvstore.wire.v1 import admin_pb2 as pb

CHAIN_BLOCKS = 40
BATCH_BLOCKS = 4_000  # stored at once
WAITING_MAX = 16_384  # blocks that are not on SSD yet: the node's DRAM has room for many more
STALLED_S = 60.0  # without one more block on SSD
DEADLINE_S = 30.0  # of a call while the tier is filled: the disk may be busy
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


def fill(directory: Path, filling: Filling) -> None:
    """Store every chain, and return when all of it is on SSD."""
    batch = BATCH_BLOCKS // CHAIN_BLOCKS
    with (
        Client.at(directory, SPEC, label="bench fill", deadline_seconds=DEADLINE_S) as client,
        tqdm(total=filling.blocks, unit=" blocks", desc="on SSD", mininterval=1) as bar,
    ):
        for first in range(0, filling.chains, batch):
            numbers = range(first, min(filling.chains, first + batch))
            chains = [filling.chain(client, number) for number in numbers]
            hashes = tuple(one for chain in chains for one in chain.hashes)
            parents = tuple(chain.parent(n) for chain in chains for n in range(len(chain)))
            start = first * CHAIN_BLOCKS
            layer = filling.payload(range(start, start + len(hashes)))
            memory = client.memory([layer], PAGED, np.arange(len(hashes)))
            if not all(client.store_each(Keyed(hashes, LAYOUT.block_tokens, parents), memory)):
                raise RuntimeError(f"of blocks {start} on some could not be stored")
            _wait_stored(client, start + len(hashes) - WAITING_MAX, bar)
        _wait_stored(client, filling.blocks, bar)


def _wait_stored(client: Client, wanted: int, bar: tqdm[None]) -> None:
    """Until so many blocks are on SSD, and none was lost on its way there."""
    moved = time.monotonic()
    while True:
        counters = stats(client).counters
        stored = counters["stored_blocks"]
        if lost := counters["unstored_blocks"] + counters["evicted_blocks"]:
            raise RuntimeError(f"{lost} blocks did not come to SSD")
        if stored > bar.n:
            moved = time.monotonic()
            bar.update(stored - bar.n)
        if stored >= wanted:
            return
        if time.monotonic() > moved + STALLED_S:
            raise RuntimeError(f"no block came to SSD for {STALLED_S:.0f} s, after {stored}")
        time.sleep(0.05)


def stats(client: Client) -> pb.StatsReply:
    request = pb.StatsRequest()
    reply: pb.StatsReply = client.connection.call(lambda link: link.admin.Stats, request)
    return reply
