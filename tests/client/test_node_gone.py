"""A node that is gone costs a reader nothing but the blocks, and is found again when it is back."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvstore.client import Client, FixedAddress, InDirectory, Match, Miss, Writer, connection
from kvstore.errors import Invalid, SessionEnded, Unavailable, WindowClosed
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of, truth_of

TOKENS, BLOCKS = 30, 4
SPEC = spec_of("gone")
UNREACHABLE = Match(0, 0, Miss.UNREACHABLE)
# No call may take longer: hours to a hung test, nothing to one that works.
FAR_BEYOND_ANY_DEADLINE = 30.0


@pytest.fixture
def cache() -> Cache:
    made = Cache(SPEC, TOKENS)
    made.fill(truth_of(SPEC, TOKENS, 1))
    return made


@pytest.fixture
def client(own_node: Node) -> Iterator[Client]:
    with Client.at(own_node.directory, SPEC, deadline_seconds=20.0) as made:
        yield made


def asked_of_nobody(client: Client, cache: Cache) -> None:
    """Every call ends, as a miss or as an error that says so."""
    chain, memory = client.chain(range(TOKENS)), cache.memory(client)
    started = time.monotonic()
    assert client.match(chain) == UNREACHABLE
    assert client.get(chain, memory) == UNREACHABLE
    for call in (
        lambda: client.writer(chain),
        lambda: client.put(chain, memory),
        lambda: client.pin(chain),
        lambda: client.reader(chain, memory),
        lambda: client.remove(chain),
        client.register,
    ):
        with pytest.raises(Unavailable):
            call()
    assert time.monotonic() - started < FAR_BEYOND_ANY_DEADLINE


def test_a_killed_node_is_a_miss_and_after_its_return_works_as_before(
    own_node: Node, client: Client, cache: Cache, eventually: Callable[..., Any]
) -> None:
    chain, memory = client.chain(range(TOKENS)), cache.memory(client)
    assert client.put(chain, memory) == BLOCKS
    later = client.chain(range(100, 100 + TOKENS))
    writer = client.writer(later)
    for layer in (0, 1):
        _store(writer, layer, cache)
    own_node.kill()
    asked_of_nobody(client, cache)
    address = own_node.address
    own_node.start()
    assert own_node.address != address
    assert eventually(lambda: client.match(chain).miss is not Miss.UNREACHABLE)
    assert client.match(chain) == Match(0, 0, Miss.ABSENT), "its memory was its own"
    with pytest.raises(WindowClosed):
        writer.seal()
    with pytest.raises(WindowClosed):
        _store(writer, 2, cache)
    writer.abort()
    assert client.put(chain, memory) == BLOCKS
    target = Cache(SPEC, TOKENS, seed=2)
    assert client.get(chain, target.memory(client)) == Match(BLOCKS, TOKENS, None)
    assert target.holds(truth_of(SPEC, TOKENS, 1))


def test_a_node_that_forgot_the_namespace_is_told_again(
    own_node: Node, client: Client, cache: Cache, eventually: Callable[..., Any]
) -> None:
    chain, memory = client.chain(range(TOKENS)), cache.memory(client)
    calls: list[Callable[[], Any]] = [
        lambda: client.match(chain),
        lambda: client.put(chain, memory),
        lambda: client.get(chain, memory),
        lambda: client.pin(chain).close(),
        lambda: client.remove(chain),
    ]
    for call in calls:
        own_node.kill()
        shutil.rmtree(own_node.directory)
        own_node.start()

        def works(call: Callable[[], Any] = call) -> bool:
            try:
                return call() != UNREACHABLE
            except Unavailable:
                return False

        assert eventually(works)
    with client.writer(chain) as writer:
        assert writer.granted.all()


def test_a_session_that_broke_is_begun_anew_by_whatever_is_called_next(
    client: Client, cache: Cache
) -> None:
    chain, memory = client.chain(range(TOKENS)), cache.memory(client)
    client.put(chain, memory)
    for call in (
        lambda: client.match(chain).blocks,
        lambda: client.get(chain, memory).blocks,
        lambda: client.reader(chain, memory).close(),
        lambda: client.pin(chain).close(),
        lambda: client.writer(chain).abort(),
        lambda: client.remove(chain),
    ):
        client.connection.link()._stream.cancel()
        assert call() in (BLOCKS, None)


def test_a_stopped_node_is_a_miss_by_the_deadline(
    own_node: Node, cache: Cache, eventually: Callable[..., Any]
) -> None:
    with Client.at(own_node.address, SPEC, deadline_seconds=20.0) as client:
        chain, memory = client.chain(range(TOKENS)), cache.memory(client)
        client.put(chain, memory)
        writer = client.writer(client.chain(range(100, 130)))
        writer.put(memory)
        target = Cache(SPEC, TOKENS, seed=2)
        reader = client.reader(chain, target.memory(client))
        own_node.signal(signal.SIGSTOP)
        client.connection.deadline_seconds = 0.5  # until here a busy machine may take its time
        assert reader.poll() and reader.blocks == BLOCKS, "what was opened needs no node"
        assert target.holds(truth_of(SPEC, TOKENS, 1))
        reader.close()
        with pytest.raises((Unavailable, WindowClosed)):
            writer.seal()
        asked_of_nobody(client, cache)
        own_node.signal(signal.SIGCONT)
        client.connection.deadline_seconds = 20.0
        found = eventually(lambda: (match := client.match(chain)) != UNREACHABLE and match, 40.0)
        assert found == Match(BLOCKS, TOKENS, None)


def test_a_client_that_is_closed_amid_a_call_ends_it_at_once(own_node: Node, cache: Cache) -> None:
    client = Client.at(own_node.address, SPEC, deadline_seconds=25.0)
    chain, memory = client.chain(range(TOKENS)), cache.memory(client)
    own_node.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(3) as threads:
        match = threads.submit(client.match, chain)
        get = threads.submit(client.get, chain, memory)
        put = threads.submit(client.put, chain, memory)
        time.sleep(0.3)  # for the calls to be sent; if one is not, its answer is the same
        client.close()
        assert match.result(15) == get.result(15) == UNREACHABLE
        with pytest.raises(SessionEnded):
            put.result(15)


def test_a_load_that_still_comes_keeps_nobody_waiting_but_who_closes(
    own_node: Node, cache: Cache
) -> None:
    told: list[str] = []
    began, enough = threading.Event(), threading.Event()
    client = Client.at(own_node.address, SPEC, deadline_seconds=20.0, transport="tcp")
    chain = client.chain(range(TOKENS))
    transport: Any = client.connection.link().transport

    def load() -> None:
        with transport.lanes.lane():
            began.set()
            enough.wait(FAR_BEYOND_ANY_DEADLINE / 3)
            told.append("loaded")

    def close() -> None:
        client.close()
        told.append("closed")

    with ThreadPoolExecutor(2) as threads:
        threads.submit(load)
        assert began.wait(10)
        own_node.signal(signal.SIGSTOP)
        client.connection.deadline_seconds = 0.5  # until here a busy machine may take its time
        for _ in range(2):  # the first of them finds out that it is gone
            assert client.match(chain) == UNREACHABLE
            assert not told, "it waited for another's load"
        threads.submit(close)
        time.sleep(0.2)  # for it to be closed, if nothing keeps it
        enough.set()
    assert told == ["loaded", "closed"], "memory was given up that a load still writes to"


def test_while_a_node_is_left_alone_it_is_not_asked(
    own_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PAUSE_SECONDS_MIN", 3_600.0)

    class Counted:
        finds = 0

        def find(self) -> str:
            self.finds += 1
            return own_node.address

    locator = Counted()
    with Client(locator, SPEC, deadline_seconds=20.0) as client:
        client.register()
        own_node.kill()
        chain = client.chain(range(TOKENS))
        for _ in range(200):
            assert client.match(chain) == UNREACHABLE
    assert locator.finds <= 2, "a dead node costs a request nothing"


def test_a_follower_of_a_node_that_died_does_not_wait_for_what_cannot_come(
    own_node: Node, client: Client, cache: Cache
) -> None:
    chain, target = client.chain(range(TOKENS)), Cache(SPEC, TOKENS, seed=4)
    with client.writer(chain, hand_off=True) as writer:
        memory = target.memory(client)
        with client.reader(chain, memory, hand_offs=writer.hand_offs) as reader:
            writer.put(cache.memory(client), blocks=(0, 2))
            assert reader.poll() is False
            own_node.kill()
            assert reader.wait(10.0) is True
            assert (reader.blocks, reader.miss) == (2, Miss.UNREACHABLE)
    assert target.holds(truth_of(SPEC, TOKENS, 1), 0, 16)


def test_a_hand_off_from_before_a_node_s_restart_is_a_miss(
    own_node: Node, client: Client, cache: Cache, eventually: Callable[..., Any]
) -> None:
    chain, target = client.chain(range(TOKENS)), Cache(SPEC, TOKENS, seed=2)
    hand_offs = client.writer(chain, hand_off=True).hand_offs
    own_node.kill()
    own_node.start()
    assert eventually(lambda: client.match(chain).miss is Miss.ABSENT)
    with client.reader(chain, target.memory(client), hand_offs=hand_offs) as reader:
        assert reader.poll() and (reader.blocks, reader.miss) == (0, Miss.ABSENT)
    client.put(chain, cache.memory(client))
    with client.reader(chain, target.memory(client), hand_offs=hand_offs) as reader:
        assert reader.poll() and reader.blocks == BLOCKS, "by its key"
    assert target.holds(truth_of(SPEC, TOKENS, 1))


def test_nobody_is_there_from_the_start(tmp_path: Any, cache: Cache) -> None:
    for where in (tmp_path, "127.0.0.1:1"):
        with pytest.raises(Unavailable):
            Client.at(where, SPEC)
    for locator in (InDirectory(tmp_path), FixedAddress("127.0.0.1:1")):
        with Client(locator, SPEC) as client:
            asked_of_nobody(client, cache)


def test_a_folder_with_a_colon_in_its_name_is_no_address(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"no node has run in {tmp_path}/st:ate"):
        Client.at(f"{tmp_path}/st:ate", SPEC)


def test_a_client_that_cannot_register_leaves_no_session(
    own_node: Node, client: Client, stats_of: Any, eventually: Callable[..., Any]
) -> None:
    wrong = spec_of("gone", dtype="float16")
    object.__setattr__(wrong, "codec", "zip")
    with pytest.raises(Invalid, match="codec 'zip' is not supported"):
        Client.at(own_node.address, wrong, deadline_seconds=20.0)
    eventually(lambda: stats_of(client).sessions == 1)


def _store(writer: Writer, layer: int, cache: Cache) -> None:
    tensor, table = cache.tensors[layer], cache.block_table
    writer.put_layer(layer, tensor, cache.axes, block_table=table)
