"""What a caller says behind a request whose answer is on its way: it waits for its turn, and hides
from nobody that the caller leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvstore.gateway.http import daemon
from kvstore.limits import SERVE_AHEAD_BYTES_MAX

SECONDS = 60.0
GET = b"GET /%b HTTP/1.1\r\nHost: here\r\n\r\n"


@dataclass
class Answering:
    """Says each path once it is let go on, and knows who left before that."""

    address: tuple[str, int] = ("", 0)
    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    left: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, call: Request) -> Response:
        self.begun.put_nowait(call.url.path)
        leaving = asyncio.create_task(self._leave(call))
        await self.goes_on.wait()
        leaving.cancel()
        return Response(call.url.path)

    async def _leave(self, call: Request) -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass
        self.left.put_nowait(call.url.path)
        self.goes_on.set()


def answering(test: Callable[[Answering], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        one = Answering()
        app = Starlette(routes=[Route("/{path}", one.answer)])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            one.address = listener.getsockname()
            server = daemon._server(app)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with asyncio.timeout(SECONDS):
                    await test(one)
            finally:
                server.should_exit = True
                await serving

    asyncio.run(run())


@pytest.mark.parametrize("behind", [b"\r\n", GET % b"b", b"GET /b"])
def test_who_leaves_is_noticed_whatever_it_has_said_behind_its_request(behind: bytes) -> None:
    async def test(app: Answering) -> None:
        _, writer = await asyncio.open_connection(*app.address)
        writer.write(GET % b"a")
        assert await app.begun.get() == "/a"
        for byte in behind:  # in several packets, most likely
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        writer.close()
        assert await app.left.get() == "/a"

    answering(test)


def test_requests_behind_one_another_are_answered_in_their_order() -> None:
    async def test(app: Answering) -> None:
        reader, writer = await asyncio.open_connection(*app.address)
        writer.write(GET % b"a")
        assert await app.begun.get() == "/a"
        for more in (GET % b"b", b"GET /c HT", b"TP/1.1\r\nHost: here\r\n\r\n"):
            writer.write(more)
            await asyncio.sleep(0.05)
        assert app.begun.empty() and app.left.empty(), "one at a time"
        app.goes_on.set()
        for path in (b"/a", b"/b", b"/c"):
            answer = await reader.readuntil(b"\r\n\r\n" + path)
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()

    answering(test)


LAST = {
    "it closes": b"GET /a HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n",
    "HTTP/1.0": b"GET /a HTTP/1.0\r\n\r\n",
}


@pytest.mark.parametrize("why", LAST)
@pytest.mark.parametrize("behind", [b"\r\n", b"\r\n\r\n", GET % b"b"])
def test_what_is_said_behind_a_connection_s_last_request_cuts_off_no_answer(
    why: str, behind: bytes
) -> None:
    """Some end a body by a line's end that is none of it. More is nobody's turn."""

    async def test(app: Answering) -> None:
        reader, writer = await asyncio.open_connection(*app.address)
        writer.write(LAST[why])
        assert await app.begun.get() == "/a"
        for byte in behind:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert app.left.empty()
        app.goes_on.set()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\n/a")
        assert app.begun.empty()
        writer.close()

    answering(test)


@pytest.mark.parametrize("why", LAST)
def test_who_leaves_is_noticed_whatever_it_has_said_behind_its_last_request(why: str) -> None:
    async def test(app: Answering) -> None:
        _, writer = await asyncio.open_connection(*app.address)
        writer.write(LAST[why])
        assert await app.begun.get() == "/a"
        for _ in range(2):
            writer.write(b"\r\n")
            await asyncio.sleep(0.01)
        writer.close()
        assert await app.left.get() == "/a"

    answering(test)


def test_lines_ends_before_a_request_are_none_of_it() -> None:
    async def test(app: Answering) -> None:
        app.goes_on.set()
        reader, writer = await asyncio.open_connection(*app.address)
        writer.write(GET % b"a" + b"\r\n")  # most likely in one packet
        await reader.readuntil(b"\r\n\r\n/a")
        for path in (b"/b", b"/c"):
            for ahead in (b"\r\n", b"\r", b"\n"):
                writer.write(ahead)
                await asyncio.sleep(0.01)
            writer.write(GET % path[1:])
            answer = await reader.readuntil(b"\r\n\r\n" + path)
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()

    answering(test)


def test_who_says_too_much_behind_its_request_is_hung_up_on() -> None:
    async def test(app: Answering) -> None:
        reader, writer = await asyncio.open_connection(*app.address)
        writer.write(GET % b"a")
        assert await app.begun.get() == "/a"
        writer.write(bytes(2 * SERVE_AHEAD_BYTES_MAX))
        assert await app.left.get() == "/a"
        with suppress(ConnectionError):
            assert not await reader.read()
        writer.close()

    answering(test)
