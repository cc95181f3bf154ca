"""Connections of the gateway that stand still, over raw sockets: they end, and no others do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvstore.gateway.http import connection, daemon

SECONDS = 60.0
LARGE = 16 << 20  # more than the kernel takes of an answer that nobody reads
GET = b"GET /%b HTTP/1.1\r\nHost: here\r\n\r\n"


async def _small(call: Request) -> Response:
    return Response(b"small")


async def _large(call: Request) -> Response:
    return Response(bytes(LARGE))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SERVE_HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connection, "SERVE_STALL_SECONDS", 0.3)


def served(test: Callable[[tuple[str, int]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        app = Starlette(routes=[Route("/small", _small), Route("/large", _large)])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = daemon._server(app)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with asyncio.timeout(SECONDS):
                    await test(listener.getsockname())
            finally:
                server.should_exit = True
                await serving

    asyncio.run(run())


async def read_from(reader: asyncio.StreamReader) -> int:
    """Bytes until the gateway hangs up."""
    came = 0
    with suppress(ConnectionResetError):
        while some := await reader.read(1 << 20):
            came += len(some)
    return came


@pytest.mark.parametrize("said", [b"", b"GET /sm", b"GET /small HTTP/1.1\r\nHost: he"])
def test_who_does_not_say_what_it_asks_is_hung_up_on(said: bytes) -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(said)
        assert await read_from(reader) == 0
        writer.close()

    served(test)


def test_who_does_not_say_what_it_asks_next_is_hung_up_on() -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(GET % b"small")
        answer = await reader.readuntil(b"small")
        assert answer.startswith(b"HTTP/1.1 200")
        writer.write(b"GET /sm")
        assert await read_from(reader) == 0
        writer.close()

    served(test)


def test_a_connection_that_asks_now_and_then_stays() -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(GET % b"small")
            assert (await reader.readuntil(b"small")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.5)
        writer.close()

    served(test)


def test_who_reads_none_of_its_answer_is_hung_up_on() -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address, limit=1)  # it pauses the socket
        writer.write(GET % b"large")
        await asyncio.sleep(1.0)
        assert await read_from(reader) < LARGE
        writer.close()

    served(test)


def test_who_reads_slowly_gets_all_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SERVE_STALL_SECONDS", 2.0)

    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
        writer.write(GET % b"large")
        await reader.readuntil(b"\r\n\r\n")
        left = LARGE
        while left and (came := await reader.read(min(left, LARGE // 64))):
            left -= len(came)
            await asyncio.sleep(0.05)  # so that all takes longer than one may stand still
        assert left == 0
        writer.close()

    served(test)
