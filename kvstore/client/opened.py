"""Opened blocks: pinned at the owner, with what it takes to verify them and to let them go.

Of a chain only the leading blocks are of use. Of blocks that stand alone each is, whatever became
of those before it; `rows` says which they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvstore.block import Blocks, Miss
from kvstore.client.bounds import check_bounds
from kvstore.client.connection import Connection
from kvstore.client.space import Space, calls, on_wire, slots_of
from kvstore.errors import Invalid, KVStoreError, Unavailable
from kvstore.layout import Fragment
from kvstore.limits import PIN_MS_MAX
from kvstore.transfer import staged
from kvstore.transfer.protocol import Ahead, Ints, Mask, Memory
from kvstore.wire.v1 import kv_pb2 as pb

CLOSE_SECONDS = 5.0
_MISSES = {
    pb.ABSENT: Miss.ABSENT,
    pb.UNSEALED: Miss.UNSEALED,
    pb.UNLISTED: Miss.UNLISTED,
    pb.EVICTED: Miss.EVICTED,
    pb.REMOVED: Miss.REMOVED,
    pb.DAMAGED: Miss.DAMAGED,
    pb.QUARANTINED: Miss.QUARANTINED,
    pb.NO_ROOM: Miss.NO_ROOM,
    pb.LATE: Miss.LATE,
    pb.UNREACHABLE: Miss.UNREACHABLE,
    pb.FORGONE: Miss.FORGONE,
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where blocks will be loaded to: a part of each, block i to token `starts[i]` of `memory`."""

    memory: Memory
    starts: Ints
    part: Fragment


def miss_of(outcome: pb.Outcome) -> Miss:
    """What a node says of a block that it has not: it may be of a later version, and say more."""
    return _MISSES.get(outcome, Miss.ABSENT)


def hits_of(reply: pb.OpenReply, tokens: Sequence[int]) -> Mask:
    """Which of the blocks of these lengths were found."""
    found = np.array(reply.outcomes) == pb.HIT
    # A hit of other length has a key that its maker gave to two: this one is absent.
    same = np.array(reply.tokens) == np.array(tokens[: len(found)])
    return np.asarray(found & same)


