"""A gRPC channel as every Moonpool caller opens it: what it shows of itself, and what it bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

from kvstore import traces
from kvstore.config import Credentials
from kvstore.limits import RPC_MESSAGE_BYTES_MAX, RPC_REPLY_BYTES_MAX
from kvstore.rpc.identity import TOKEN_KEY, TOKEN_SCHEME
from kvstore.rpc.tls import channel_credentials

Metadata: TypeAlias = tuple[tuple[str, str], ...]
# A connection on which the other host's kernel acknowledges nothing for so long is given up: else
# calls and streams would go into a partition for as long as TCP tries, some 15 minutes. One to a
# process that is stopped is not ended so: its kernel goes on to acknowledge.
UNACKNOWLEDGED_SECONDS = 10.0
OPTIONS = (
    # gRPC sets TCP_USER_TIMEOUT by its keepalive's timeout; pings of its own it never sends so.
    ("grpc.keepalive_time_ms", 2**31 - 2),
    ("grpc.keepalive_timeout_ms", round(1e3 * UNACKNOWLEDGED_SECONDS)),
    ("grpc.max_receive_message_length", RPC_REPLY_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_MESSAGE_BYTES_MAX),
    # A channel of its own per client: shared ones would mix deadlines and outlive their user.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_http_proxy", 0),
)


def open_channel(address: str, credentials: Credentials | None = None) -> grpc.Channel:
    """A channel to HOST:PORT; shows what the environment says unless told what to show."""
    shown = Credentials.of_environment() if credentials is None else credentials
    if shown.tls is None:
        channel = grpc.insecure_channel(address, options=OPTIONS)
    else:
        tls = channel_credentials(shown.tls)
        channel = grpc.secure_channel(address, tls, options=OPTIONS)
    more = []
    if shown.token:
        # gRPC's own call credentials take a millisecond for that.
        token = ((TOKEN_KEY, TOKEN_SCHEME + shown.token),)
        more.append(_Showing(lambda: token))
    if traces.on():
        more.append(_Showing(_trace))
    return grpc.intercept_channel(channel, *more) if more else channel


def open_async_channel(address: str, credentials: Credentials) -> grpc.aio.Channel:
    """The same for a node or conductor, whose calls show a certificate and no token. It is for a
    caller in an event loop, who is to close it."""
    if credentials.tls is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    shown = channel_credentials(credentials.tls)
    return grpc.aio.secure_channel(address, shown, options=OPTIONS)


def _trace() -> Metadata:
    parent = traces.traceparent()
    return ((traces.KEY, parent),) if parent else ()


class _Showing(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds metadata to each call."""

    def __init__(self, shown: Callable[[], Metadata]) -> None:
        self._shown = shown

    def intercept_unary_unary(self, call: Any, details: Any, request: Any) -> Any:
        return call(self._with_more(details), request)

    def intercept_unary_stream(self, call: Any, details: Any, request: Any) -> Any:
        return call(self._with_more(details), request)

    def intercept_stream_unary(self, call: Any, details: Any, requests: Any) -> Any:
        return call(self._with_more(details), requests)

    def intercept_stream_stream(self, call: Any, details: Any, requests: Any) -> Any:
        return call(self._with_more(details), requests)

    def _with_more(self, details: Any) -> Any:
        return details._replace(metadata=(*(details.metadata or ()), *self._shown()))
