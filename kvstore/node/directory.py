"""The Directory service: what this node lists, told to whoever follows it, and asked for at once.

A follower costs the node a place in the log of changes and one message at a time: whoever reads too
slowly finds its place gone from the log and starts anew, and whoever does not read is hung up on.
No part of a snapshot is larger than a page of the listing, and between two of them others have
their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from kvstore.clock import Clock
from kvstore.core.carried import Carried, Ledger
from kvstore.core.fingerprints import Prints, Tiers
from kvstore.core.listing import Listing
from kvstore.errors import Overloaded, Unavailable
from kvstore.limits import FOLLOW_ENTRIES_MAX, FOLLOW_STALL_SECONDS, FOLLOWERS_MAX
from kvstore.rpc.handler import typed
from kvstore.wire.prints import asked, packed
from kvstore.wire.v1 import directory_pb2 as pb
from kvstore.wire.v1 import directory_pb2_grpc

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types
Send: TypeAlias = Callable[[pb.FollowReply], Awaitable[None]]

BATCH_SECONDS = 0.02  # changes wait so long for others to go with them
CHANGES_MAX = 4_096  # in one message
HEARTBEAT_SECONDS = 1.0
_RETRY_MS = 5_000

assert CHANGES_MAX <= FOLLOW_ENTRIES_MAX


class DirectoryService(directory_pb2_grpc.DirectoryServicer):
    """Each method is documented in proto/moonpool/v1/directory.proto."""

    def __init__(
        self, node_id: str, epoch: int, listing: Listing, carried: Ledger, clock: Clock
    ) -> None:
        self._node_id, self.epoch = node_id, epoch  # a new epoch sends every follower to the start
        self._listing, self._carried, self._clock = listing, carried, clock
        self._followers = 0

    @typed
    async def Follow(self, request: pb.FollowRequest, context: Context) -> None:
        if self._followers >= FOLLOWERS_MAX:
            raise Overloaded(
                f"{self._followers} follow this node already, the most it serves: how many "
                "conductors are there?",
                _RETRY_MS,
            )
        self._followers += 1
        try:
            known = request.sequence if request.epoch == self.epoch else None
            await self.follow(known, partial(_write, context))
        finally:
            self._followers -= 1

    @typed
    async def Holders(self, request: pb.HoldersRequest, context: Context) -> pb.HoldersReply:
        tiers = self._listing.tiers(asked(request.fingerprints))
        reply = pb.HoldersReply()
        if tiers.any():
            reply.holders.add(node_id=self._node_id, epoch=self.epoch, tiers=tiers.tobytes())
        return reply

    async def follow(self, known: int | None, send: Send) -> None:
        """Send what came after the change `known`, or else everything, and then go on for ever."""
        listing, sequence, epoch = self._listing, known, self.epoch
        told, told_at = self._carried.count, self._clock.now()
        if sequence is not None and listing.keeps(sequence):
            await send(self._begin(sequence, snapshot=False))
        spoke = -HEARTBEAT_SECONDS  # the first changes come at once, if there are any or not
        while True:
            if sequence is None or not listing.keeps(sequence) or epoch != self.epoch:
                epoch = self.epoch
                sequence = await self._snapshot(send)
                spoke = -HEARTBEAT_SECONDS
                continue  # whoever took it slowly may have lost its place already
            changes = listing.changes(sequence, CHANGES_MAX)
            if changes.sequence > sequence or self._clock.now() - spoke >= HEARTBEAT_SECONDS:
                entries = packed(changes.prints, changes.tiers, changes.sequence)
                reply = pb.FollowReply(entries=entries)
                if self._clock.now() - told_at >= HEARTBEAT_SECONDS:
                    _tell(reply, self._carried.since(told))
                    told, told_at = self._carried.count, self._clock.now()
                await send(reply)
                sequence, spoke = changes.sequence, self._clock.now()
            if len(changes.prints) < CHANGES_MAX:
                await self._clock.sleep(BATCH_SECONDS)

    async def _snapshot(self, send: Send) -> int:
        sequence = self._listing.sequence
        await send(self._begin(sequence, snapshot=True))
        prints, tiers, count = list[Prints](), list[Tiers](), 0

        async def flush() -> None:
            nonlocal count
            if count:
                entries = packed(np.concatenate(prints), np.concatenate(tiers))
                await send(pb.FollowReply(snapshot=entries))
                prints.clear()
                tiers.clear()
                count = 0

        for some, where in _cut(self._listing.pages()):
            if count + len(some) > FOLLOW_ENTRIES_MAX:
                await flush()
            prints.append(some)
            tiers.append(where)
            count += len(some)
            await self._clock.sleep(0)
        await flush()
        return sequence

    def _begin(self, sequence: int, *, snapshot: bool) -> pb.FollowReply:
        begin = pb.FollowReply.Begin(
            node_id=self._node_id,
            epoch=self.epoch,
            sequence=sequence,
            snapshot=snapshot,
            blocks=self._listing.count_max,
        )
        return pb.FollowReply(begin=begin)


def _tell(reply: pb.FollowReply, carried: Sequence[Carried]) -> None:
    for one in carried:
        reply.carried.add(
            bytes=one.size_bytes, seconds=one.seconds, of_ssd=one.of_ssd, source=one.source
        )


async def _write(context: Context, reply: pb.FollowReply) -> None:
    try:
        async with asyncio.timeout(FOLLOW_STALL_SECONDS):
            await context.write(reply)
    except TimeoutError:
        raise Unavailable(
            f"a follower took no message for {FOLLOW_STALL_SECONDS:.0f} s: follow again"
        ) from None


def _cut(pages: Iterator[tuple[Prints, Tiers]]) -> Iterator[tuple[Prints, Tiers]]:
    """The same in pieces that fit a message."""
    for prints, tiers in pages:
        for at in range(0, max(1, len(prints)), FOLLOW_ENTRIES_MAX):
            yield prints[at : at + FOLLOW_ENTRIES_MAX], tiers[at : at + FOLLOW_ENTRIES_MAX]