class Opened:
    """The blocks that could be opened, and why the first of the others could not."""

    def __init__(
        self,
        connection: Connection,
        space: Space,
        chain: Blocks,
        hand_offs: Sequence[bytes],
        pin_ms: int,
        writer_group: str = "",
        writer_node: str = "",
        target: Target | None = None,
    ) -> None:
        """With a `target` the blocks may begin to come at once: `load` them soon."""
        self._space, self._target = space, target
        self._connection = connection
        if hand_offs and len(hand_offs) != len(chain):
            raise Invalid(f"{len(hand_offs)} hand_offs for {len(chain)} blocks; one each is wanted")
        check_bounds("pin_ms", pin_ms, 0, PIN_MS_MAX)
        self.link = connection.link()
        self._closed = False
        self._handles: list[bytes] = []  # all are closed, those behind the first miss too
        near = target is not None and target.memory.staging is not None
        near = near and self.link.transport.lends(space.layout)
        reply = pb.OpenReply()
        requests = [  # before any is sent: what no message holds is wrong by itself
            pb.OpenRequest(
                session=self.link.session,
                namespace=space.digest,
                group=space.group,
                hashes=chain.hashes[some],
                hand_offs=hand_offs[some],
                pin_ms=pin_ms,
                writer_group=writer_group,
                writer_node=writer_node,
                hbm=near,
            )
            for some in calls(len(chain))
        ]
        self._ahead = self._way_ahead(len(chain))
        try:
            for request in requests:
                if request is requests[0]:
                    self._ask_ahead(request)
                part = connection.call(lambda link: link.kv.Open, request)
                self._handles.extend(part.handles)
                reply.MergeFrom(part)
                if not chain.alone and any(outcome != pb.HIT for outcome in part.outcomes):
                    break
        except KVStoreError:
            self.close()
            raise
        except BaseException:  # interrupted: what was opened has handles that nobody knows
            self._end_ahead()
            connection.give_up(self.link)
            raise
        outcomes, hits = reply.outcomes, hits_of(reply, chain.tokens)
        misses = np.flatnonzero(~hits)
        first = int(misses[0]) if len(misses) else len(hits)
        self.miss = miss_of(outcomes[first]) if len(misses) else None
        self.rows = np.flatnonzero(hits) if chain.alone else np.arange(first)
        self.count = len(self.rows)
        columns = (reply.slot_offsets, reply.generations, reply.tokens)
        self.slots = slots_of(*columns, self._handles, reply.roots).pick(self.rows)
        if self._ahead is not None:
            self._ahead.blocks = reply.ahead_blocks
            if not reply.ahead_blocks:
                self._end_ahead()

    def load(self, rows: Ints, part: Fragment) -> Mask:
        """As `Transport.load`, of a part of these of the blocks, to where the target says."""
        assert self._target is not None, "opened to be loaded"
        good = np.zeros(len(rows), dtype=bool)
        came = self._load_ahead(rows, part, good)
        if came < len(rows):
            good[came:] = staged.load(
                self.link.transport,
                self._space.layout,
                self.slots.pick(rows[came:]),
                self._target.memory,
                self._target.starts[self.rows[rows[came:]]],
                part,
            )
        return good

    def _load_ahead(self, rows: Ints, part: Fragment, good: Mask) -> int:
        """How many of these, from the first on, came without being asked for."""
        ahead, target = self._ahead, self._target
        if ahead is None or target is None or part != target.part:
            return 0
        blocks = ahead.blocks
        if not np.array_equal(self.rows[rows[:blocks]], np.arange(blocks)):
            return 0  # others are wanted first; or not all of them, and none of them comes then
        where = (self.slots.pick(rows[:blocks]), target.memory, target.starts[:blocks], part)
        try:
            good[:blocks] = ahead.load(self._space.layout, *where)
        except Unavailable:
            blocks = 0  # whoever loads late was hung up on: it asks then, as if none had come
        self._end_ahead()
        return blocks

    def _way_ahead(self, count: int) -> Ahead | None:
        if self._target is None:
            return None
        memory, part = self._target.memory, self._target.part
        return staged.ahead(self.link.transport, self._space.layout, count, memory, part)

    def _ask_ahead(self, request: pb.OpenRequest) -> None:
        if self._ahead is not None and self._target is not None:
            part = self._target.part
            request.read_ahead.connections.extend(self._ahead.connections)
            request.read_ahead.fragment.CopyFrom(on_wire(part))

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def close(self, suspects: Mask | None = None) -> None:
        """Let go of the pins. Waits for the owner only to name blocks that failed their hash."""
        if self._closed:
            return
        self._closed = True
        self._end_ahead()
        try:
            self._let_go(suspects)
        except BaseException:  # interrupted: it did not come to some of them
            self._connection.give_up(self.link)
            raise

    def _let_go(self, suspects: Mask | None) -> None:
        bad = [] if suspects is None else [self._handles[i] for i in self.rows[suspects]]
        for some in calls(len(bad) if self.link.alive else 0, times=2):
            # The caller may reserve these blocks next: by then the owner must have looked.
            with contextlib.suppress(KVStoreError):
                self._connection.call(
                    lambda link: link.kv.Close,
                    pb.CloseRequest(
                        session=self.link.session, handles=bad[some], suspects=bad[some]
                    ),
                )
        if not self.link.alive:
            return  # they have ended with its session; gRPC would want a thread to say so
        reported = set(bad)
        good = [handle for handle in self._handles if handle and handle not in reported]
        for some in calls(len(good)):
            request = pb.CloseRequest(session=self.link.session, handles=good[some])
            self.link.kv.post_close(request, timeout=CLOSE_SECONDS)
