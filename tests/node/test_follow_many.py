"""What it costs to follow many blocks that are asked for in one call, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvstore.core.lifecycle import Slot
from kvstore.node import long_calls
from kvstore.node.blocks import Blocks
from kvstore.node.claims import Claims
from kvstore.node.follow import Asked, Follow
from kvstore.transfer.frames import Found
from tests.node.rig import SMALL, Rig
from tests.node.test_follow_hung import BLOCKS, Writer, soon
from tests.node.test_follow_slow import Written

NAMES = [bytes([i]) * 32 for i in range(BLOCKS)]


class Counted(list[bytes]):
    """Keys that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[bytes]:
        self.times += 1
        return super().__iter__()


def gone_through(blocks: int) -> int:
    """How often the keys of a call were, once all of its blocks are followed."""
    rig, keys = Rig(), Counted(NAMES[:blocks])

    async def main() -> None:
        writer: Any = Writer(hangs=False)
        given = (rig.arena, writer, *rig.following)
        follow = Follow(rig.blocks, *given)
        asked = Asked("default", SMALL, NAMES[:blocks], keys, (), "group", writer.node_id)
        assert all(await follow.local(asked)), "the test follows nothing"
        await follow.close()

    asyncio.run(main())
    return keys.times


def test_the_keys_of_a_call_are_gone_through_as_often_for_many_blocks_as_for_few() -> None:
    assert gone_through(BLOCKS) == gone_through(2)


class Turns:
    """Of the loop: how many there were, while it goes on."""

    def __init__(self) -> None:
        self.count = 0

    async def go_on(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


def by_turn(turns: list[int]) -> list[int]:
    """How much was done in each of the turns in which something was."""
    return [turns.count(one) for one in sorted(set(turns))]


class Sealing:
    """Many blocks, written and sealed where they are, are followed by a node that looks up few in
    one go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.writer, self.turns = Rig(slabs=4), Written(hangs=False), Turns()
        self.writer.found = Found.SEALED
        others: Any = self.writer
        self.follow = Follow(self.rig.blocks, self.rig.arena, others, *self.rig.following)
        self.made, self.sealed = list[int](), list[int]()  # turns in which one was
        self.calls = 0  # that sealed them
        monkeypatch.setattr(long_calls, "RPC_PART_KEYS", 5)
        for_hand_off, seal_all = Claims.for_hand_off, Blocks.seal_all

        def made(claims: Claims, slot: Slot) -> bytes:
            self.made.append(self.turns.count)
            return for_hand_off(claims, slot)

        def sealed(blocks: Blocks, slots: Sequence[Slot], layout: Any) -> list[bool]:
            self.sealed += [self.turns.count] * len(slots)
            self.calls += 1
            return seal_all(blocks, slots, layout)

        monkeypatch.setattr(Claims, "for_hand_off", made)
        monkeypatch.setattr(Blocks, "seal_all", sealed)

    async def opened(self) -> None:
        asked = Asked("default", SMALL, NAMES, NAMES, (), "group", self.writer.node_id)
        assert all(await self.follow.local(asked)), "the test follows nothing"


def test_the_loop_has_turns_for_others_while_many_blocks_are_named_and_when_all_are_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        sealing = Sealing(monkeypatch)
        going_on = asyncio.create_task(sealing.turns.go_on())
        await sealing.opened()
        await soon()
        going_on.cancel()
        assert by_turn(sealing.made) == by_turn(sealing.sealed) == [5, 5, 2]
        assert sealing.calls == 3, "what is sealed in one turn is sealed in one go"
        assert not sealing.rig.blocks.arriving
        sealing.rig.store.check()

    asyncio.run(main())


def test_what_is_cancelled_while_some_of_its_blocks_are_sealed_lets_go_of_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        sealing = Sealing(monkeypatch)
        opening = asyncio.create_task(sealing.opened())
        while not sealing.calls:
            await asyncio.sleep(0)
        await sealing.follow.close()
        assert len(sealing.sealed) == 5 and not sealing.rig.blocks.arriving
        opening.cancel()
        blocks = sealing.rig.blocks
        slots = [blocks.index.peek(key) for key in blocks.most_recent(BLOCKS)]
        assert slots and all(slot is not None and slot.moves == 0 for slot in slots)
        sealing.rig.store.check()

    asyncio.run(main())
