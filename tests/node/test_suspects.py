"""What the node does about blocks that their readers doubt, and what that may cost others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from kvstore.block import Miss
from kvstore.core.lifecycle import Owner, Slot, State
from kvstore.layout import SlotLayout
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place
from kvstore.node.readers import Opened
from kvstore.node.service import KVService
from kvstore.node.suspects import Suspects
from kvstore.rpc.access import Role
from kvstore.rpc.identity import CALLER, Caller
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

COUNT = 5
BLOCKS = prompt(SMALL, COUNT * TOKENS)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def slots(rig: Rig) -> list[Slot]:
    return rig.put(rig.session(), SMALL, BLOCKS)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """Those that the node hashes, in order."""
    seen, right = list[Slot](), Blocks.examine

    def counted(self: Blocks, slot: Slot, layout: SlotLayout) -> bool:
        seen.append(slot)
        return right(self, slot, layout)

    monkeypatch.setattr(Blocks, "examine", counted)
    return seen


def suspects(rig: Rig) -> Suspects:
    return Suspects(rig.blocks, lambda owner: SMALL.layout)


class OnePlace:
    """Stands for the namespaces of a node that knows one."""

    def place_of(self, owner: Owner) -> Place:
        return SMALL


def test_a_close_that_names_a_block_a_thousand_times_has_it_looked_at_once(
    rig: Rig, slots: list[Slot], examined: list[Slot]
) -> None:
    nobody: Any = None
    told: Any = (rig.store, OnePlace(), rig.sessions, rig.counters)
    service = KVService(*told, pb.SessionEvent.Opened(), nobody)
    close: Any = KVService.Close
    reader = rig.session()
    opened = rig.store.open(reader, SMALL, [BLOCKS.hashes[0]] * 1_000)
    handles = [one.handle for one in opened if isinstance(one, Opened)]

    async def work() -> None:
        CALLER.set(Caller(Role.OPEN, "", "default"))
        request = pb.CloseRequest(session=reader.token, handles=handles, suspects=handles)
        closed = await close.__wrapped__(service, request, nobody)
        assert list(closed.held) == [True] * 1_000

    asyncio.run(work())
    assert examined == slots[:1]


async def turns(work: Awaitable[None]) -> int:
    """How many turns of the loop others have until it is done."""
    task, count = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        count += 1
    await task
    return count


def test_a_slot_is_looked_at_once_however_often_it_is_named(
    rig: Rig, slots: list[Slot], examined: list[Slot]
) -> None:
    rig.flip(slots[1], SMALL)
    asyncio.run(suspects(rig).look_at(slots[:2] * 1_000))
    assert examined == slots[:2]
    found = rig.store.exists("default", SMALL, BLOCKS.hashes)
    assert found == [None, Miss.DAMAGED, *[Miss.UNLISTED] * 3]
    assert slots[1].state is State.EMPTY, "nobody holds it any more"
    rig.store.check()


def test_others_have_a_turn_after_each_slot_whoever_names_them(
    rig: Rig, slots: list[Slot], examined: list[Slot]
) -> None:
    async def work() -> None:
        looking = suspects(rig)
        both = asyncio.gather(*(looking.look_at(slots) for _ in range(4)))

        async def all_of_them() -> None:
            await both

        assert await turns(all_of_them()) >= 4 * COUNT

    asyncio.run(work())
    assert len(examined) == 4 * COUNT


def test_what_is_under_suspicion_is_held_until_it_was_looked_at(
    rig: Rig, slots: list[Slot]
) -> None:
    async def work() -> None:
        looking = asyncio.ensure_future(suspects(rig).look_at(slots[:3]))
        await asyncio.sleep(0)
        rig.store.remove([slots[2].key])
        assert slots[2].state is State.DOOMED, "its memory is nobody else's yet"
        await looking
        assert slots[2].state is State.EMPTY
        giving_up = asyncio.ensure_future(suspects(rig).look_at(slots[:2]))
        await asyncio.sleep(0)
        giving_up.cancel()  # as a call does whose caller hangs up
        await asyncio.gather(giving_up, return_exceptions=True)
        assert not slots[0].moves and not slots[1].moves

    asyncio.run(work())
    rig.store.check()
