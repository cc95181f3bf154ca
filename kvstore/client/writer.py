"""Publishing blocks: reserve, store each layer as it is done, seal.

A block whose seal never comes is given up with its writer. Strips become visible to the holder of
the hand-off as soon as they are stored, so a reader can follow layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Protocol, TypeVar

import numpy as np

from kvstore.client.answer import Answer
from kvstore.client.bounds import check_bounds
from kvstore.client.memory import heads_of, memory_of
from kvstore.client.reserving import Reserving
from kvstore.client.space import calls, slots_of, starts_of
from kvstore.errors import AlreadyWritten, Invalid, SessionEnded, WindowClosed
from kvstore.layout import Fragment
from kvstore.limits import REPLICAS_MAX
from kvstore.transfer import staged
from kvstore.transfer.protocol import Ints, Memory
from kvstore.wire.v1 import kv_pb2 as pb

T = TypeVar("T")

_NAMES = {number: name for name, number in pb.SealReply.Sealed.items()}


class Event(Protocol):
    """Says when a producer has really written a layer: `torch.cuda.Event` and its like."""

    def synchronize(self) -> None: ...


class Writer:
    """Write windows on consecutive blocks of one chain, taken when it is made.

    `granted[i]` is False for a block that is sealed already; storing it again is not needed and is
    passed over. `hand_offs[i]` is for block `first + i`. Use as a context manager: blocks left
    unsealed are aborted. One thread at a time; a client may have many writers.
    """

    def __init__(self, asked: Reserving, starts: Ints | None = None) -> None:
        """Waits for what was asked for; raises what the node refused it for.

        `starts`: each block's first token in the memory, where they do not lie one after another.
        """
        self._asked, self._space, self._link = asked, asked.space, asked.link
        self.chain, self.first, self.fragment = asked.chain, asked.first, asked.fragment
        blocks, reply = asked.blocks, asked.reply()
        self.granted = np.array(reply.grants) == pb.ReserveReply.GRANTED
        self._handles: list[bytes] = list(reply.handles)
        self.hand_offs: tuple[bytes, ...] = tuple(reply.hand_offs)
        columns = (reply.slot_offsets, reply.generations, blocks.tokens)
        self._slots = slots_of(*columns, self._handles)
        self._starts = starts_of(blocks, self.first) if starts is None else starts
        layers, heads = self.fragment.layers, self.fragment.heads
        self._stored = np.zeros((len(blocks), layers, heads), dtype=bool)
        self._open = self.granted.copy()
        # Of each block of the window, nodes that had it when it was sealed; 0: not sealed here.
        self.copies = np.zeros(len(blocks), dtype=np.int64)

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
        slots, starts = self._slots.pick(rows), self._starts[rows]
        memory.check(part, starts, slots.tokens)
        layer, head = (
            part.layer_first - self.fragment.layer_first,
            part.head_first - self.fragment.head_first,
        )
        strips = (rows, slice(layer, layer + part.layers), slice(head, head + part.heads))
        if self._stored[strips].any():
            raise AlreadyWritten(f"{part} has been stored; a strip is written once")
        if after is not None:
            after.synchronize()
        if len(rows):
            try:
                staged.store(self._link.transport, self._space.layout, slots, memory, starts, part)
            except SessionEnded as error:
                raise WindowClosed(str(error)) from error
        self._stored[strips] = True

    def seal(self, blocks: tuple[int, int] | None = None, *, replicas: int = 1) -> list[str]:
        """Make blocks [a, b) of the chain (default: all) readable by everyone.

        For each block that was granted: 'SEALED', 'WAITING' for other members of the writer group,
        or 'EXISTED' where another writer was first. Raises `Incomplete` naming what is missing.

        `replicas` nodes shall have them, this one among them: it waits for that until shortly
        before the client's deadline, and `copies` says how far it came. That fails nothing.
        """
        return self.begin_seal(blocks, replicas=replicas).get()

    def begin_seal(
        self, blocks: tuple[int, int] | None = None, *, replicas: int = 1
    ) -> Answer[list[str]]:
        """The same, while the caller does other things: the answer says what became of them."""
        check_bounds("replicas", replicas, 0, REPLICAS_MAX)
        rows = self._rows(blocks)
        first, *others = [rows[some] for some in calls(len(rows))] or [rows]
        if not len(first):
            return Answer(list)
        begun = self._seal(first, replicas)

        def rest() -> list[str]:
            more = (self._seal(some, replicas).get() for some in others)
            return [*begun.get(), *chain.from_iterable(more)]

        return Answer(rest)

    def _seal(self, rows: Any, replicas: int) -> Answer[list[str]]:
        handles = [self._handles[row] for row in rows]
        request = pb.SealRequest(session=self._link.session, handles=handles, replicas=replicas)
        if not self._link.alive:
            raise WindowClosed("the session that reserved these blocks has ended")
        answer = self._ask(lambda: self._asked.connection.begin("Seal", request))
        return Answer(partial(self._sealed, rows, answer))

    def _sealed(self, rows: Any, answer: Answer[pb.SealReply]) -> list[str]:
        reply = self._ask(answer.get)
        self._open[rows] = False
        self.copies[rows] = list(reply.copies) or 1
        return [_NAMES[one] for one in reply.sealed]

    def abort(self) -> None:
        """Give up the blocks that are not sealed. Never raises: the session's end does the same."""
        rows = np.flatnonzero(self._open)
        self._open[:] = False
        self._asked.abort([self._handles[row] for row in rows])

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

    def _ask(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except SessionEnded as error:
            raise WindowClosed(str(error)) from error
