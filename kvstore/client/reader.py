"""Loading blocks into the caller's memory: verified, and layer by layer behind a writer.

`poll` moves whatever has landed since the last time and never waits; `wait` is a loop around it.
What it reports as loaded has been verified strip by strip, and its slots still held those blocks
after the last copy. Anything else is a miss: the caller recomputes from there.
"""

from __future__ import annotations

import time

import numpy as np
import xxhash

from kvstore.block import Chain, Miss
from kvstore.client.connection import Connection
from kvstore.client.memory import check_target
from kvstore.client.opened import Opened, Target
from kvstore.client.space import Space, starts_of
from kvstore.errors import SessionEnded, Unavailable
from kvstore.layout import Fragment
from kvstore.transfer.protocol import Memory

POLL_SECONDS = 2e-4  # how often a waiting reader looks for the next layer


class Reader:
    """Loads a chain's blocks from `first` on. Close it, or use it as a context manager.

    It loads the layers and heads that `memory` holds, or the part of them that `fragment` names.
    """

    def __init__(
        self,
        connection: Connection,
        space: Space,
        chain: Chain,
        memory: Memory,
        first: int = 0,
        hand_offs: tuple[bytes, ...] = (),
        fragment: Fragment | None = None,
        pin_ms: int = 0,
        writer_group: str = "",
        writer_node: str = "",
    ) -> None:
        blocks = space.blocks_from(chain, first)
        self._space = space
        self._fragment = space.layout.check(fragment or memory.fragment)
        starts = starts_of(blocks, first)
        memory.check(self._fragment, starts, np.array(blocks.tokens, dtype=np.int32))
        check_target(memory)
        target = Target(memory, starts, self._fragment)
        self._opened = Opened(
            connection, space, blocks, hand_offs, pin_ms, writer_group, writer_node, target
        )
        self._tokens = blocks.tokens
        self._damaged = np.zeros(self._opened.count, dtype=bool)
        self._end = self._opened.count  # blocks from here on are misses
        self._layers = np.zeros(self._opened.count, dtype=np.int64)  # loaded of each block
        self.miss: Miss | None = self._opened.miss
        self.bytes_loaded = 0

    @property
    def blocks(self) -> int:
        """Leading blocks wholly loaded."""
        return _leading(self._layers[: self._end] == self._fragment.layers)

    @property
    def tokens(self) -> int:
        """Leading tokens wholly loaded, counted from the reader's first block."""
        return sum(self._tokens[: self.blocks])

    @property
    def sealed_tokens(self) -> int:
        """Of `tokens`, those in blocks that were sealed already when they were opened."""
        loaded = self._opened.slots.pick(slice(0, self.blocks))
        return int(loaded.tokens[loaded.rooted].sum())

    def copies(self, blocks: int) -> tuple[int, int]:
        """Which copies the leading `blocks` come from, as two numbers of 63 bits: by their slots,
        and by their roots, 0 where one has none yet.

        The bytes of a block are one writer's. Readers that load parts of it, each with a session of
        its own, have parts of the same bytes where either number is the same for all of them.
        """
        slots, epoch = self._opened.slots.pick(slice(0, blocks)), self._opened.link.opened.epoch
        places = np.concatenate([slots.offsets.astype(np.uint64), slots.generations])
        by_slot = xxhash.xxh3_64_intdigest(places.tobytes(), seed=epoch) >> 1
        if not slots.rooted.all():
            return by_slot, 0
        return by_slot, xxhash.xxh3_64_intdigest(slots.roots.tobytes()) >> 1 | 1

    @property
    def done(self) -> bool:
        """Whether no more will come: all loaded, or the rest are misses."""
        return self.blocks == self._end

    @property
    def layers(self) -> int:
        """Leading layers loaded in every block that can still be had."""
        return int(self._layers[: self._end].min()) if self._end else self._fragment.layers

    def poll(self) -> bool:
        """Load what has landed since the last poll; True once no more will come."""
        if self.done:
            return True
        try:
            self._move()
        except (SessionEnded, Unavailable):  # with either went the way to its blocks
            self._give_up(np.arange(self.blocks, self._end), Miss.UNREACHABLE)
        return self.done

    def _move(self) -> None:
        link, layout, slots = self._opened.link, self._space.layout, self._opened.slots
        transport = link.transport
        rows = np.flatnonzero(self._layers[: self._end] < self._fragment.layers)
        waiting, done = slots.pick(rows), self._layers[rows]
        if link.alive and not transport.stirred(layout, waiting, done, self._fragment):
            return
        # Before the layers are looked at: then a block that fills no more has all it will get.
        alive = link.alive
        more = transport.filling(waiting) & alive
        bad = np.zeros(len(rows), dtype=bool)
        ready = transport.written(layout, waiting, self._fragment)
        # Nothing of this counts before its slots are looked at again: the way may break first.
        layers = self._layers.copy()
        # Blocks that gained the same layers move together: few groups, whatever the blocks.
        for first, last in sorted(set(zip(done.tolist(), ready.tolist(), strict=True))):
            if first >= last:
                continue
            part = Fragment(
                self._fragment.layer_first + first,
                last - first,
                self._fragment.head_first,
                self._fragment.heads,
            )
            chosen = (done == first) & (ready == last)
            group = rows[chosen]
            good = self._opened.load(group, part)
            layers[group[good]] = last
            bad[chosen] = ~good
            strip_bytes = sum(map(layout.strip_bytes, slots.tokens[group[good]].tolist()))
            self.bytes_loaded += strip_bytes * part.layers * part.heads
        # After the copies: what changed hands meanwhile was not this block, or is not any more.
        short = (layers[rows] < self._fragment.layers) & ~more
        bad |= short & waiting.rooted  # its root vouched for layers that are gone
        current = transport.current(waiting, ~bad)
        self._layers = layers
        self._damaged[rows[current & bad]] = True
        self._give_up(rows[~current], Miss.EVICTED)
        self._give_up(rows[current & bad], Miss.DAMAGED)
        self._give_up(rows[current & short & ~bad], Miss.ABSENT if alive else Miss.UNREACHABLE)

    def wait(self, timeout_seconds: float, layers: int | None = None) -> bool:
        """Poll until no more will come, or `layers` layers of all blocks have; False if late."""
        deadline = time.monotonic() + timeout_seconds
        while not self.poll() and (layers is None or self.layers < layers):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def close(self) -> None:
        """Let go of the blocks; those that failed their hash are reported to their owner."""
        self._opened.close(self._damaged)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_up(self, rows: np.ndarray, why: Miss) -> None:
        if len(rows) and rows.min() < self._end:
            self._end, self.miss = int(rows.min()), why


def _leading(flags: np.ndarray) -> int:
    """How many leading entries are true."""
    return int(flags.argmin()) if not flags.all() else len(flags)
