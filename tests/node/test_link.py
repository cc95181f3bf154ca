"""A session with a peer that answers with what is no message, and with one that leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from kvstore.cli import main as cli
from kvstore.clock import SystemClock
from kvstore.config import OPEN
from kvstore.errors import Unavailable
from kvstore.metadata.records import NodeRecord
from kvstore.node.link import Link
from kvstore.transfer.term import Term
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import NodeProcess, running

SECONDS = 20.0
NO_MESSAGE = b"\xff\xff\xff"


async def _unreadable(_: bytes, context: Any) -> bytes:
    return NO_MESSAGE


async def _unreadable_event(_: bytes, context: Any) -> AsyncIterator[bytes]:
    yield NO_MESSAGE
    await asyncio.sleep(SECONDS)


def _record(node_id: str, address: str) -> NodeRecord:
    return NodeRecord(node_id, 1, address, {}, (), {}, "serving")


@asynccontextmanager
async def made_of(record: NodeRecord) -> AsyncIterator[Link]:
    with ThreadPoolExecutor(1) as threads:
        made = Link(record, "default", "node me", threads, threads, SystemClock(), OPEN, None)
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def link() -> AsyncIterator[Link]:
    """To a node that says nothing else, in a session or out of it."""
    methods = {
        "Open": grpc.unary_unary_rpc_method_handler(_unreadable),
        "Session": grpc.unary_stream_rpc_method_handler(_unreadable_event),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("moonpool.v1.KV", methods)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with made_of(_record("peer", f"127.0.0.1:{port}")) as made:
        try:
            yield made
        finally:
            await server.stop(0)


def test_an_answer_that_cannot_be_read_is_its_nodes_failure_and_the_link_is_used_no_more() -> None:
    async def main() -> None:
        async with link() as one:
            assert one.alive
            with pytest.raises(Unavailable, match=f"{one.address} answered cannot be read"):
                await one.call(one.kv.Open, pb.OpenRequest(), SECONDS)
            assert not one.alive

    asyncio.run(main())


def test_a_session_that_begins_with_what_cannot_be_read_has_not_begun() -> None:
    async def main() -> None:
        async with link() as one:
            with pytest.raises(Unavailable, match=f"{one.address} began no session"):
                await one.begin()

    asyncio.run(main())


def test_a_peer_that_said_that_it_drains_and_then_ended_is_known_to_be_gone() -> None:
    """Of a stream with words that nobody reads, gRPC does not say that it is over."""

    async def main(peer: NodeProcess) -> None:
        async with made_of(_record(peer.caller().opened.node_id, peer.address)) as one:
            await one.begin()
            assert cli.main(["drain", "--node", peer.address]) == 0
            assert peer.wait() == 0
            async with asyncio.timeout(SECONDS):
                while one.alive:
                    await asyncio.sleep(0.01)

    with running() as peer:
        asyncio.run(main(peer))


def test_what_is_given_up_before_a_thread_begins_it_ends_at_once_and_is_never_done() -> None:
    async def main() -> None:
        go, done = threading.Event(), list[str]()
        async with made_of(_record("peer", "127.0.0.1:1")) as one:
            term = Term()
            ahead = asyncio.create_task(one.in_thread(go.wait, SECONDS))
            behind = asyncio.create_task(one.in_thread(done.append, "behind", term=term))
            await asyncio.sleep(0)
            assert term.waits
            behind.cancel()
            await asyncio.wait([behind], timeout=SECONDS / 4)
            ended = behind.done()
            go.set()
            await ahead
            assert ended and behind.cancelled() and not one.busy
            await one.in_thread(done.append, "later")
            assert done == ["later"]

    asyncio.run(main())


def test_what_is_given_up_while_a_thread_does_it_ends_when_that_has_done_it() -> None:
    async def main() -> None:
        began, go, term = threading.Event(), threading.Event(), Term()

        def work() -> None:
            began.set()
            go.wait(SECONDS)

        async with made_of(_record("peer", "127.0.0.1:1")) as one:
            working = asyncio.create_task(one.in_thread(work, term=term))
            await asyncio.to_thread(began.wait, SECONDS)
            assert not term.waits
            working.cancel()
            await asyncio.sleep(0.01)
            assert one.busy and not working.done(), "it may write to memory that is another's then"
            go.set()
            await asyncio.wait([working], timeout=SECONDS)
            assert working.cancelled() and not one.busy

    asyncio.run(main())
