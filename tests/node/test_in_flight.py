"""So much is on its way from one node and no more; everybody else's turn comes, or is refused."""

from __future__ import annotations

import asyncio
import random

import pytest

from kvstore.errors import Overloaded
from kvstore.limits import FETCH_PEER_BYTES_MAX, FETCH_PEER_STRIPES_MAX, MiB
from kvstore.node.in_flight import InFlight


def test_never_more_than_the_limits_are_under_way_and_everybody_gets_a_turn() -> None:
    dice, flight = random.Random(1), InFlight()
    under_way: list[int] = []
    had = 0

    async def one(size: int) -> None:
        nonlocal had
        async with flight.turn("a", "default", size, 60.0):
            under_way.append(size)
            assert len(under_way) <= FETCH_PEER_STRIPES_MAX
            assert sum(under_way) <= FETCH_PEER_BYTES_MAX or len(under_way) == 1
            assert flight.bytes_from("a") >= sum(under_way)
            for _ in range(dice.randrange(5)):
                await asyncio.sleep(0)
            under_way.remove(size)
        had += 1

    async def main() -> None:
        sizes = [dice.choice([1, 20 * MiB, 40 * MiB, 100 * MiB]) for _ in range(300)]
        await asyncio.gather(*(one(size) for size in sizes))

    asyncio.run(main())
    assert had == 300 and flight.bytes_from("a") == 0 and not flight._ways


def test_a_turn_that_does_not_come_in_time_is_refused_and_holds_up_nobody_after_it() -> None:
    async def main() -> None:
        flight, free = InFlight(), asyncio.Event()

        async def hold() -> None:
            async with flight.turn("slow", "default", FETCH_PEER_BYTES_MAX, 1.0):
                await free.wait()

        async def pass_through() -> None:
            async with flight.turn("slow", "default", MiB, 60.0):
                pass

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="on their way from node slow"):
            async with flight.turn("slow", "default", MiB, 0.01):
                raise AssertionError("the way is full")
        gone, waiting = asyncio.create_task(pass_through()), asyncio.create_task(pass_through())
        await asyncio.sleep(0.01)
        gone.cancel()
        async with flight.turn("another", "default", MiB, 0.0):
            assert not waiting.done(), "one node's line is no other's"
        free.set()
        await asyncio.wait_for(waiting, 20)
        await holder
        assert gone.cancelled() and not flight._ways

    asyncio.run(main())


def test_one_that_was_called_and_gives_up_calls_the_next() -> None:
    async def main() -> None:
        flight = InFlight()

        async def pass_through() -> str:
            async with flight.turn("a", "default", FETCH_PEER_BYTES_MAX, 60.0):
                return "had its turn"

        async with flight.turn("a", "default", FETCH_PEER_BYTES_MAX, 1.0):
            first, second = (asyncio.create_task(pass_through()) for _ in range(2))
            await asyncio.sleep(0.01)
        first.cancel()  # after it was called, and before it has run
        assert await asyncio.wait_for(second, 20) == "had its turn"

    asyncio.run(main())


def test_a_tenant_that_wants_much_has_its_turns_between_those_of_others() -> None:
    async def main() -> None:
        flight, turns = InFlight(), list[str]()

        async def pass_through(tenant: str) -> None:
            async with flight.turn("a", tenant, FETCH_PEER_BYTES_MAX, 60.0):
                turns.append(tenant)

        async with flight.turn("a", "greedy", FETCH_PEER_BYTES_MAX, 1.0):
            wanted = ("greedy", "greedy", "greedy", "other")
            going = [asyncio.create_task(pass_through(tenant)) for tenant in wanted]
            await asyncio.sleep(0)
        await asyncio.gather(*going)
        assert turns == ["greedy", "other", "greedy", "greedy"]

    asyncio.run(main())
