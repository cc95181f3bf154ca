"""Wraps a service's methods so that whatever they raise leaves as a typed status, or as nothing."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from kvstore.errors import KVStoreError
from kvstore.rpc.status import refuse

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
                _refuse(context, method, error)

        return stream

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except Exception as error:  # the one door where errors leave the process
            _refuse(context, method, error)
            return None  # a status other than OK goes without a message
        finally:
            # What gRPC gives a stream's messages by holds the last of them, and itself in a cycle.
            if isinstance(request, AsyncIterable):
                messages: Any = aiter(request)
                await messages.aclose()

    return unary


def _refuse(context: Any, method: Callable[..., Any], error: Exception) -> None:
    if isinstance(error, KVStoreError):
        refuse(context, error)
        return
    log.error("%s failed", method.__name__, exc_info=error)
    context.set_code(grpc.StatusCode.INTERNAL)
    context.set_details("the node met a bug; its log says which")
