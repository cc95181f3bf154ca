"""Wraps a service's methods so that whatever they raise leaves as a typed status, or as nothing."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from kvstore.errors import KVStoreError
from kvstore.rpc.status import code_of, trailers_of

log = logging.getLogger(__name__)


def typed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A unary or streaming method whose `KVStoreError`s become statuses."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with aclosing(method(self, request, context)) as replies:
                    async for reply in replies:
                        yield reply
            except Exception as error:  # the one door where errors leave the process
                await _abort(context, method, error)

        return stream

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except Exception as error:  # the one door where errors leave the process
            await _abort(context, method, error)

    return unary


async def _abort(context: Any, method: Callable[..., Awaitable[Any]], error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, KVStoreError):
        await context.abort(code_of(error), str(error), trailers_of(error))
    log.error("%s failed", method.__name__, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "the node met a bug; its log says which")
