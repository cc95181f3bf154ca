"""Same host: the node's arena mapped into this process, so a move is one pass over memory.

Reads go through a read-only mapping, but for those of a GPU, which copies for itself
(`kvstore.transfer.reached`). The data socket is closed only when no move is under way,
because its end tells the node that this process can write to the arena no more.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.core.lifecycle import State
from kvstore.core.spread import ALIKE, Spread
from kvstore.errors import SessionEnded, Unavailable
from kvstore.kernels import strips
from kvstore.kernels.strips import Blocks
from kvstore.layout import (
    GENERATION_OFFSET,
    IDENTITY_OFFSET,
    STATE_OFFSET,
    TABLE_OFFSET,
    Fragment,
    SlotLayout,
)
from kvstore.limits import PROBE_BYTES_MAX
from kvstore.memory.arena import HELLO, HELLO_MAGIC, Arena
from kvstore.memory.order import fence
from kvstore.transfer.copiers import Copiers
from kvstore.transfer.kernel_terms import geometry, pages, span
from kvstore.transfer.lent import HANDLE_BYTES, NOTHING, Lent, Offer, lent
from kvstore.transfer.probe import Probe
from kvstore.transfer.protocol import Ints, Mask, Memory, Slots
from kvstore.transfer.reached import Reached

_PROBES = 3  # the first may bring pages in, and others want this host's cores too


class ShmTransport:
    """One mapping of one node's arena, tied to one session."""

    name = "shm"

    def __init__(
        self,
        path: str,
        token: bytes,
        arena_bytes: int,
        deadline_seconds: float,
        copy_threads: int | None = None,
        offer: Offer = NOTHING,
        device: Any = None,
        spread: Spread = ALIKE,
    ) -> None:
        """`copy_threads`: see `Copiers`. `offer`: HBM that the node lends; `device`: the caller's
        own GPU, where it has one that its KV is on; `spread`: the NUMA nodes of the arena."""
        more, size = offer.size_bytes, HANDLE_BYTES if offer.size_bytes else 0
        self._socket, descriptor, handle = _attach(path, token, arena_bytes, deadline_seconds, size)
        try:
            self._reading, self._writing = _mapped(descriptor, arena_bytes, more, spread)
        except OSError as error:
            self._socket.close()
            raise _unmapped(path, error) from error
        self._copiers = Copiers(copy_threads)
        self._reached = Reached(self._writing)
        self._lent = lent(offer, handle, device, self._writing)
        self._idle = threading.Condition()
        self._moves = 0
        self._closed = False

    def lends(self, layout: SlotLayout) -> bool:
        return self._lent is not None and self._lent.takes(layout)

    def takes(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        with self._moving():
            blocks, above = _blocks(layout, slots, starts), self._in_hbm(slots)
            if above.any():
                if self._lent is None:
                    raise SessionEnded("the node that lent this HBM is gone: open the blocks again")
                self._lent.check(layout, blocks, memory, fragment)
            return self._reached.takes(layout, blocks, memory, fragment) | above

    def store(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> None:
        blocks = _blocks(layout, slots, starts)
        if memory.staging is not None:
            with self._moving():
                for way, rows in self._ways(slots):
                    way.store(layout, blocks.pick(rows), memory, fragment)
            return
        self._check_on_host(layout, blocks, slots, memory, fragment)

        def move(rows: slice) -> None:
            strips.gather(
                self._writing.bytes,
                geometry(layout),
                blocks.pick(rows),
                pages(memory, fragment),
                memory.block_table,
                *span(fragment),
            )

        with self._moving():
            self._copiers.each(len(slots), _bytes(layout, len(slots), fragment), move)

    def load(
        self, layout: SlotLayout, slots: Slots, memory: Memory, starts: Ints, fragment: Fragment
    ) -> Mask:
        with self._moving():
            good = self._vouched(layout, slots)
            if not good.all():
                slots, starts = slots.pick(good), starts[good]
            blocks = _blocks(layout, slots, starts)
            if memory.staging is not None:
                came = np.zeros(len(slots), bool)
                for way, rows in self._ways(slots):
                    came[rows] = way.load(layout, blocks.pick(rows), memory, fragment)
                good[good] = came
                return good
            self._check_on_host(layout, blocks, slots, memory, fragment)

            def move(rows: slice) -> Mask:
                return strips.scatter(
                    self._reading.bytes,
                    geometry(layout),
                    blocks.pick(rows),
                    pages(memory, fragment),
                    memory.block_table,
                    *span(fragment),
                )

            size = _bytes(layout, len(slots), fragment)
            good[good] = np.concatenate(self._copiers.each(len(slots), size, move))
            return good

    def ahead(self, layout: SlotLayout, count: int, fragment: Fragment) -> None:
        """Never: nothing is on its way, it is there."""

    def verify(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Mask:
        with self._moving():
            blocks = _blocks(layout, slots, np.zeros(len(slots), np.int64))
            good = strips.verify(self._reading.bytes, geometry(layout), blocks, *span(fragment))
            return np.asarray(good & self._vouched(layout, slots))

    def written(self, layout: SlotLayout, slots: Slots, fragment: Fragment) -> Ints:
        with self._moving():
            blocks = _blocks(layout, slots, np.zeros(len(slots), np.int64))
            return strips.written(self._reading.bytes, geometry(layout), blocks, *span(fragment))

    def stirred(self, layout: SlotLayout, slots: Slots, layers: Ints, fragment: Fragment) -> bool:
        last = (fragment.layer_first + layers) * layout.kv_heads
        last += fragment.head_first + fragment.heads - 1
        with self._moving():
            news = self._reading.words[(slots.offsets + TABLE_OFFSET) // 8 + last].any()
        return bool(news) or not self.filling(slots).all()

    def current(self, slots: Slots, sound: Mask) -> Mask:
        # A doomed slot keeps its generation, and its bytes, for whoever still holds it.
        same, states = self._heads(slots)
        return np.asarray(same & (states != State.EMPTY))

    def filling(self, slots: Slots) -> Mask:
        same, states = self._heads(slots)
        return np.asarray(same & (states == State.FILLING))

    def views(self, layout: SlotLayout, slots: Slots) -> list[npt.NDArray[np.uint8]]:
        with self._moving():
            shape = (layout.strips, layout.strip_stride)
            starts = [int(o) + layout.head_bytes for o in slots.offsets]
            memory, size = self._reading.bytes, layout.payload_bytes
            return [memory[at : at + size].reshape(shape) for at in starts]

    def probe(self) -> Probe:
        """How fast this process copies from the mapping; it writes as fast, and to no slot now."""
        with self._moving():
            source = self._reading.bytes[:PROBE_BYTES_MAX]
            target = np.full_like(source, 1)  # whose pages are there then
            took = max(min(_copied(target, source) for _ in range(_PROBES)), 1e-9)
            return Probe(0.0, source.nbytes / took, source.nbytes / took)

    def give_back(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._moves == 0)
            lent, self._lent = self._lent, None
        if lent is not None:
            lent.close()

    def close(self) -> None:
        """Let moves under way finish, then tell the node that we write no more."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._moves == 0)
        self._copiers.close()
        self._reached.close()
        self.give_back()
        self._writing.close()
        self._reading.close()  # stays mapped, read-only, while views of it are in use
        self._socket.close()

    def _in_hbm(self, slots: Slots) -> Mask:
        return np.asarray(slots.offsets >= self._reading.size)

    def _check_on_host(
        self, layout: SlotLayout, blocks: Blocks, slots: Slots, memory: Memory, fragment: Fragment
    ) -> None:
        """Raise `Invalid` where the memory is the host's and the slots' is not."""
        if self._lent is not None and self._in_hbm(slots).any():
            self._lent.check(layout, blocks, memory, fragment)

    def _ways(self, slots: Slots) -> Iterator[tuple[Reached | Lent, Ints]]:
        """How memory in HBM is moved to and from slots, and which of them."""
        above = self._in_hbm(slots)
        for way, rows in ((self._lent, above), (self._reached, ~above)):
            if way is not None and rows.any():
                yield way, np.flatnonzero(rows)

    def _vouched(self, layout: SlotLayout, slots: Slots) -> Mask:
        """Blocks whose strip table has the root the owner gave; filling ones have none yet."""
        good = np.ones(len(slots), dtype=bool)
        rows = np.flatnonzero(slots.rooted)
        if len(rows):
            offsets = slots.offsets[rows] + IDENTITY_OFFSET
            found = strips.roots(self._reading.bytes, offsets, layout.root_bytes)
            good[rows] = (found == slots.roots[rows]).all(axis=1)
        return good

    def _heads(self, slots: Slots) -> tuple[Mask, npt.NDArray[np.uint32]]:
        """Whether each slot has the generation that was opened, and its state, by now."""
        fence()  # behind whatever was read of the slots before
        with self._moving():
            words = self._reading.words
            states = words.view(np.uint32)[(slots.offsets + STATE_OFFSET) // 4]
            generations = words[(slots.offsets + GENERATION_OFFSET) // 8]
        return generations == slots.generations, states

    @contextmanager
    def _moving(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise SessionEnded("the session's mapping is closed: open the blocks again")
            self._moves += 1
        try:
            yield
        finally:
            with self._idle:
                self._moves -= 1
                self._idle.notify_all()


def _copied(target: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> float:
    """How many seconds that took."""
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began


def _attach(
    path: str, token: bytes, arena_bytes: int, deadline_seconds: float, more: int
) -> tuple[socket.socket, int, bytes]:
    """The connection, the arena, and so many bytes more that the node says."""
    try:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _unmapped(path, error) from error
    try:
        peer.settimeout(deadline_seconds)
        peer.connect(path)
        peer.sendall(token)
        said, descriptors, _, _ = socket.recv_fds(peer, HELLO.size + more, 1)
    except OSError as error:
        peer.close()
        raise _unmapped(path, error) from error
    whole = len(said) == HELLO.size + more and len(descriptors) == 1
    if not whole or HELLO.unpack(said[: HELLO.size]) != (HELLO_MAGIC, arena_bytes):
        for descriptor in descriptors:
            os.close(descriptor)
        peer.close()
        raise Unavailable(f"{path} did not hand out an arena of {arena_bytes} bytes")
    peer.settimeout(None)
    return peer, descriptors[0], said[HELLO.size :]


def _mapped(descriptor: int, size: int, more: int, spread: Spread) -> tuple[Arena, Arena]:
    """To read by, and to write by too. The descriptor is closed, whatever comes of it."""
    try:
        reading = Arena.map(os.dup(descriptor), size, mmap.PROT_READ, more)
        try:
            both = mmap.PROT_READ | mmap.PROT_WRITE
            return reading, Arena.map(os.dup(descriptor), size, both, more, spread)
        except BaseException:
            reading.close()
            raise
    finally:
        os.close(descriptor)


def _unmapped(path: str, error: OSError) -> Unavailable:
    return Unavailable(f"the node's memory cannot be mapped through {path}: {error}")


def _bytes(layout: SlotLayout, count: int, fragment: Fragment) -> int:
    """Of a fragment of so many blocks, at most."""
    return count * fragment.layers * fragment.heads * layout.strip_stride


def _blocks(layout: SlotLayout, slots: Slots, starts: Ints) -> Blocks:
    return Blocks(
        slots.offsets + layout.head_bytes, slots.offsets + TABLE_OFFSET, slots.tokens, starts
    )
