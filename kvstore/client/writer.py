"""Publishing blocks: reserve, store each layer as it is done, seal.

A block whose seal never comes is given up with its writer. Strips become visible to the holder of
the hand-off as soon as they are stored, so a reader can follow layer by layer.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from kvstore.block import Chain
from kvstore.client.connection import Connection, Link
from kvstore.client.memory import heads_of, memory_of
from kvstore.client.space import Space, slots_of, starts_of
from kvstore.errors import AlreadyWritten, Invalid, KVStoreError, SessionEnded, WindowClosed
from kvstore.layout import Fragment
from kvstore.transfer.protocol import Memory
from kvstore.wire.v1 import kv_pb2 as pb


class Event(Protocol):
    """Says when a producer has really written a layer: `torch.cuda.Event` and its like."""

    def synchronize(self) -> None: ...


class Writer:
    """Write windows on consecutive blocks of one chain, taken when it is made.

    `granted[i]` is False for a block that is sealed already; storing it again is not needed and is
    passed over. Use as a context manager: blocks left unsealed are aborted.
    """

    def __init__(
        self,
        connection: Connection,
        space: Space,
        chain: Chain,
        first: int,
        fragment: Fragment | None,
        writer_group: str,
        hand_off: bool,
    ) -> None:
        self._connection, self._space = connection, space
        self._link: Link = connection.link()
        self.chain, self.first = chain, first
        self.fragment = space.layout.check(fragment or space.layout.whole)
        blocks = chain.between(first, len(chain))
        if not len(blocks):
            raise Invalid(
                f"first {first}: the chain has {len(chain)} blocks, none are left to write"
            )
        request = pb.ReserveRequest(
            session=self._link.session,
            namespace=space.digest,
            group=space.group,
            parent=chain.parent(first),
            hashes=blocks.hashes,
            last_tokens=blocks.tokens[-1],
            writer_group=writer_group,
            fragment=_on_wire(self.fragment),
            hand_off=hand_off,
        )
        reply = connection.call(lambda link: link.kv.Reserve, request)
        self.granted = np.array(reply.grants) == pb.ReserveReply.GRANTED
        self._handles: list[bytes] = list(reply.handles)
        self.hand_offs: tuple[bytes, ...] = tuple(reply.hand_offs)
        self._slots = slots_of(reply.slot_offsets, reply.generations, blocks.tokens)
        self._starts = starts_of(blocks, first)
        self._stored = np.zeros((len(blocks), self.fragment.layers), dtype=bool)
        self._open = self.granted.copy()

    def put_layer(
        self,
        layer: int,
        tensor: Any,
        axes: str,
        *,
        block_table: Any = None,
        heads: int | None = None,
        blocks: tuple[int, int] | None = None,
        after: Event | None = None,
    ) -> None:
        """Store one layer's K and V of the window's blocks, or of blocks [a, b) of the chain.

        `tensor` is the engine's own cache of that layer (see `memory_of`), `heads` the block's KV
        head at its first head index (default: the window's first). The call returns when the
        bytes are stored and hashed; `after` is waited for first. Each strip is stored once.
        """
        first_head = self.fragment.head_first if heads is None else heads
        memory = memory_of(
            [tensor],
            self._space.layout,
            self._space.spec.dtype,
            axes,
            block_table,
            layer_first=layer,
            head_first=first_head,
        )
        part = Fragment(layer, 1, first_head, heads_of(tensor, axes))
        self.put(memory, part, blocks=blocks, after=after)

    def put(
        self,
        memory: Memory,
        part: Fragment | None = None,
        *,
        blocks: tuple[int, int] | None = None,
        after: Event | None = None,
    ) -> None:
        """Store a fragment (default: the window's) of blocks [a, b) of the chain from `memory`."""
        part = self._space.layout.check(part or self.fragment)
        if not self.fragment.covers(part):
            raise Invalid(f"{part} lies outside the window's {self.fragment}")
        rows = self._rows(blocks)
        layers = slice(
            part.layer_first - self.fragment.layer_first,
            part.layer_first - self.fragment.layer_first + part.layers,
        )
        whole_heads = part.heads == self.fragment.heads
        if whole_heads and self._stored[rows, layers].any():
            raise AlreadyWritten(f"{part} has been stored; a strip is written once")
        if after is not None:
            after.synchronize()
        if len(rows):
            slots = self._slots.pick(rows)
            self._link.transport.store(self._space.layout, slots, memory, self._starts[rows], part)
        if whole_heads:
            self._stored[rows, layers] = True

    def seal(self, blocks: tuple[int, int] | None = None) -> list[str]:
        """Make blocks [a, b) of the chain (default: all) readable by everyone.

        For each block that was granted: 'SEALED', 'WAITING' for other members of the writer group,
        or 'EXISTED' where another writer was first. Raises `Incomplete` naming what is missing.
        """
        rows = self._rows(blocks)
        if not len(rows):
            return []
        request = pb.SealRequest(
            session=self._link.session, handles=[self._handles[row] for row in rows]
        )
        reply = self._call(lambda link: link.kv.Seal, request)
        self._open[rows] = False
        return [pb.SealReply.Sealed.Name(one) for one in reply.sealed]

    def abort(self) -> None:
        """Give up the blocks that are not sealed. Never raises: the session's end does the same."""
        rows = np.flatnonzero(self._open)
        self._open[:] = False
        if len(rows):
            request = pb.AbortRequest(
                session=self._link.session, handles=[self._handles[row] for row in rows]
            )
            try:
                self._call(lambda link: link.kv.Abort, request)
            except KVStoreError:
                return

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _rows(self, blocks: tuple[int, int] | None) -> Any:
        """Rows of the window's open blocks within blocks [a, b) of the chain."""
        first, last = blocks or (self.first, len(self.chain))
        if not self.first <= first <= last <= len(self.chain):
            raise Invalid(f"blocks {first}..{last}: the window has {self.first}..{len(self.chain)}")
        rows = np.arange(first - self.first, last - self.first)
        return rows[self._open[rows]]

    def _call(self, method: Any, request: Any) -> Any:
        if not self._link.alive:
            raise WindowClosed("the session that reserved these blocks has ended")
        try:
            return self._connection.call(method, request)
        except SessionEnded as error:
            raise WindowClosed(str(error)) from error


def _on_wire(fragment: Fragment) -> pb.Fragment:
    return pb.Fragment(
        layer_first=fragment.layer_first,
        layers=fragment.layers,
        head_first=fragment.head_first,
        heads=fragment.heads,
    )
