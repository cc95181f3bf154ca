"""One stream of changes from one etcd member, which is over as soon as it breaks or falls silent.

A stream that says nothing for a while is asked whether it lives, so neither a member that was
stopped nor a network that swallows packets can hold up its reader.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from kvstore.errors import Denied
from kvstore.metadata.etcd import failure
from kvstore.metadata.etcd.credentials import Metadata
from kvstore.metadata.etcd.endpoints import Endpoints
from kvstore.metadata.etcd.requests import are_you_there
from kvstore.metadata.protocol import Compacted

ASK_SECONDS = 3.0  # of silence, then it is asked
ANSWER_SECONDS = 2.0
_REFUSED = ("permission denied", "invalid auth token")


class StreamOver(Exception):
    """No more comes of this stream; another one may say more."""


class Stream:
    """At the member that is asked first. `begin` it, read with `next`, and `cancel` it."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._member = endpoints.first
        self._call: Any = None
        self._reading: asyncio.Task[Any] | None = None

    async def begin(self, request: Any) -> None:
        """Raises `Denied` where this user may not watch, `Compacted`, or `StreamOver`."""
        for token_is_new in (False, True):
            metadata = await self._token()
            with self._endpoints.under_way():
                self._call = self._member.watch(metadata)
            await self._write(request)
            try:
                await self.next()
                return
            except Denied:
                if token_is_new:
                    raise
            self.cancel()
            self._endpoints.refuses(metadata)  # etcd says this of a token it forgot, too

    async def next(self) -> Any:
        """The next response; raises as `begin` does."""
        if not await self._heard(ASK_SECONDS):
            await self._write(are_you_there())
            if not await self._heard(ANSWER_SECONDS):
                raise self._over(f"silent for {ASK_SECONDS + ANSWER_SECONDS:g} s")
        assert self._reading is not None
        reading, self._reading = self._reading, None
        try:
            with self._endpoints.under_way():
                response = reading.result()
        except grpc.aio.AioRpcError as error:
            raise self._over(str(error.details())) from None
        except asyncio.CancelledError:
            raise self._over("cancelled") from None
        finally:
            del reading  # what it raised keeps this frame: each would keep the other and the member
        if response is grpc.aio.EOF:
            raise self._over("it ended")
        if response.canceled:
            self._refused(response)
        return response

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()

    async def _token(self) -> Metadata:
        try:
            return await self._endpoints.metadata(self._member, ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            if failure.passes(error):
                raise self._over(str(error.details())) from None
            raise self._endpoints.meaning(error) from None

    async def _heard(self, seconds: float) -> bool:
        if self._reading is None:
            self._reading = asyncio.create_task(self._call.read())
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait({self._reading}, timeout=seconds)
        return bool(done)

    async def _write(self, request: Any) -> None:
        # What is wrong with the stream, the next reading tells.
        with (
            self._endpoints.under_way(),
            suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError),
        ):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._call.write(request)

    def _refused(self, response: Any) -> None:
        where, reason = self._member.url, response.cancel_reason
        if response.compact_revision:
            raise Compacted(
                f"etcd at {where} has no changes before {response.compact_revision} any more; "
                "list again",
                response.compact_revision,
            )
        if any(phrase in reason for phrase in _REFUSED):
            raise failure.refused(where, reason)
        raise self._over(reason)

    def _over(self, why: str) -> StreamOver:
        self._endpoints.leave(self._member)
        return StreamOver(f"{self._member.url}: {why}")
