"""Turns and places as calls take them: whatever ends a call, its place comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from kvstore.errors import Overloaded
from kvstore.limits import (
    RPC_BULK_MAX,
    RPC_BURST_MAX,
    RPC_KEYS_MAX,
    RPC_NAMED_A_CALL,
    RPC_OPEN_STREAMS_MAX,
    RPC_OWED_MAX,
    RPC_STREAMS_MAX,
    RPC_UNARY_MAX,
    RPC_WAITING_MAX,
)
from kvstore.rpc.access import Role
from kvstore.rpc.admission import Admission
from kvstore.rpc.identity import Caller
from kvstore.wire.v1 import kv_pb2 as pb

ALONE = 3 * RPC_UNARY_MAX // 4  # turns of a tenant that is alone


class Calls:
    """Unary calls that hold their turn until they are let go or cancelled."""

    def __init__(self) -> None:
        self.admission = Admission(["/bulk"])
        self.running: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def begin(self, who: str, name: str) -> asyncio.Task[None]:
        self._ends[name] = asyncio.Event()

        async def call() -> None:
            task = asyncio.current_task()
            assert task is not None
            await self.admission.take_turn(who, task, task.cancel)
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

        self._tasks[name] = asyncio.create_task(call())
        return self._tasks[name]

    def end(self, name: str) -> None:
        self._ends[name].set()

    def all_places_are_free(self) -> bool:
        parts = self.admission
        kinds = (parts._turns.places, parts._seats, parts._bulk, parts._open, parts._streams)
        for places in kinds:
            places.check()
        turns, seats = parts._turns.places.free, parts._seats.free
        return (turns, seats, len(parts._turns)) == (RPC_UNARY_MAX, RPC_WAITING_MAX, 0)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_caller_that_hangs_up_in_the_moment_of_its_turn_takes_no_place_along() -> None:
    async def test() -> None:
        calls = Calls()
        for i in range(ALONE):
            calls.begin("a", f"r{i}")
        waiting = calls.begin("a", "late")
        next_one = calls.begin("a", "next")
        await settle()
        assert len(calls.running) == ALONE
        calls.end("r0")
        waiting.cancel()  # before the turn of r0 comes back
        await settle()
        assert "next" in calls.running and waiting.cancelled()
        next_two = calls.begin("a", "two")
        await settle()
        calls.end("r1")
        await settle()
        next_two.cancel()  # with its turn in its hand
        next_one.cancel()
        for i in range(2, ALONE):
            calls.end(f"r{i}")
        await settle()
        assert calls.all_places_are_free()

    run(test())


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_and_goes_no_place_is_lost(seed: int) -> None:
    async def test() -> None:
        dice, calls = random.Random(seed), Calls()
        open_calls: dict[str, asyncio.Task[None]] = {}
        for number in range(600):
            if dice.random() < 0.6 or not open_calls:
                name = f"c{number}"
                open_calls[name] = calls.begin(dice.choice("aaab"), name)
            else:
                name = dice.choice(list(open_calls))
                task = open_calls.pop(name)
                if dice.random() < 0.5:
                    task.cancel()
                else:
                    calls.end(name)
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        for name, task in open_calls.items():
            calls.end(name)
            if dice.random() < 0.3:
                task.cancel()
        await asyncio.gather(*open_calls.values(), return_exceptions=True)
        await settle()
        assert calls.all_places_are_free()

    run(test())


def test_another_tenant_has_its_turn_before_the_flood_that_came_first() -> None:
    async def test() -> None:
        calls = Calls()
        for i in range(100):
            calls.begin("flood", f"f{i}")
        await settle()
        for i in range(4):
            calls.begin("quiet", f"q{i}")
        await settle()
        assert {f"q{i}" for i in range(3)} <= set(calls.running)
        for i in range(ALONE + 1):
            calls.end(f"f{i}")
        await settle()
        assert "q3" in calls.running and len(calls.running) >= ALONE
        for name in [f"f{i}" for i in range(100)] + [f"q{i}" for i in range(4)]:
            calls.end(name)
        await settle()

    run(test())


def test_who_waits_in_too_great_numbers_is_refused() -> None:
    async def test() -> None:
        calls = Calls()
        most = ALONE + 3 * RPC_WAITING_MAX // 4
        tasks = [calls.begin("a", f"c{i}") for i in range(most + 5)]
        await settle()
        refused = [one for one in tasks if one.done()]
        assert len(refused) == 5
        for one in refused:
            error = one.exception()
            assert isinstance(error, Overloaded) and error.retry_after_ms > 0
        for i in range(most + 5):
            calls.end(f"c{i}")
        await asyncio.gather(*tasks, return_exceptions=True)
        await settle()
        assert calls.all_places_are_free()

    run(test())


@pytest.mark.parametrize(
    "method, total",
    [("/bulk", RPC_BULK_MAX), ("/open", RPC_OPEN_STREAMS_MAX), ("/else", RPC_STREAMS_MAX)],
)
def test_streams_have_places_of_their_own_kind(method: str, total: int) -> None:
    async def test() -> None:
        admission, end = Admission(["/bulk"], open_=["/open"]), asyncio.Event()

        async def stream(who: str) -> None:
            task = asyncio.current_task()
            assert task is not None
            admission.take_stream(method, who, task)
            await end.wait()

        flood = [asyncio.create_task(stream("a")) for _ in range(total)]
        await settle()
        quiet = asyncio.create_task(stream("b"))
        await settle()
        refused = [one for one in flood if one.done()]
        assert len(refused) == total // 4 and not quiet.done()
        assert all(isinstance(one.exception(), Overloaded) for one in refused)
        end.set()
        await asyncio.gather(*flood, quiet, return_exceptions=True)
        await settle()
        assert admission._bulk.free == RPC_BULK_MAX and admission._streams.free == RPC_STREAMS_MAX
        assert admission._open.free == RPC_OPEN_STREAMS_MAX

    run(test())


MANY = int(RPC_BURST_MAX) // 2
BIG = pb.OpenRequest(hashes=[bytes(32)] * RPC_KEYS_MAX)


KV = "/moonpool.v1.KV/"


def passed(
    admission: Admission, caller: Caller, message: Any, most: int, method: str = "Open"
) -> int:
    """How many such calls get in at once beside another tenant's, up to so many."""
    admission.count("another", f"{KV}Match")
    for number in range(most):
        try:
            admission.count(caller.who, f"{KV}{method}")
            admission.count_named(caller, f"{KV}{method}", message)
        except Overloaded as error:
            assert error.retry_after_ms > 0
            return number
    return most


