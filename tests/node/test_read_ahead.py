"""Blocks that a real node sends on connections which Open names, before anybody asks for them."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest
import xxhash

from kvstore.block import Chain
from kvstore.core.lifecycle import Slot
from kvstore.layout import Fragment
from kvstore.limits import DATA_SESSION_CONNECTIONS_MAX
from kvstore.node.data_connection import DataConnection
from kvstore.node.moves import Moves
from kvstore.node.read_ahead import Orders, ReadAhead, shares
from kvstore.node.ucx_calls import UcxCalls
from kvstore.transfer.frames import Op, Status
from tests.node.rig import SMALL, TOKENS, Rig
from tests.node.rig import prompt as rig_prompt
from tests.nodes import (
    LAYOUT,
    Caller,
    NodeProcess,
    caller,
    eventually,
    node,
    payload,
    prompt,
    shared,
    shared_node,
)
from tests.transfer.pairs import connected
from tests.transfer.raw import WHOLE, Raw

__all__ = ["caller", "node", "shared", "shared_node"]

numbers = iter(range(60_000_000, 70_000_000))


@pytest.fixture
def raw(shared: Caller) -> Iterator[Raw]:
    with Raw.of(shared) as made:
        yield made


@pytest.fixture
def other(shared: Caller) -> Iterator[Raw]:
    with Raw.of(shared) as made:
        yield made


def opened(caller: Caller, chain: Any, connections: list[int], part: Fragment = WHOLE) -> Any:
    layers = {"layer_first": part.layer_first, "layers": part.layers}
    heads = {"head_first": part.head_first, "heads": part.heads}
    ahead = {"connections": connections, "fragment": {**layers, **heads}}
    return caller.ask("Open", **caller.about(chain), read_ahead=ahead)


def put(caller: Caller, blocks: int) -> Any:
    chain = prompt(next(numbers), blocks)
    caller.put(chain)
    return chain


def taken(raw: Raw, chain: Any, reply: Any, rows: range) -> None:
    """What comes is a READ's answer for these rows."""
    assert list(raw.receive(len(rows))) == [Status.MOVED] * len(rows)
    for row in rows:
        assert xxhash.xxh3_128_digest(raw.receive(LAYOUT.root_bytes)) == reply.roots[row]
        assert raw.receive(LAYOUT.payload_bytes) == payload(chain.hashes[row])


def silent(raw: Raw) -> bool:
    """Whether nothing came: what had been under way would come before the answer to a LOOK."""
    raw.call(Op.LOOK, [bytes(64)])
    raw.receive(8)
    return not select.select([raw.socket], [], [], 0.05)[0]


def test_what_was_opened_comes_shared_over_the_connections_and_reads_go_on(
    shared: Caller, raw: Raw, other: Raw
) -> None:
    chain = put(shared, 3)
    reply = opened(shared, chain, [raw.number, other.number])
    assert reply.ahead_blocks == 3
    taken(raw, chain, reply, range(2))
    taken(other, chain, reply, range(2, 3))
    assert raw.statuses(Op.READ, [reply.handles[2]]) == [Status.MOVED]
    assert raw.receive(LAYOUT.root_bytes + LAYOUT.payload_bytes)


def test_a_fragment_is_sent_of_a_fragment(shared: Caller, raw: Raw) -> None:
    chain, part = put(shared, 1), Fragment(1, 1, 0, 1)
    reply = opened(shared, chain, [raw.number], part)
    raw.call(Op.READ, list(reply.handles), part)
    size = 1 + LAYOUT.root_bytes + LAYOUT.strip_stride
    assert raw.receive(size) == raw.receive(size), "as what a READ of it gives"


def test_only_what_is_there_and_sealed_before_the_first_miss_comes(
    shared: Caller, raw: Raw
) -> None:
    chain = prompt(next(numbers), 3)
    shared.put(chain.between(0, 1))
    handle = shared.reserve(chain.between(1, 2)).handles[0]
    reply = opened(shared, chain, [raw.number])
    assert reply.ahead_blocks == 1
    taken(raw, chain, reply, range(1))
    assert opened(shared, prompt(next(numbers)), [raw.number]).ahead_blocks == 0
    assert silent(raw)
    shared.ask("Abort", handles=[handle])


def test_connections_of_others_and_of_nobody_carry_nothing(
    shared: Caller, shared_node: NodeProcess, raw: Raw
) -> None:
    chain, thief = put(shared, 1), shared_node.caller()
    for named in ([raw.number], [raw.number + 1_000], [0]):
        assert opened(thief, chain, named).ahead_blocks == 0
    assert opened(shared, chain, [raw.number, raw.number + 1_000]).ahead_blocks == 0
    assert silent(raw)


