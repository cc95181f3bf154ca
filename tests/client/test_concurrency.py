"""Many threads and tasks on one client; closing it waits for what moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.client import AsyncClient, Client, Match, Miss
from kvstore.errors import KVStoreError, SessionEnded, Unavailable
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of, truth_of
from tests.nodes import CALL_SECONDS

TOKENS = 30
Clients = Callable[..., Client]


def test_four_threads_put_and_get_on_one_client(
    client_of: Clients, stats_of: Callable[[Client], Any], eventually: Callable[..., Any]
) -> None:
    spec = spec_of("threads")
    client = client_of(spec)

    def work(thread: int) -> None:
        for turn in range(12):
            own, seed = thread * 1_000 + turn, thread * 100 + turn
            for start, known in ((own * 100, seed), (turn * 100 + 10**7, turn)):  # own; shared
                truth, chain = (
                    truth_of(spec, TOKENS, known),
                    client.chain(range(start, start + TOKENS)),
                )
                source = Cache(spec, TOKENS, seed=seed)
                source.fill(truth)
                client.put(chain, source.memory(client))
                target = Cache(spec, TOKENS, axes="pthkd", seed=seed + 1)
                assert client.get(chain, target.memory(client)) == Match(4, TOKENS, None)
                assert target.holds(truth) and target.untouched(0, TOKENS)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, thread) for thread in range(4)]:
            done.result(60)
    eventually(lambda: stats_of(client).pins == 0)
    assert stats_of(client).windows == 0


def test_close_waits_for_a_move_under_way(client_of: Clients, mapped: None) -> None:
    client = client_of(spec_of("close"))
    transport: Any = client.connection.link().transport
    moving, let_go, closed = threading.Event(), threading.Event(), threading.Event()

    def move() -> None:
        with transport._moving():
            moving.set()
            assert let_go.wait(20)
            assert not closed.is_set(), "the mapping went from under a move"
            assert transport._writing.bytes.size > 0

    def close() -> None:
        client.close()
        closed.set()

    with ThreadPoolExecutor(2) as threads:
        mover = threads.submit(move)
        assert moving.wait(20)
        closer = threads.submit(close)
        while not transport._closed:
            assert not closer.done()
        let_go.set()
        mover.result(20)
        closer.result(20)
    assert closed.is_set()


@pytest.mark.parametrize("seed", range(3))
def test_close_in_the_middle_of_everything_ends_it_with_typed_errors(
    client_of: Clients, seed: int
) -> None:
    spec = spec_of(f"close-{seed}", layers=8, head_dim=64, block_tokens=32)
    client, tokens = client_of(spec), 256
    chain = client.chain(range(tokens))
    source = Cache(spec, tokens)
    source.fill(truth_of(spec, tokens, seed))
    truth = truth_of(spec, tokens, seed)
    client.put(chain, source.memory(client))
    started, ended = threading.Barrier(4), []

    def read() -> None:
        started.wait(20)
        while True:
            target = Cache(spec, tokens, seed=1)
            found = client.get(chain, target.memory(client))
            assert target.holds(truth, 0, found.tokens)
            if found.miss is not None:
                assert found == Match(0, 0, Miss.UNREACHABLE)
                return

    def write() -> None:
        started.wait(20)
        number = 1_000
        try:
            while True:
                number += tokens
                other = client.chain(range(number, number + tokens))
                client.put(other, source.memory(client))
        except KVStoreError as error:
            ended.append(error)

    with ThreadPoolExecutor(3) as threads:
        work = [threads.submit(one) for one in (read, read, write)]
        started.wait(20)
        for _ in range(seed):
            client.get(chain, Cache(spec, tokens).memory(client))
        client.close()
        for one in work:
            one.result(30)
    assert len(ended) == 1


def test_the_asynchronous_client_gives_the_same_answers(node: Node, transport: str) -> None:
    spec = spec_of("async")
    truth = truth_of(spec, TOKENS, 1)

    async def talk() -> None:
        async with await AsyncClient.at(
            node.address, spec, deadline_seconds=20.0, transport=transport
        ) as client:
            chain = client.blocking.chain(range(TOKENS))
            source, target = Cache(spec, TOKENS), Cache(spec, TOKENS, seed=1)
            source.fill(truth)
            ours, theirs = source.memory(client.blocking), target.memory(client.blocking)
            assert await client.match(chain) == Match(0, 0, Miss.ABSENT)
            writer = await client.writer(chain, hand_off=True)
            reader = await client.reader(chain, theirs, hand_offs=writer.hand_offs)
            await client.run(writer.put, ours)
            assert await client.run(reader.wait, 5.0)
            assert reader.blocks == 4 and target.holds(truth)
            assert await client.run(writer.seal) == ["SEALED"] * 4
            await client.run(reader.close)
            assert await client.put(chain, ours) == 0
            caches = [Cache(spec, TOKENS, seed=n) for n in range(6)]
            gets = [client.get(chain, one.memory(client.blocking)) for one in caches]
            assert await asyncio.gather(*gets) == [Match(4, TOKENS, None)] * 6
            assert all(one.holds(truth) for one in caches)
            if transport == "shm":
                pinned = await client.pin(chain)
                assert pinned.blocks == 4
                pinned.close()
            assert await client.remove(chain) == 4
            await client.close()
            with pytest.raises(SessionEnded):
                await client.match(chain)

    asyncio.run(talk())


def test_a_large_get_does_not_hold_up_the_event_loop(node: Node) -> None:
    spec = spec_of("large", layers=8, kv_heads=8, head_dim=128, block_tokens=64)
    tokens = 1_024  # 64 MiB

    async def talk() -> int:
        async with await AsyncClient.at(node.address, spec, deadline_seconds=20.0) as client:
            chain = client.blocking.chain(range(tokens))
            source = [np.full((tokens, 8, 2, 128), layer, np.float32) for layer in range(8)]
            target = [np.zeros_like(tensor) for tensor in source]
            await client.put(chain, client.blocking.memory(source, "thkd"))
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticker = asyncio.create_task(tick())
            found = await client.get(chain, client.blocking.memory(target, "thkd"))
            ticker.cancel()
            assert found.tokens == tokens
            assert all(np.array_equal(*both) for both in zip(source, target, strict=True))
            return ticks

    assert asyncio.run(talk()) > 1


def test_an_awaited_call_has_the_cuda_stream_of_whoever_awaits_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = threading.local()  # as CUDA has it: each thread its own

    @contextmanager
    def stream(one: str) -> Iterator[None]:
        before, own.stream = current(), one
        yield
        own.stream = before

    def current() -> str:
        return getattr(own, "stream", "default")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", stream)

    async def talk() -> None:
        async with await AsyncClient.at(
            node.address, spec_of("streams"), deadline_seconds=20.0
        ) as client:
            with stream("of the model"):
                assert await client.run(current) == "of the model"
            assert await client.run(current) == "default"

    asyncio.run(talk())


def test_a_cancelled_call_is_over_only_when_nothing_moves_any_more(node: Node) -> None:
    running, let_go, over = threading.Event(), threading.Event(), threading.Event()

    def move() -> None:
        running.set()
        assert let_go.wait(20)
        over.set()

    async def talk() -> None:
        async with await AsyncClient.at(
            node.address, spec_of("cancel"), deadline_seconds=20.0
        ) as client:
            task = asyncio.create_task(client.run(move))
            await asyncio.to_thread(running.wait, 20)
            task.cancel()
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done(), "its memory may still be written"
            let_go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert over.is_set()

    asyncio.run(talk())


@pytest.mark.parametrize("name", ["writer", "reader", "pin"])
def test_what_a_cancelled_call_opened_is_let_go(
    node: Node,
    transport: str,
    stats_of: Callable[[Client], Any],
    eventually: Callable[..., Any],
    name: str,
) -> None:
    """Nobody has it to close it: windows on mapped memory would stay open for as long as the client
    lives."""
    if name == "pin" and transport != "shm":
        pytest.skip("the memory of another host is not mapped")
    spec = spec_of(f"cancelled-{name}")
    opened, let_go = threading.Event(), threading.Event()

    async def talk() -> None:
        async with await AsyncClient.at(
            node.address, spec, deadline_seconds=20.0, transport=transport
        ) as client:
            blocking: Any = client.blocking
            chain, cache = blocking.chain(range(TOKENS)), Cache(spec, TOKENS)
            if name != "writer":
                blocking.put(chain, cache.memory(blocking))
            more = {"reader": {"memory": cache.memory(blocking)}, "pin": {"pin_ms": 600_000}}
            ask = getattr(blocking, name)

            def slow(*arguments: Any, **options: Any) -> Any:
                made = ask(*arguments, **options)
                opened.set()
                assert let_go.wait(20)
                return made

            setattr(blocking, name, slow)
            task = asyncio.create_task(getattr(client, name)(chain, **more.get(name, {})))
            await asyncio.to_thread(opened.wait, 20)
            task.cancel()
            await asyncio.sleep(0)
            let_go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            stats = await asyncio.to_thread(
                eventually,
                lambda: (now := stats_of(blocking)).windows == now.pins == 0 and now,
            )
            assert stats.sessions >= 1, "by the client's own word, not by its end"

    asyncio.run(talk())


def test_a_client_that_is_cancelled_while_it_connects_leaves_no_session(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, let_go = threading.Event(), threading.Event()
    connect, made = Client.at, list[Client]()

    def slow(*arguments: Any, **options: Any) -> Client:
        made.append(connect(*arguments, **options))
        connected.set()
        assert let_go.wait(20)
        return made[0]

    monkeypatch.setattr(Client, "at", slow)

    async def talk() -> None:
        told = {"deadline_seconds": 20.0}
        task = asyncio.create_task(AsyncClient.at(node.address, spec_of("connecting"), **told))
        await asyncio.to_thread(connected.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())
    with pytest.raises(SessionEnded):
        made[0].connection.link()


def test_a_call_for_which_no_thread_can_be_had_is_refused_and_not_made_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun, go_on = threading.Thread.start, threading.Event(), threading.Event()
    made: list[str] = []

    def first(_: object = None) -> None:
        begun.set()
        assert go_on.wait(CALL_SECONDS)

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("moonpool_"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def run() -> None:
        async with await AsyncClient.at(node.address, spec_of("no thread")) as client:
            under_way = asyncio.create_task(client.run(first))
            await asyncio.to_thread(begun.wait, CALL_SECONDS)
            with monkeypatch.context() as short:
                short.setattr(threading.Thread, "start", refused)
                with pytest.raises(Unavailable, match="no thread"):
                    await client.run(made.append, "refused")
            go_on.set()
            await under_way
            await client.run(made.append, "after")
        assert made == ["after"]

    asyncio.run(run())
