"""A watch that outlives its streams: one breaks or falls silent, and the next goes on where it was.

Every stream begins with a read through the quorum, at the member that will be watched: it finds one
that answers, and shows how far the store is. A store that is behind what was asked for or
given was made anew or restored, and has lost changes: `Compacted`, as when they were cut off. One
that has come further meanwhile is not told from one that went on.

A stream that says nothing is asked whether it lives. When no member has answered for WATCH_SECONDS
the watch ends with `Unavailable`, so that nobody takes silence for peace for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import grpc

from kvstore.errors import Unavailable
from kvstore.metadata.etcd.endpoint import RANGE
from kvstore.metadata.etcd.endpoints import Endpoints
from kvstore.metadata.etcd.keyspace import Keyspace
from kvstore.metadata.etcd.position import Position
from kvstore.metadata.etcd.requests import head_of, watch_from
from kvstore.metadata.etcd.stream import Stream, StreamOver
from kvstore.metadata.protocol import Change, Compacted

WATCH_SECONDS = 10.0
_PAUSE_SECONDS = 0.1  # between two streams


async def changes(
    endpoints: Endpoints, keys: Keyspace, prefix: bytes, from_revision: int
) -> AsyncGenerator[Change, None]:
    """What `Metadata.watch` promises."""
    position, head = Position(from_revision), from_revision
    heard = time.monotonic()
    while True:
        try:
            head = await _head(endpoints, keys, max(head, position.revision))
            stream = Stream(endpoints)
            try:
                await stream.begin(
                    watch_from(keys.inside(prefix), keys.end(prefix), position.revision)
                )
                while True:
                    response = await stream.next()
                    for event in position.take(response):
                        if change := keys.change(event):
                            yield change
                    heard = time.monotonic()  # now that the reader is done with them
            finally:
                stream.cancel()
        except (StreamOver, Unavailable) as over:
            if time.monotonic() - heard > WATCH_SECONDS:
                raise Unavailable(
                    f"etcd at {endpoints.name}: nobody has said for {WATCH_SECONDS:g} s what "
                    f"changes ({over}); watch again from the last change seen"
                ) from None
        await asyncio.sleep(_PAUSE_SECONDS)


async def _head(endpoints: Endpoints, keys: Keyspace, seen: int) -> int:
    """The store's revision, which is `seen` or a later one."""
    try:
        head = int((await endpoints.ask(RANGE, head_of(keys.root))).header.revision)
    except grpc.aio.AioRpcError as error:
        raise endpoints.meaning(error) from None
    if head < seen:
        raise Compacted(
            f"etcd at {endpoints.name} is at revision {head} and was at {seen}: it was made anew "
            "or restored; list again",
            head,
        )
    return head
