"""Who reads nothing is hung up on, however little is left of its answer; who reads gets it all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kvstore.gateway.http import connection, daemon
from tests.gateway.http.test_connection import GET, SECONDS, read_from

KERNEL_BYTES = 4 << 10  # that each end asks for; it takes about twice that
LITTLE = 48 << 10  # more than that, and less than a transport of asyncio's holds by itself
PIECES, PIECE = 500, bytes(1_000)


async def _little(call: Request) -> Response:
    return Response(bytes(LITTLE))


async def _stream(call: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    return StreamingResponse(pieces())


def served(test: Callable[[socket.socket], Coroutine[Any, Any, None]]) -> None:
    """The test has a socket that is connected, of which neither end takes much."""

    async def run() -> None:
        app = Starlette(routes=[Route("/little", _little), Route("/stream", _stream)])
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as caller:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
            server = daemon._server(app)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with asyncio.timeout(SECONDS):
                    caller.setblocking(False)
                    address = listener.getsockname()
                    await asyncio.get_running_loop().sock_connect(caller, address)
                    await test(caller)
            finally:
                server.should_exit = True
                await serving

    asyncio.run(run())


@pytest.mark.parametrize("head", [b"", b"Connection: close\r\n"])
def test_who_reads_none_of_the_little_that_is_left_is_hung_up_on(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SERVE_STALL_SECONDS", 0.3)
    lost = asyncio.Event()
    end = connection.Connection.connection_lost

    def ended(one: connection.Connection, why: Exception | None) -> None:
        end(one, why)
        lost.set()

    monkeypatch.setattr(connection.Connection, "connection_lost", ended)

    async def test(caller: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        request = (GET % b"little").removesuffix(b"\r\n") + head + b"\r\n"
        await loop.sock_sendall(caller, request)
        await lost.wait()  # though it has not read a byte, nor hung up itself
        reader, writer = await asyncio.open_connection(sock=caller.dup())
        assert await read_from(reader) < LITTLE
        writer.close()

    served(test)


def test_who_reads_gets_all_of_a_stream_whose_every_piece_has_to_wait() -> None:
    async def test(caller: socket.socket) -> None:
        loop, came = asyncio.get_running_loop(), 0
        request = (GET % b"stream").removesuffix(b"\r\n") + b"Connection: close\r\n\r\n"
        await loop.sock_sendall(caller, request)
        while some := await loop.sock_recv(caller, KERNEL_BYTES):
            came += some.count(0)
        assert came == PIECES * len(PIECE)

    served(test)
