"""A gRPC server as every Moonpool process runs it: bounded, with health and reflection.

Bounds: size of a message, calls at once (see `kvstore.rpc.admission`), and what HTTP/2 may buffer
for a stream. Keepalive pings are never used to end a session, because a stopped process must keep
what it may still write to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import grpc

from kvstore.errors import ConfigError

try:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ModuleNotFoundError as error:  # an engine's environment, which has the client alone
    raise ConfigError(
        f"{error.name} is not installed: a process that serves needs moonpool[node], "
        "as in pip install 'moonpool[node]'"
    ) from error

from kvstore.limits import (
    RPC_CALLS_MAX,
    RPC_MESSAGE_BYTES_MAX,
    RPC_REPLY_BYTES_MAX,
    SESSIONS_MAX,
    KiB,
)
from kvstore.rpc.admission import Admission

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_CALLS_MAX = SESSIONS_MAX + RPC_CALLS_MAX

OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_concurrent_streams", _CALLS_MAX),  # of one caller: it waits with more by itself
    ("grpc.max_receive_message_length", RPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", RPC_REPLY_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # two servers on one port would share its callers at random
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * KiB),
)


class Server:
    """One listening server; `port` is known once it is made. `bulk`: methods that move blocks."""

    def __init__(
        self,
        address: str,
        services: dict[str, Callable[[grpc.aio.Server], None]],
        bulk: Collection[str] = (),
    ) -> None:
        self._server = grpc.aio.server(
            interceptors=[Admission(bulk)],
            options=OPTIONS,
            maximum_concurrent_rpcs=_CALLS_MAX,
        )
        self._health = health.aio.HealthServicer()
        self._names = list(services)
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise ConfigError(f"cannot listen on {address}: is another process using the port?")
        self.address = f"{address.rpartition(':')[0]}:{self.port}"

    async def start(self) -> None:
        await self._server.start()
        await self.set_health(SERVING)

    async def set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)
