"""Opened blocks: pinned at the owner, with what it takes to verify them and to let them go.

Of a chain only the leading blocks are of use. Of blocks that stand alone each is, whatever became
of those before it; `rows` says which they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from kvstore.block import Blocks, Miss
from kvstore.client.connection import Connection
from kvstore.client.space import Space, calls, slots_of
from kvstore.errors import Invalid, KVStoreError
from kvstore.transfer.protocol import Mask
from kvstore.wire.v1 import kv_pb2 as pb

CLOSE_SECONDS = 5.0
MISSES = {
    pb.ABSENT: Miss.ABSENT,
    pb.UNSEALED: Miss.UNSEALED,
    pb.UNLISTED: Miss.UNLISTED,
    pb.EVICTED: Miss.EVICTED,
    pb.REMOVED: Miss.REMOVED,
    pb.DAMAGED: Miss.DAMAGED,
    pb.QUARANTINED: Miss.QUARANTINED,
    pb.NO_ROOM: Miss.NO_ROOM,
}


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
    ) -> None:
        self._space = space
        self._connection = connection
        if hand_offs and len(hand_offs) != len(chain):
            raise Invalid(f"{len(hand_offs)} hand_offs for {len(chain)} blocks; one each is wanted")
        self.link = connection.link()
        self._closed = False
        self._handles: list[bytes] = []  # all are closed, those behind the first miss too
        reply = pb.OpenReply()
        try:
            for some in calls(len(chain)):
                request = pb.OpenRequest(
                    session=self.link.session,
                    namespace=space.digest,
                    group=space.group,
                    hashes=chain.hashes[some],
                    hand_offs=hand_offs[some],
                    pin_ms=pin_ms,
                    writer_group=writer_group,
                    writer_node=writer_node,
                )
                part = connection.call(lambda link: link.kv.Open, request)
                self._handles.extend(part.handles)
                reply.MergeFrom(part)
                if not chain.alone and any(outcome != pb.HIT for outcome in part.outcomes):
                    break
        except KVStoreError:
            self.close()
            raise
        outcomes = np.array(reply.outcomes)
        # A hit of other length has a key that its maker gave to two: this one is absent.
        same = np.array(reply.tokens) == np.array(chain.tokens[: len(outcomes)])
        hits = (outcomes == pb.HIT) & same
        misses = np.flatnonzero(~hits)
        first = int(misses[0]) if len(misses) else len(hits)
        self.miss: Miss | None = MISSES.get(outcomes[first], Miss.ABSENT) if len(misses) else None
        self.rows = np.flatnonzero(hits) if chain.alone else np.arange(first)
        self.count = len(self.rows)
        columns = (reply.slot_offsets, reply.generations, reply.tokens)
        self.slots = slots_of(*columns, self._handles, reply.roots).pick(self.rows)

    def close(self, suspects: Mask | None = None) -> None:
        """Let go of the pins. Waits for the owner only to name blocks that failed their hash."""
        if self._closed:
            return
        self._closed = True
        bad = [] if suspects is None else [self._handles[i] for i in self.rows[suspects]]
        for some in calls(len(bad)):
            # The caller may reserve these blocks next: by then the owner must have looked.
            with contextlib.suppress(KVStoreError):
                self._connection.call(
                    lambda link: link.kv.Close,
                    pb.CloseRequest(
                        session=self.link.session, handles=bad[some], suspects=bad[some]
                    ),
                )
        reported = set(bad)
        good = [handle for handle in self._handles if handle and handle not in reported]
        for some in calls(len(good)):
            request = pb.CloseRequest(session=self.link.session, handles=good[some])
            self.link.kv.post_close(request, timeout=CLOSE_SECONDS)
