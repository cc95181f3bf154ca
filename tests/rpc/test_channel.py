"""A connection into a partition is given up by whoever calls, and long before TCP itself does."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from kvstore.config import OPEN
from kvstore.rpc.channel import UNACKNOWLEDGED_SECONDS, open_async_channel, open_channel
from kvstore.rpc.server import Server

CHECK = "/grpc.health.v1.Health/Check"


def timeouts(port: int) -> Iterator[int]:
    """In milliseconds, of this process's connections to a port."""
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.raddr.port == port:
            with socket.socket(fileno=os.dup(one.fd)) as found:
                yield found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize("kind", ["of threads", "of a loop"])
def test_what_nobody_acknowledges_ends_the_connection(kind: str) -> None:
    async def run() -> list[int]:
        server = Server("127.0.0.1:0", {})
        await server.start()

        def asked() -> list[int]:
            with open_channel(server.address, OPEN) as channel:
                channel.unary_unary(CHECK)(b"", timeout=20)
                return [*timeouts(server.port)]

        try:
            if kind == "of threads":
                return await asyncio.to_thread(asked)
            async with open_async_channel(server.address, OPEN) as channel:
                await channel.unary_unary(CHECK)(b"", timeout=20)
                return [*timeouts(server.port)]
        finally:
            await server.stop(0)

    assert asyncio.run(run()) == [round(1e3 * UNACKNOWLEDGED_SECONDS)]
