"""Holding blocks where they are, so that they are still there when another process opens them.

An engine's scheduler asks what is there and holds it; its workers open it a moment later, each by
its own session. A hold ends by `release`, by its time, or with this client's session.
"""

from __future__ import annotations

import contextlib

import numpy as np

from kvstore.block import Chain, Miss
from kvstore.client.bounds import check_bounds
from kvstore.client.connection import Connection
from kvstore.client.opened import miss_of
from kvstore.client.space import Space, calls
from kvstore.errors import KVStoreError
from kvstore.limits import PIN_MS_MAX
from kvstore.wire.v1 import kv_pb2 as pb


class Hold:
    """The leading blocks of a chain, pinned for `pin_ms` by the owner's clock.

    `blocks` is how many there are, `miss` why there are no more.
    """

    def __init__(self, connection: Connection, space: Space, chain: Chain, pin_ms: int) -> None:
        check_bounds("pin_ms", pin_ms, 0, PIN_MS_MAX)
        self._connection = connection
        self._link = connection.link()
        self._handles: list[bytes] = []
        self.blocks = 0
        self.origins: tuple[int, ...] = ()  # what computed each, as its writer said; 0: nobody did
        self.miss: Miss | None = None
        for some in calls(len(chain)):
            request = pb.PinRequest(
                session=self._link.session,
                namespace=space.digest,
                group=space.group,
                hashes=chain.hashes[some],
                pin_ms=pin_ms,
            )
            try:
                reply = connection.call(lambda link: link.kv.Pin, request)
            except KVStoreError:
                self.release()
                raise
            except BaseException:  # interrupted: what is held has handles that nobody knows
                connection.give_up(self._link)
                raise
            self.origins += tuple(reply.origins)
            misses = np.flatnonzero(np.array(reply.outcomes) != pb.HIT)
            self._handles.extend(handle for handle in reply.handles if handle)
            if len(misses):
                self.blocks += int(misses[0])
                self.miss = miss_of(reply.outcomes[int(misses[0])])
                self.origins = self.origins[: self.blocks]
                break
            self.blocks += len(reply.handles)

    def release(self) -> None:
        """Let the blocks go. No failure raises: a hold ends with its time or the session anyway."""
        held, self._handles = self._handles, []
        try:
            for some in calls(len(held)):
                if not self._link.alive:
                    return  # they ended with it: to begin another would only take time
                request = pb.UnpinRequest(session=self._link.session, handles=held[some])
                with contextlib.suppress(KVStoreError):
                    self._connection.call(lambda link: link.kv.Unpin, request)
        except BaseException:  # interrupted: it did not come to some of them
            self._connection.give_up(self._link)
            raise
