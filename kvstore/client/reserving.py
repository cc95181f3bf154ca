"""Write windows that a node was asked for, and what it said.

The node is asked when one of these is made and answers while its maker does other things: `reply`
waits. Where a part of them is refused, those that were given are given back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kvstore.block import Blocks, Keyed
from kvstore.client.answer import Answer
from kvstore.client.bounds import UINT64_MAX, check_bounds
from kvstore.client.connection import Connection, Link
from kvstore.client.space import Space, calls, on_wire
from kvstore.errors import KVStoreError
from kvstore.layout import Fragment
from kvstore.wire.v1 import kv_pb2 as pb

UNREAD_BLOCKS = 1_024  # whose answer a socket holds while nobody reads it


class Reserving:
    """Of blocks `first` on of a chain, as `Client.writer` says."""

    def __init__(
        self,
        connection: Connection,
        space: Space,
        chain: Blocks,
        first: int = 0,
        fragment: Fragment | None = None,
        writer_group: str = "",
        hand_off: bool = False,
        origin: int = 0,
    ) -> None:
        check_bounds("origin", origin, 0, UINT64_MAX)
        self.connection, self.space = connection, space
        self.chain, self.first = chain, first
        self.blocks = space.blocks_from(chain, first)
        self.fragment = space.layout.check(fragment or space.layout.whole)
        self.link: Link = connection.link()
        self._requests = self._in_calls(writer_group, hand_off, origin)
        self._answer = Answer(pb.ReserveReply)  # of no blocks the node is asked nothing
        if len(self.blocks):
            self._answer = connection.begin("Reserve", next(self._requests))

    @property
    def keeps(self) -> bool:
        """Whether the answer may be left unread. One that may not is to be read at once: until it
        has left it is one of the few calls that the node has under way, and after some seconds of
        that the node hangs up, which ends the session."""
        return len(self.blocks) <= UNREAD_BLOCKS

    def reply(self) -> pb.ReserveReply:
        """For all of the blocks, once. Raises what the node refused one of them for."""
        reply = pb.ReserveReply()
        try:
            reply.MergeFrom(self._answer.get())
            for request in self._requests:
                reply.MergeFrom(self.connection.call(lambda link: link.kv.Reserve, request))
        except KVStoreError:
            self.abort([handle for handle in reply.handles if handle])
            raise
        except BaseException:  # interrupted: what else was given has handles that nobody knows
            self.connection.give_up(self.link)
            raise
        return reply

    def drop(self) -> None:
        """Nobody wants them, if `reply` was not asked for. Never raises."""
        try:
            if not self._answer.had:
                self.abort([handle for handle in self._answer.get().handles if handle])
        except KVStoreError:
            pass
        except BaseException:  # interrupted, as in `reply`
            self.connection.give_up(self.link)
            raise

    def abort(self, handles: list[bytes]) -> None:
        """Give windows back. Never raises: the session's end does the same."""
        for some in calls(len(handles) if self.link.alive else 0):
            request = pb.AbortRequest(session=self.link.session, handles=handles[some])
            with contextlib.suppress(KVStoreError):
                self.connection.call(lambda link: link.kv.Abort, request)

    def _in_calls(
        self, writer_group: str, hand_off: bool, origin: int
    ) -> Iterator[pb.ReserveRequest]:
        blocks = self.blocks
        for some in calls(len(blocks)):
            request = pb.ReserveRequest(
                session=self.link.session,
                namespace=self.space.digest,
                group=self.space.group,
                parent=blocks.parent(some.start) or self.chain.parent(self.first),
                hashes=blocks.hashes[some],
                last_tokens=blocks.tokens[some][-1] % blocks.block_tokens,
                writer_group=writer_group,
                fragment=on_wire(self.fragment),
                hand_off=hand_off,
                origin=origin,
                alone=blocks.alone,
                hbm=self.link.transport.lends(self.space.layout),
            )
            if isinstance(blocks, Keyed) and blocks.parents:
                request.parents.extend(blocks.parents[some])
                request.alone = False
            elif isinstance(blocks, Keyed) and blocks.after is not None:
                request.after = blocks.hashes[some.start - 1] if some.start else blocks.after
            yield request
