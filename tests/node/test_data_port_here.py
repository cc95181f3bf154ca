"""The data port in this process, on loopback: whom it lets in."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from kvstore.node import data_port
from kvstore.node.data_port import DataPort
from kvstore.node.moves import Moves
from kvstore.node.read_ahead import ReadAhead
from kvstore.node.sessions import Session, Sessions
from kvstore.rpc.socket_server import SocketCaller
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer.frames import CALLS_KIND, CALLS_MAGIC, HELLO, HELLO_MAGIC, WELCOME, Welcome
from tests.node.rig import Rig


def test_no_tenant_takes_all_the_connections_however_many_sessions_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_port, "DATA_CONNECTIONS_MAX", 8)
    rig, nobody = Rig(), cast(Any, None)
    moves = Moves(rig.store, nobody)
    given = (rig.arena, moves, ReadAhead(moves), rig.sessions, Telemetry(NODE))
    port = DataPort("127.0.0.1", 0, *given)

    async def greeted(tenant: str) -> Welcome:
        session = rig.session(tenant)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        there.append(writer)
        writer.write(HELLO.pack(HELLO_MAGIC, session.token, session.data_token))
        return Welcome(WELCOME.unpack(await reader.readexactly(WELCOME.size))[1])

    async def serve() -> None:
        serving = asyncio.create_task(port.serve(nobody))
        assert [await greeted("default") for _ in range(8)] == (
            [Welcome.COME_IN] * 6 + [Welcome.FULL] * 2
        )
        assert await greeted("other") is Welcome.COME_IN
        for one in there:
            one.close()
        serving.cancel()

    there: list[asyncio.StreamWriter] = []
    asyncio.run(asyncio.wait_for(serve(), 20.0))
    port.close()


def test_a_caller_that_the_loop_lets_in_late_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that handed it over waits no more by then, and must not close what it gave."""
    lacking: Any = None
    sessions, given_up = Sessions(), threading.Event()
    session = sessions.begin("default", "late")
    port = DataPort("127.0.0.1", 0, *[lacking] * 3, sessions, Telemetry(NODE))
    attend = DataPort._attend

    def attended(*about: Any) -> None:
        attend(*about)
        given_up.set()

    def answering(_: Session) -> SocketCaller:
        return SocketCaller(lacking, lacking, lacking, lambda: True)

    monkeypatch.setattr(DataPort, "_attend", attended)
    monkeypatch.setattr(data_port, "DATA_GREETING_SECONDS", 0.05)

    async def serve() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(CALLS_KIND)
        await writer.drain()
        serving = asyncio.create_task(port.serve(answering))
        assert await asyncio.to_thread(given_up.wait, 20.0)
        writer.write(HELLO.pack(CALLS_MAGIC, session.token, session.data_token))
        said = await reader.readexactly(WELCOME.size)
        assert WELCOME.unpack(said)[1] == Welcome.COME_IN
        writer.close()
        serving.cancel()

    asyncio.run(asyncio.wait_for(serve(), 30.0))
    port.close()
