"""Blocks that this node opens at others: let go there whatever becomes of who wanted them, and
without anybody waiting for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from kvstore.errors import KVStoreError
from kvstore.node.link import Link
from kvstore.wire.v1 import kv_pb2 as pb

log = logging.getLogger(__name__)


class Openings:
    """Those of one part of this node."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, link: Link, request: pb.OpenRequest) -> pb.OpenReply:
        """Whoever has the answer is to `let_go` of its handles. Raises a `KVStoreError`.

        Cancelled, it ends at once; what comes to be open all the same is let go."""
        opening = asyncio.create_task(link.call(link.kv.Open, request))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._start(self._let_go_late(link, opening))
            raise

    def let_go(self, link: Link, handles: Sequence[bytes], suspects: Sequence[bytes] = ()) -> None:
        """`suspects`: those of them whose bytes did not have their hash."""
        if held := [one for one in handles if one]:
            self._start(_closed(link, held, suspects))

    async def close(self) -> None:
        """Give up what is under way: what is open yet ends with its session."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _let_go_late(self, link: Link, opening: asyncio.Task[pb.OpenReply]) -> None:
        try:
            reply = await opening
        except KVStoreError as error:
            log.info("node %s: %s", link.node_id, error)
        else:
            self.let_go(link, reply.handles)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _closed(link: Link, handles: Sequence[bytes], suspects: Sequence[bytes]) -> None:
    request = pb.CloseRequest(session=link.session, handles=handles, suspects=suspects)
    try:
        await link.call(link.kv.Close, request)
    except KVStoreError as error:
        log.info("node %s: %s", link.node_id, error)  # its pins end by themselves
