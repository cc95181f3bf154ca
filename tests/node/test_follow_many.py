"""What it costs to follow many blocks that are asked for in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from kvstore.node.follow import Asked, Follow
from tests.node.rig import SMALL, Rig
from tests.node.test_follow_hung import BLOCKS, Writer

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