@pytest.mark.parametrize(
    "named", [[], [1, 1], list(range(1, DATA_SESSION_CONNECTIONS_MAX + 2))], ids=len
)
def test_what_names_no_connections_is_refused_and_opens_nothing(
    shared: Caller, named: list[int]
) -> None:
    chain, pins = put(shared, 1), shared.stats().pins
    with pytest.raises(grpc.RpcError, match="connections"):
        opened(shared, chain, named)
    assert shared.stats().pins == pins


def test_a_fragment_outside_the_block_is_refused_and_opens_nothing(
    shared: Caller, raw: Raw
) -> None:
    chain, pins = put(shared, 1), shared.stats().pins
    with pytest.raises(grpc.RpcError):
        opened(shared, chain, [raw.number], Fragment(LAYOUT.layers, 1, 0, 1))
    assert shared.stats().pins == pins
    assert silent(raw)


def test_a_connection_that_ends_unread_holds_no_slot(node: NodeProcess) -> None:
    """As many blocks as fill what a socket takes, so that some are under way and some wait."""
    caller = node.caller()
    caller.register()
    chain = put(caller, 8)
    for _ in range(3):
        with Raw.of(caller) as raw:
            handles = list(opened(caller, chain, [raw.number]).handles)
            handles += opened(caller, chain, [raw.number]).handles
            caller.ask("Close", handles=handles)
    assert caller.ask("Remove", **caller.about(chain)).removed == 8
    assert eventually(lambda: caller.stats().blocks == 0)


class Within:
    """A node's store with sealed and pinned blocks, and what would send them."""

    def __init__(self) -> None:
        self.rig, self.loop = Rig(), asyncio.new_event_loop()
        self.session = self.rig.session()
        self.moves = Moves(self.rig.store, lambda owner: SMALL.layout)
        self.ahead = ReadAhead(self.moves)
        self.slots = [self._pinned(rig_prompt(SMALL, TOKENS, start)) for start in range(3)]

    def _pinned(self, blocks: Chain) -> Slot:
        self.rig.put(self.session, SMALL, blocks)
        return self.rig.pinned(self.session, blocks.hashes[0]).slot

    def send(self, numbers: list[int]) -> int:
        return self.ahead.send(self.session, numbers, self.slots, SMALL.layout.whole)

    @property
    def held(self) -> list[int]:
        """Once the loop has done what it was told."""
        self.loop.run_until_complete(asyncio.sleep(0))
        return [slot.moves for slot in self.slots]


@pytest.fixture
def within() -> Iterator[Within]:
    made = Within()
    yield made
    made.loop.close()
    made.rig.store.check()


def test_what_nobody_sent_is_let_go_when_its_connection_ends(within: Within) -> None:
    open_ = partial(within.ahead.connection, within.loop)
    with open_(within.session) as one, open_(within.session) as two:
        named = [one.number, two.number]
        assert within.send(named) == 3
        assert within.held == [1, 1, 1]
        assert within.send(named) == 0, "one has something waiting"
        assert within.held == [1, 1, 1]
        within.moves.let_go(two.take())  # sent
    assert within.held == [0, 0, 0]
    assert within.send(named) == 0, "they are gone"


def test_what_a_session_opened_is_not_sent_after_its_end(within: Within) -> None:
    """As after a freeze: it was told in time, and its thread wakes when others have the slots."""
    rig, nobody = within.rig, UcxCalls(None, None, within.session, within.rig.arena)
    with (
        connected(10.0) as (stream, peer),
        within.ahead.connection(within.loop, within.session) as orders,
    ):
        assert within.send([orders.number]) == 3
        within.session.streaming = False
        where = (within.loop, stream, within.session, rig.arena, within.moves, rig.counters)
        DataConnection(*where, nobody, orders).serve()
        assert not select.select([peer], [], [], 0.05)[0]
    assert within.held == [0, 0, 0]


def test_orders_are_taken_one_at_a_time_and_what_is_left_is_given_back(within: Within) -> None:
    one, two = (within.moves.sealed(within.slots[i : i + 1], WHOLE) for i in range(2))
    orders = Orders(1)

    def rung() -> bool:
        return bool(select.select([orders.bell], [], [], 0)[0])

    assert orders.free and not rung() and not orders.take()
    assert orders.tell(one) and rung()
    assert not orders.free and not orders.tell(two), "one waits"
    assert orders.take() is one and not rung()
    assert orders.tell(two)
    assert orders.close() is two
    assert not orders.free and not orders.tell(one)
    within.moves.let_go([*one, *two])


def test_blocks_are_shared_as_equally_as_can_be() -> None:
    assert shares(7, 3) == [3, 2, 2]
    assert shares(1, 2) == [1, 0]
