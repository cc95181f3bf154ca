"""The members of an etcd, and calls that any of them may answer, each within its deadline.

`ask` is for what may be done twice: it goes from member to member until one answers. `tell` is for
what may not: it is sent once, to a member that has just answered. Whichever member answered last is
asked first. Where none answers, certificates that were renewed on disk since are shown.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from kvstore.config import EtcdConfig
from kvstore.errors import ConfigError, KVStoreError
from kvstore.metadata.etcd import failure
from kvstore.metadata.etcd.credentials import Metadata, Token, certificates
from kvstore.metadata.etcd.endpoint import Endpoint, Method, broken
from kvstore.metadata.protocol import StoreClosed

CALL_SECONDS = 2.0  # for an answer, from whichever member it comes
_TRIES_MIN = 3  # as many silent members a call can meet and still be answered
_PAUSE_SECONDS = 0.05  # before everybody is asked once more


class Endpoints:
    """Belongs to the event loop of its first call."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._shown = certificates(config)  # a wrong one is known at the start
        self._members: list[Endpoint] = []  # the first is asked; one that fails goes to the end
        self._token = Token()
        self._closed = False
        self.name = ",".join(config.endpoints)
        tries = min(len(config.endpoints), _TRIES_MIN)
        self._try_seconds = CALL_SECONDS / tries

    @property
    def first(self) -> Endpoint:
        if self._closed:
            raise StoreClosed(f"etcd at {self.name} was closed")
        if not self._members:
            urls = list(self._config.endpoints)
            random.shuffle(urls)  # many nodes are told of them in one order
            self._members = [Endpoint(url, self._shown) for url in urls]
        return self._members[0]

    def leave(self, endpoint: Endpoint) -> None:
        """It did not answer: ask the others first."""
        if self._members and self._members[0] is endpoint:
            self._members.append(self._members.pop(0))

    async def ask(self, method: Method, request: Any) -> Any:
        """The reply of the first member that gives one. Raises `Unavailable` after CALL_SECONDS,
        or etcd's own refusal as grpc.aio.AioRpcError."""
        deadline, tried, sent = time.monotonic() + CALL_SECONDS, 0, False
        while True:
            endpoint, left = self.first, deadline - time.monotonic()
            try:
                return await self._send(endpoint, method, request, min(left, self._try_seconds))
            except grpc.aio.AioRpcError as error:
                if not failure.passes(error):
                    raise
                words, sent = str(error.details()), sent or not failure.never_sent(error)
            self.leave(endpoint)
            self._show_what_is_new()
            tried += 1
            if tried % len(self._config.endpoints) == 0:
                await asyncio.sleep(_PAUSE_SECONDS)
            if time.monotonic() >= deadline:
                said = failure.unanswered if sent else failure.unreached
                raise said(self.name, CALL_SECONDS, words)

    async def tell(self, method: Method, request: Any, probe: tuple[Method, Any]) -> Any:
        """The reply to a request that is sent at most once. If the connection is not known to be
        good, the probe is asked first, which finds one that is."""
        if not self.first.connected:
            await self.ask(*probe)
        endpoint = self.first
        try:
            return await self._send(endpoint, method, request, CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if not failure.passes(error):
                raise
            self.leave(endpoint)
            raise failure.unanswered(endpoint.url, CALL_SECONDS, str(error.details())) from None

    async def metadata(self, endpoint: Endpoint, seconds: float) -> Metadata:
        """What a call to the endpoint carries, within so many seconds."""
        deadline = time.monotonic() + seconds

        async def ask() -> str:
            user, password = self._config.user, self._config.password
            if not user:
                return ""
            left = max(0.0, min(deadline - time.monotonic(), self._try_seconds))
            try:
                return await endpoint.authenticate(user, password, left)
            except grpc.aio.AioRpcError as error:
                if failure.wants_no_token(error):
                    return ""
                raise

        try:
            with self.under_way():
                return await self._token.metadata(ask, seconds)
        except TimeoutError:
            raise broken("others have asked for a token, and have none yet") from None

    def refuses(self, metadata: Metadata) -> None:
        """What a call carried was refused: ask for another token."""
        self._token.drop(metadata)

    def meaning(self, error: grpc.aio.AioRpcError) -> KVStoreError:
        """What a refusal that `ask` or `tell` raised says to their caller."""
        return failure.meaning(error, self.name)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Around what gRPC does: `StoreClosed` where `close` ended it, and not who awaits it."""
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.UsageError):  # a call; one on a closed channel
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise StoreClosed(f"etcd at {self.name} was closed") from None
            raise

    async def close(self) -> None:
        self._closed = True
        members, self._members = self._members, []
        for member in members:
            await member.close()

    async def _send(self, endpoint: Endpoint, method: Method, request: Any, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        token_is_new = False
        while True:
            metadata = await self.metadata(endpoint, max(0.0, deadline - time.monotonic()))
            left = max(0.0, deadline - time.monotonic())
            try:
                with self.under_way():
                    return await method(endpoint)(request, timeout=left, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if not failure.wants_token(error):
                    raise
                self.refuses(metadata)  # it did nothing, so it may be sent again
                if token_is_new:
                    raise
            token_is_new = True

    def _show_what_is_new(self) -> None:
        """Connect anew where the certificates on disk are not those that were shown. What is under
        way on a connection before keeps that until its end."""
        try:
            found = certificates(self._config)
        except ConfigError:  # they are being written
            return
        if found != self._shown:
            self._shown = found
            self._members = [Endpoint(one.url, found) for one in self._members]
