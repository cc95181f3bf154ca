"""Another node, as far as blocks are opened and closed there: it does so at once, and says so when
a test lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvstore.wire.v1 import kv_pb2 as pb


class Holder:
    """Stands for `Peers` and for the `Link` to the only one there is."""

    node_id, session = "holder", b"session"

    def __init__(self, handles: Sequence[bytes]) -> None:
        self.kv = SimpleNamespace(Open="Open", Close="Close")
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        self.open = set[bytes]()
        self._handles = handles

    async def link(self, node_id: str, tenant: str) -> Any:
        return self

    def by_name(self, name: str) -> str | None:
        return name

    def gone(self, name: str) -> bool:
        return False

    async def call(self, method: str, request: Any) -> Any:
        if method == "Close":
            self.open -= set(request.handles)
            return pb.CloseReply()
        if self.error is None:
            self.open.update(one for one in self._handles if one)
        self.asked.set()
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return pb.OpenReply(handles=self._handles)


async def cancelled_while_it_asks(work: asyncio.Task[Any], holder: Holder) -> None:
    """Return once that is over, and all that it leaves behind."""
    await holder.asked.wait()
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled(), "it does not wait for the answer"
    holder.answers.set()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    while others:
        await asyncio.wait(others)
        others = asyncio.all_tasks() - {asyncio.current_task()}
