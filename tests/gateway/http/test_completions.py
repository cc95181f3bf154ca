"""A long answer leaves piece by piece, and whoever hangs up is heard in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from kvstore.gateway.http.completions import _send_stream, _send_whole


def test_a_backlog_leaves_others_their_turns() -> None:
    async def run() -> None:
        sent: list[bytes] = []
        hung_up = asyncio.Event()

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(100):
                yield b"%d" % number

        async def send(message: Any) -> None:
            assert not hung_up.is_set(), "it was sent to nobody"
            if message.get("body"):
                sent.append(message["body"])

        stream = asyncio.create_task(_send_stream(send, pieces()))
        while len(sent) < 3:
            await asyncio.sleep(0)
        hung_up.set()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert stream.cancelled() and len(sent) < 10

    asyncio.run(run())


def test_a_long_answer_leaves_others_their_turns() -> None:
    async def run() -> None:
        sent: list[bytes] = []
        turns = 0

        async def send(message: Any) -> None:
            nonlocal turns
            if message.get("body"):
                assert len(sent) <= turns, "nobody else had one since the last"
                sent.append(message["body"])
            asyncio.get_running_loop().call_soon(turn)

        def turn() -> None:
            nonlocal turns
            turns += 1

        parts = [b"%d" % number for number in range(100)]
        await _send_whole(send, parts)
        assert sent == parts

    asyncio.run(run())
