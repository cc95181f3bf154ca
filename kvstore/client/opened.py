"""Opened blocks: pinned at the owner, with what it takes to verify them and to let them go."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import grpc
import numpy as np

from kvstore.block import Chain, Miss
from kvstore.client.connection import Connection
from kvstore.client.space import Space, slots_of
from kvstore.errors import KVStoreError
from kvstore.transfer.protocol import Mask
from kvstore.wire.v1 import kv_pb2 as pb

MISSES = {
    pb.ABSENT: Miss.ABSENT,
    pb.UNSEALED: Miss.UNSEALED,
    pb.UNLISTED: Miss.UNLISTED,
    pb.EVICTED: Miss.EVICTED,
    pb.REMOVED: Miss.REMOVED,
    pb.DAMAGED: Miss.DAMAGED,
}


class Opened:
    """The leading blocks of a chain that could be opened, and why the next one could not."""

    def __init__(
        self,
        connection: Connection,
        space: Space,
        chain: Chain,
        hand_offs: Sequence[bytes],
        pin_ms: int,
    ) -> None:
        self._space = space
        self._connection = connection
        request = pb.OpenRequest(
            namespace=space.digest,
            group=space.group,
            hashes=chain.hashes,
            hand_offs=hand_offs,
            pin_ms=pin_ms,
        )
        self.link = connection.link()
        request.session = self.link.session
        reply = connection.call(lambda link: link.kv.Open, request)
        outcomes = np.array(reply.outcomes)
        misses = np.flatnonzero(outcomes != pb.HIT)
        self.count = int(misses[0]) if len(misses) else len(chain)
        self.miss: Miss | None = MISSES[outcomes[self.count]] if len(misses) else None
        self.slots = slots_of(
            reply.slot_offsets[: self.count],
            reply.generations[: self.count],
            reply.tokens[: self.count],
        )
        roots = list(reply.roots[: self.count])
        self.rooted = np.array([len(root) == 16 for root in roots], dtype=bool)
        sealed = b"".join(root for root in roots if root)
        self._roots = np.frombuffer(sealed, dtype=np.uint8).reshape(-1, 16)
        # All handles are closed, those behind the first miss too.
        self._handles = list(reply.handles)
        self._closed = False

    def vouched(self) -> Mask:
        """Blocks whose strip table has the root the owner recorded; filling ones have none yet."""
        good = np.ones(self.count, dtype=bool)
        rows = np.flatnonzero(self.rooted)
        if len(rows):
            found = self.link.transport.roots(self._space.layout, self.slots.pick(rows))
            good[rows] = (found == self._roots).all(axis=1)
        return good

    def close(self, suspects: Mask | None = None) -> None:
        """Let go of the pins. Waits for the owner only to name blocks that failed their hash."""
        if self._closed:
            return
        self._closed = True
        handles = [handle for handle in self._handles if handle]
        request = pb.CloseRequest(session=self.link.session, handles=handles)
        if suspects is not None and suspects.any():
            # The caller may reserve these blocks next: by then the owner must have looked.
            request.suspects.extend(self._handles[i] for i in np.flatnonzero(suspects))
            with contextlib.suppress(KVStoreError):
                self._connection.call(lambda link: link.kv.Close, request)
        elif handles and self.link.alive:
            # A close that fails costs nothing: the pin ends with its time or the session.
            self.link.kv.Close.future(request, timeout=5.0).add_done_callback(_done)


def _done(call: grpc.Future) -> None:
    call.exception()