@pytest.mark.parametrize("role", [Role.CLIENT, Role.OPEN])
def test_calls_that_name_many_blocks_are_refused_long_before_as_many_small_ones(role: Role) -> None:
    async def test() -> None:
        caller, price = Caller(role, "engine", "a"), RPC_KEYS_MAX // RPC_NAMED_A_CALL
        assert 1 <= passed(Admission([]), caller, BIG, MANY) <= 2 * RPC_BURST_MAX / price
        assert passed(Admission([]), caller, pb.OpenRequest(), MANY) == MANY

    run(test())


def test_a_node_that_acts_for_its_callers_is_counted_by_calls_alone() -> None:
    async def test() -> None:
        peer = Caller(Role.NODE, "b", "a")
        assert passed(Admission([]), peer, BIG, MANY) == MANY

    run(test())


OF_HOLDS = ["Seal", "Abort", "Close", "Unpin", "Renew"]


@pytest.mark.parametrize("method", OF_HOLDS)
def test_what_ends_a_hold_is_let_in_though_its_tenant_owes_for_what_it_looked_up(
    method: str,
) -> None:
    async def test() -> None:
        admission, caller = Admission([]), Caller(Role.CLIENT, "engine", "a")
        ends = getattr(pb, f"{method}Request")(handles=[bytes(32)] * RPC_KEYS_MAX)
        passed(admission, caller, BIG, MANY)
        assert passed(admission, caller, pb.OpenRequest(), MANY) == 0
        assert passed(admission, caller, ends, 1, method) == 1

    run(test())


@pytest.mark.parametrize("method", OF_HOLDS)
def test_a_flood_of_what_ends_holds_is_refused_once_its_tenant_owes_too_much(method: str) -> None:
    async def test() -> None:
        admission, caller = Admission([]), Caller(Role.CLIENT, "engine", "a")
        ends = getattr(pb, f"{method}Request")(handles=[bytes(32)])
        most = int(RPC_BURST_MAX + RPC_OWED_MAX)
        assert most <= passed(admission, caller, ends, 2 * most, method) < 2 * most
        assert passed(admission, Caller(Role.CLIENT, "engine", "b"), BIG, 1) == 1, "only its own"

    run(test())


def test_a_tenant_alone_owes_nothing_for_what_ends_its_holds() -> None:
    async def test() -> None:
        admission, caller, owed = (
            Admission([]),
            Caller(Role.CLIENT, "engine", "a"),
            int(RPC_OWED_MAX),
        )
        for _ in range(2 * int(RPC_BURST_MAX) + owed):
            admission.count("a", f"{KV}Close")
        assert passed(admission, caller, pb.CloseRequest(), owed, "Close") == owed

    run(test())


def test_a_method_of_another_service_is_not_taken_for_what_ends_a_hold() -> None:
    async def test() -> None:
        admission, caller = Admission([]), Caller(Role.CLIENT, "engine", "a")
        passed(admission, caller, BIG, MANY)
        with pytest.raises(Overloaded):
            admission.count("a", "/moonpool.v1.Conductor/Close")

    run(test())
