"""Connections of the gateway that stand still, over raw sockets: they end, and no others do."""

from __future__ import annotations

import asyncio
import json
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


@pytest.mark.parametrize("said", [b"", b"\r\n", b"GET /sm", b"GET /small HTTP/1.1\r\nHost: he"])
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


def test_who_began_to_say_what_it_asks_next_before_its_answer_came_is_hung_up_on() -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(GET % b"small" + b"GET /sm")
        answer = await reader.readuntil(b"small")
        assert answer.startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(daemon.KEEP_ALIVE_SECONDS / 2):
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


@pytest.mark.parametrize("late", [b"12", b"1"])
def test_a_body_behind_its_answer_is_waited_for_and_the_connection_stays(late: bytes) -> None:
    """As where a request is refused by its head alone."""

    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /small HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n")
        await reader.readuntil(b"small")
        writer.write(late)
        await asyncio.sleep(1.0)
        if len(late) < 2:  # half of it: a connection is not kept for that
            assert await read_from(reader) == 0
        else:
            writer.write(GET % b"small")
            assert (await reader.readuntil(b"small")).startswith(b"HTTP/1.1 200")
        writer.close()

    served(test)


def test_who_stands_still_behind_a_body_that_came_behind_its_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon, "KEEP_ALIVE_SECONDS", 1)

    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /small HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n")
        await reader.readuntil(b"small")
        writer.write(b"12")
        assert await read_from(reader) == 0
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
    monkeypatch.setattr(connection, "SERVE_HEAD_SECONDS", SECONDS)
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


def refused_by(answer: bytes) -> tuple[bytes, str]:
    """The status, and what is told of the error as OpenAI's clients read it."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json\r\n" in head.lower()
    return head.split()[1], json.loads(body)["error"]["message"]


TLS = b"\x16\x03\x01\x02\x00\x01"
HELLO = b"SSH-2.0-OpenSSH_9.6\r\n\r\n"
HEAD = b"GET /small HTTP/1.1\r\n"
WRONG = {
    TLS: (b"400", "illegal request line; HTTP/1.1 is spoken here, without TLS: call http://"),
    HELLO: (b"400", "illegal request line; HTTP/1.1 is spoken here, without TLS: call http://"),
    HEAD + b"no header\r\n\r\n": (b"400", "this is no HTTP/1.1: illegal header line"),
    HEAD + b"\r\n": (b"400", "Missing mandatory Host: header"),
    HEAD + b"Host: h\r\nContent-Length: x\r\n\r\n": (b"400", "bad Content-Length"),
    HEAD + b"Host: h\r\nX: " + bytes([0]) + b"\r\n\r\n": (b"400", "illegal header line"),
    HEAD + b"X: " + b"x" * 70_000: (b"431", "Receive buffer too long"),
    HEAD + b"Host: h\r\nTransfer-Encoding: gzip\r\n\r\n": (b"501", "Only Transfer-Encoding"),
}


@pytest.mark.parametrize("said", WRONG)
def test_who_says_what_is_no_http_is_told_what_is_wrong_with_it_and_so_is_the_log(
    said: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SERVE_HEAD_SECONDS", SECONDS)
    wanted, why = WRONG[said]

    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(said)
        status, text = refused_by(await reader.read())
        assert status == wanted and why in text
        assert ("without TLS" in text) == (said in (TLS, HELLO))
        host, port = writer.get_extra_info("sockname")
        writer.close()
        assert [one.message for one in caplog.records] == [f"{host}:{port}: {text}"]

    served(test)


def test_no_word_of_what_a_caller_says_is_logged_where_it_is_no_http(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(address: tuple[str, int]) -> None:
        for wrong in (b"Authorization Bearer a-key", b"Authorization: \x00a-key", b"(a-key): b"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(HEAD + b"Host: h\r\n" + wrong + b"\r\n\r\n")
            status, text = refused_by(await reader.read())
            assert status == b"400" and "a-key" not in text
            writer.close()

    served(test)
    assert len(caplog.records) == 3 and "a-key" not in caplog.text


def test_who_goes_on_with_what_is_no_http_behind_its_answer_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /none HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"Not Found")
        writer.write(b"no size\r\n")
        await read_from(reader)
        writer.close()

    served(test)
    assert [one.exc_info for one in caplog.records] == [None]


def test_one_connection_too_many_is_told_to_come_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SERVE_CONNECTIONS_MAX", 1)

    async def test(address: tuple[str, int]) -> None:
        stays, writer = await asyncio.open_connection(*address)
        writer.write(GET % b"small")
        await stays.readuntil(b"small")
        reader, another = await asyncio.open_connection(*address)
        another.write(GET % b"small")
        answer = await reader.read()
        assert b"\r\nretry-after: " in answer
        assert refused_by(answer) == (b"503", "1 connections are open, all that may be")
        another.close()
        writer.write(GET % b"small")
        assert (await stays.readuntil(b"small")).startswith(b"HTTP/1.1 200")
        writer.close()

    served(test)
