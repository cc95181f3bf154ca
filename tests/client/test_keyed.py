"""Blocks under an engine's own keys: each is had or missed by itself, whatever became of others."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Keyed, reserving
from kvstore.client import keyed as each
from kvstore.client import space as space_module
from kvstore.client.connection import Connection
from kvstore.client.opened import Opened
from kvstore.client.reserving import Reserving
from kvstore.client.writer import Writer
from kvstore.errors import Invalid, Overloaded, WindowClosed
from kvstore.limits import HANDLE_BYTES_MAX, SOCKET_CALLS_MAX
from kvstore.transfer import staged
from kvstore.wire.v1 import kv_pb2 as pb
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of
from tests.client.six_blocks import BLOCKS, SIZE, TOKENS, Stored, said

Clients = Callable[..., Client]


@pytest.fixture
def stored(own_node: Node) -> Any:
    with Client.at(own_node.directory, spec_of("keyed"), deadline_seconds=20.0) as client:
        yield Stored(client)


@pytest.mark.parametrize("axes", ["phtkd", "kpthd", "thkd", "kthd"])
def test_blocks_come_back_by_their_keys_in_any_layout(client_of: Clients, axes: str) -> None:
    stored = Stored(client_of(spec_of(f"keyed-{axes}")), pages=SIZE)
    assert stored.loaded(axes=axes, page_tokens=5) == [True] * BLOCKS
    assert stored.client.exists_each(stored.blocks) == [True] * BLOCKS
    assert (
        stored.client.store_each(stored.blocks, stored.source.memory(stored.client))
        == [True] * BLOCKS
    ), "what exists already is stored"


def test_a_hit_behind_a_miss_is_a_hit(stored: Stored) -> None:
    client = stored.client
    assert client.remove(stored.only(0, 3)) == 2
    assert client.exists_each(stored.blocks) == said(1, 2, 4, 5)
    assert stored.loaded() == said(1, 2, 4, 5)


def test_no_block_is_another_s_parent(stored: Stored) -> None:
    client = stored.client
    client.remove(stored.only(2))
    assert client.store_each(stored.only(2), stored.source.memory(client)) == [True]
    back = Cache(stored.spec, TOKENS)
    assert client.load_each(stored.only(2), back.memory(client)) == [True]
    assert back.holds(stored.truth, 0, SIZE), "it was stored anew, from the start of the memory"


def test_all_hits_are_loaded_in_one_move(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    transport: Any = stored.client.connection.link().transport
    load, moves = transport.load, []

    def counted(layout: Any, slots: Any, *rest: Any) -> Any:
        moves.append(len(slots))
        return load(layout, slots, *rest)

    monkeypatch.setattr(transport, "load", counted)
    stored.client.remove(stored.only(1))
    assert stored.loaded() == said(0, 2, 3, 4, 5)
    assert moves == [5]


@pytest.mark.parametrize("where", ["bytes", "strip table"])
def test_a_damaged_block_is_a_miss_alone_and_its_owner_is_told(
    stored: Stored, stats_of: Callable[[Client], Any], where: str
) -> None:
    client, layout = stored.client, stored.client.space.layout
    client.remove(stored.only(3))
    with client.writer(stored.only(3)) as writer:
        writer.put(stored.source.memory(client))
        writer.seal()
        at = writer._slots.offsets[0] + (layout.head_bytes if where == "bytes" else 256)
    transport: Any = client.connection.link().transport
    transport._writing.bytes[at] ^= 0x10
    assert client.exists_each(stored.blocks) == [True] * BLOCKS, "nobody has looked"
    assert stored.loaded() == said(0, 1, 2, 4, 5)
    assert stats_of(client).counters["damaged_blocks"] == 1
    assert client.exists_each(stored.blocks) == said(0, 1, 2, 4, 5)
    assert stored.loaded() == said(0, 1, 2, 4, 5)
    assert stats_of(client).counters["damaged_blocks"] == 1


def test_a_block_whose_slot_changed_hands_is_not_loaded_and_not_called_damaged(
    stored: Stored, stats_of: Callable[[Client], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    transport: Any = stored.client.connection.link().transport
    fourth = Opened(stored.client.connection, stored.client.space, stored.only(4), (), 0)
    place = fourth.slots.offsets[0]
    fourth.close()
    monkeypatch.setattr(transport, "current", lambda slots, _: slots.offsets != place)
    assert stored.loaded() == said(0, 1, 2, 3, 5)
    assert stats_of(stored.client).counters["damaged_blocks"] == 0


def test_pins_are_let_go(
    stored: Stored, stats_of: Callable[[Client], Any], eventually: Callable[..., Any]
) -> None:
    stored.client.remove(stored.only(0))
    stored.loaded()
    eventually(lambda: stats_of(stored.client).pins == 0)


def test_a_node_that_is_gone_is_a_miss_and_raises_nothing(
    own_node: Node, stored: Stored, eventually: Callable[..., Any]
) -> None:
    own_node.kill()
    client, nothing = stored.client, [False] * BLOCKS
    assert client.exists_each(stored.blocks) == nothing
    assert stored.loaded() == nothing
    assert client.store_each(stored.blocks, stored.source.memory(client)) == nothing
    own_node.start()
    memory = stored.source.memory(client)
    eventually(lambda: client.store_each(stored.blocks, memory) == [True] * BLOCKS)
    assert stored.loaded() == [True] * BLOCKS


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks are a part, and three parts are as many as there are sockets."""
    monkeypatch.setattr(each, "PART_BLOCKS", BLOCKS // SOCKET_CALLS_MAX)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("way", "parts"), [("shm", SOCKET_CALLS_MAX), ("tcp", 1)])
def test_many_blocks_are_stored_in_parts_each_asked_for_before_one_is_copied(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, way: str, parts: int
) -> None:
    told: list[str] = []
    begin, store = Connection.begin, staged.store

    def begun(self: Connection, method: str, request: Any) -> Any:
        told.append(method)
        return begin(self, method, request)

    def stored_some(*given: Any) -> None:
        told.append("copy")
        store(*given)

    monkeypatch.setattr(Connection, "begin", begun)
    monkeypatch.setattr(staged, "store", stored_some)
    stored = Stored(client_of(spec_of(f"keyed-parts-{way}"), transport=way))
    assert told == ["Reserve"] * parts + ["copy", "Seal"] * parts
    assert stored.loaded() == [True] * BLOCKS
    stored.client.remove(stored.only(1, 4, 5))
    assert stored.loaded() == said(0, 2, 3)
    memory = stored.source.memory(stored.client)
    assert stored.client.store_each(stored.blocks, memory) == [True] * BLOCKS
    assert stored.loaded() == [True] * BLOCKS


@pytest.mark.parametrize("part_blocks", [2, each.PART_BLOCKS])
def test_a_key_that_is_named_twice_is_stored_from_where_it_stands_first(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, part_blocks: int
) -> None:
    monkeypatch.setattr(each, "PART_BLOCKS", part_blocks)
    stored = Stored(client_of(spec_of(f"keyed-twice-{part_blocks}")))
    client, target = stored.client, Cache(stored.spec, TOKENS)
    twice = client.keyed(["a", "b", "a", "c", "b", "d"])
    assert client.store_each(twice, stored.source.memory(client)) == [True] * BLOCKS
    once = client.keyed(["a", "b", "no", "c", "nor this", "d"])
    assert client.load_each(once, target.memory(client)) == said(0, 1, 3, 5)
    assert all(target.holds(stored.truth, row * SIZE, (row + 1) * SIZE) for row in (0, 1, 3, 5))


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("unread", [1, BLOCKS])
def test_answers_that_no_socket_would_hold_are_read_before_a_block_is_copied(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, unread: int
) -> None:
    client, told = stored.client, list[str]()
    client.remove(stored.blocks)
    reply, store = Reserving.reply, staged.store

    def read(self: Reserving) -> Any:
        told.append("answer")
        return reply(self)

    def stored_some(*given: Any) -> None:
        told.append("copy")
        store(*given)

    monkeypatch.setattr(Reserving, "reply", read)
    monkeypatch.setattr(staged, "store", stored_some)
    monkeypatch.setattr(reserving, "UNREAD_BLOCKS", unread)
    memory = stored.source.memory(client)
    assert client.store_each(stored.blocks, memory) == [True] * BLOCKS
    every = SOCKET_CALLS_MAX
    assert told == (
        ["answer"] * every + ["copy"] * every if unread == 1 else ["answer", "copy"] * every
    )
    assert stored.loaded() == [True] * BLOCKS


def test_a_socket_holds_an_answer_that_is_not_read_at_once() -> None:
    count = reserving.UNREAD_BLOCKS
    answer = pb.ReserveReply(
        grants=[pb.ReserveReply.GRANTED] * count,
        slot_offsets=[1 << 40] * count,
        generations=[1 << 60] * count,
        handles=[bytes(HANDLE_BYTES_MAX)] * count,
    ).SerializeToString()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        ours.setblocking(False)
        assert ours.send(answer) == len(answer)


@pytest.mark.usefixtures("in_parts")
def test_a_part_that_fails_gives_back_what_was_asked_for_behind_it(
    stored: Stored,
    stats_of: Callable[[Client], Any],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, memory, copies = stored.client, stored.source.memory(stored.client), []
    client.remove(stored.blocks)
    store = staged.store

    def fails(*given: Any) -> None:
        copies.append(given)
        if len(copies) == 2:
            raise ValueError("no such memory")
        store(*given)

    with monkeypatch.context() as patch:
        patch.setattr(staged, "store", fails)
        with pytest.raises(ValueError, match="no such memory"):
            client.store_each(stored.blocks, memory)
    sockets: Any = client.connection.link().kv._calls
    assert len(sockets._free) == len(sockets._open), "an answer that nobody took"
    assert stored.loaded() == said(0, 1), "the part before it was sealed"
    eventually(lambda: stats_of(client).windows == 0)
    assert client.store_each(stored.blocks, memory) == [True] * BLOCKS
    assert stored.loaded() == [True] * BLOCKS


@pytest.mark.usefixtures("in_parts")
def test_a_last_part_that_is_not_sealed_is_told(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = stored.client, stored.source.memory(stored.client)
    client.remove(stored.blocks)
    sealed = Writer._sealed

    def late(self: Writer, rows: Any, answer: Any) -> list[str]:
        found = sealed(self, rows, answer)
        if self.first == BLOCKS - 2:
            raise WindowClosed("it stood still for too long")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_sealed", late)
        assert client.store_each(stored.blocks, memory) == [False] * BLOCKS


@pytest.mark.usefixtures("in_parts")
def test_a_part_that_is_refused_gives_back_the_others(
    stored: Stored, stats_of: Callable[[Client], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = stored.client, stored.source.memory(stored.client)
    client.remove(stored.blocks)
    reply = Reserving.reply

    def refused(self: Reserving) -> Any:
        if self.first == 2:
            self.drop()
            raise Overloaded("no room", 1)
        return reply(self)

    with monkeypatch.context() as patch:
        patch.setattr(Reserving, "reply", refused)
        assert client.store_each(stored.blocks, memory) == said(0, 1)
    assert stats_of(client).windows == 0
    assert client.store_each(stored.blocks, memory) == [True] * BLOCKS
    assert stored.loaded() == [True] * BLOCKS


def test_a_full_pool_says_what_was_there_already(stored: Stored) -> None:
    client = stored.client
    names = [f"page-{i}" for i in range(3)] + [f"new-{i}" for i in range(8_000)]
    spec, many = stored.spec, client.keyed(names)
    ours = Cache(spec, len(many) * SIZE)
    found = client.store_each(many, ours.memory(client))
    assert all(found[:3]) and not all(found) and found == client.exists_each(many)


def test_two_groups_of_keys_and_two_namespaces_do_not_see_each_other(client_of: Clients) -> None:
    one, other = client_of(spec_of("keyed-one")), client_of(spec_of("keyed-two"))
    Stored(one)
    assert other.exists_each(other.keyed([f"page-{i}" for i in range(BLOCKS)])) == said()
    assert one.match(one.chain(range(TOKENS))).blocks == 0


def test_nothing_asked_is_nothing_answered(client_of: Clients) -> None:
    client = client_of(spec_of("keyed-none"))
    memory = Cache(client.space.spec, TOKENS).memory(client)
    none = client.keyed([])
    assert client.exists_each(none) == client.load_each(none, memory) == []
    assert client.store_each(none, memory) == []
    assert client.remove(none) == 0


@pytest.mark.parametrize("most", [2, 4, 6])  # a key that is closed is named twice
def test_more_keys_than_a_call_carries_go_in_several(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(space_module, "RPC_KEYS_MAX", most)
    stored = Stored(client_of(spec_of(f"keyed-seams-{most}")))
    assert stored.loaded() == [True] * BLOCKS
    stored.client.remove(stored.only(1, 4))
    assert stored.loaded() == stored.client.exists_each(stored.blocks) == said(0, 2, 3, 5)


def test_calls_that_want_a_chain_refuse_blocks_that_stand_alone(client_of: Clients) -> None:
    client = client_of(spec_of("keyed-refused"))
    blocks = client.keyed(["a"])
    memory = Cache(client.space.spec, TOKENS).memory(client)
    calls: list[Callable[[], Any]] = [
        lambda: client.match(blocks),  # type: ignore[arg-type]
        lambda: client.get(blocks, memory),  # type: ignore[arg-type]
        lambda: client.reader(blocks, memory),  # type: ignore[arg-type]
        lambda: client.pin(blocks),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(Invalid, match="stand alone: use exists_each, load_each") as refused:
            call()
        assert str(refused.value).endswith("or a chain as client.chain(tokens) gives it")


def test_some_heads_can_be_loaded_and_only_whole_blocks_stored(stored: Stored) -> None:
    client = stored.client
    part = Cache(stored.spec, TOKENS, heads=(1, 2))
    assert client.load_each(stored.blocks, part.memory(client)) == [True] * BLOCKS
    assert part.holds(stored.truth)
    with pytest.raises(Invalid, match=r"heads 1\.\.2; whole blocks are stored from it"):
        client.store_each(stored.blocks, part.memory(client))


def test_memory_that_may_not_be_written_is_not_loaded_into(stored: Stored) -> None:
    target = Cache(stored.spec, TOKENS)
    for tensor in target.tensors:
        tensor.flags.writeable = False
    with pytest.raises(Invalid, match="read-only"):
        stored.client.load_each(stored.blocks, target.memory(stored.client))


def test_blocks_of_another_size_are_refused(stored: Stored) -> None:
    memory = stored.source.memory(stored.client)
    with pytest.raises(Invalid, match="blocks of 4 tokens, this group 8"):
        stored.client.load_each(Keyed(stored.blocks.hashes, 4), memory)
