"""A gRPC server as every Moonpool process runs it: guarded, bounded, with health and reflection.

With certificates it speaks TLS alone and asks every caller for one; without, it is open (see
`kvstore.rpc.identity`). Bounds: connections and the time that one takes to say who it is, size of a
message, calls at once (see `kvstore.rpc.admission`), and what HTTP/2 may buffer for a stream.
Keepalive pings are never used to end a session, because a stopped process must keep what it may
still write to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc

from kvstore.clock import SystemClock
from kvstore.errors import ConfigError

try:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ModuleNotFoundError as error:  # an engine's environment, which has the client alone
    raise ConfigError(
        f"{error.name} is not installed: a process that serves needs moonpool[node], "
        "as in pip install 'moonpool[node]'"
    ) from error

from kvstore.config import TlsConfig
from kvstore.limits import (
    RPC_ARRIVALS_MAX,
    RPC_CALLS_MAX,
    RPC_CONNECTION_CALLS_MAX,
    RPC_CONNECTIONS_MAX,
    RPC_HANDSHAKE_SECONDS,
    RPC_MESSAGE_BYTES_MAX,
    RPC_REPLY_BYTES_MAX,
    RPC_STREAMS_MAX,
    KiB,
)
from kvstore.rpc.access import ACCESS, Rule
from kvstore.rpc.admission import Admission
from kvstore.rpc.guard import Guard
from kvstore.rpc.identity import DefaultOnly, Door, Tenancy
from kvstore.rpc.kept import kept
from kvstore.rpc.listening import in_the_way
from kvstore.rpc.tls import ServerTls

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _plain_alone(version: str) -> Sequence[tuple[str, Any]]:
    """Releases of gRPC before 1.81 unpack a message whole before they look at its length, and a
    certificate's holder may send one unasked: they take none, and log each. Not so the later ones.
    A bit for each way to compress, the first for none."""
    known = tuple(int(part) for part in version.split(".")[:2])
    return () if known >= (1, 81) else (("grpc.compression_enabled_algorithms_bitset", 1),)


OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_concurrent_streams", RPC_CONNECTION_CALLS_MAX),
    ("grpc.max_allowed_incoming_connections", RPC_CONNECTIONS_MAX),
    ("grpc.server_handshake_timeout_ms", round(1e3 * RPC_HANDSHAKE_SECONDS)),
    # Above this gRPC drops some calls of everybody's, whoever makes too many.
    ("grpc.server.max_pending_requests", RPC_ARRIVALS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", 2 * RPC_ARRIVALS_MAX),
    ("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_REPLY_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # two servers on one port would share its callers at random
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * KiB),
    *_plain_alone(grpc.__version__),
)


def _of_us(record: logging.LogRecord) -> bool:
    """Whether what gRPC logs is no caller's hanging up before its answer could be sent, as one does
    that waits for none: gRPC takes that for a failure of the method, and prints where."""
    return "ExecuteBatchError" not in record.getMessage()


logging.getLogger("grpc._cython.cygrpc").addFilter(_of_us)


class Server:
    """One listening server; `port` is known once it is made. `bulk`: methods that move blocks;
    `streams`: other streams that are served at once."""

    def __init__(
        self,
        address: str,
        services: dict[str, Callable[[grpc.aio.Server], None]],
        bulk: Collection[str] = (),
        *,
        tls: TlsConfig | None = None,
        tenancy: Tenancy | None = None,
        access: Mapping[str, Rule] = ACCESS,
        streams: int = RPC_STREAMS_MAX,
    ) -> None:
        door = Door(tls is not None, tenancy or DefaultOnly(), access)
        open_ = [method for method, rule in access.items() if rule.enough]
        self.admission = Admission(bulk, streams, open_)
        self._guard = Guard(door, self.admission)
        self._keeping: asyncio.Task[None] | None = None  # once it serves
        self._server = grpc.aio.server(
            interceptors=[self._guard],
            options=OPTIONS,
            maximum_concurrent_rpcs=RPC_CALLS_MAX + 2 * (streams - RPC_STREAMS_MAX),
        )
        self._health = health.aio.HealthServicer()
        self._names = list(services)
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._listen(address, tls)
        self.address = f"{address.rpartition(':')[0]}:{self.port}"

    def _listen(self, address: str, tls: TlsConfig | None) -> int:
        credentials = None if tls is None else ServerTls(tls).credentials()
        if why := in_the_way(address):
            raise ConfigError(f"cannot listen on {address}: {why}")
        try:
            port = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigError(f"cannot listen on {address}: gRPC was refused it")
        return int(port)

    async def start(self) -> None:
        await self._server.start()
        self._keeping = asyncio.create_task(
            kept("ending streams of tokens that are over", self._guard.keep, SystemClock())
        )
        await self.set_health(SERVING)

    async def set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
        await self._server.stop(grace_seconds)
