"""A call that finds the pool full waits in line for what ends a hold, within its deadline, and no
line of one tenant's keeps another out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
import pytest

from kvstore.core.shares import Share
from kvstore.errors import Overloaded, QuotaExceeded
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import ROOM_SECONDS_MAX, ROOM_WAITERS_MAX
from kvstore.node.sessions import Session
from kvstore.node.store import Reserved
from kvstore.node.waiting import MARGIN_SECONDS, Waiting, room_patience
from kvstore.node.wanted import Need
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, Rig, prompt, triples
from tests.nodes import CALL_SECONDS, SPEC, Caller, Refusal, eventually, pairs, payload, put_parts
from tests.nodes import prompt as chain_of

SLOTS = 16  # of the rig's four slabs
OF_ONE = ROOM_WAITERS_MAX * 3 // 4  # that wait, of one tenant
ROOM = 16 * 2**20 // SlotLayout.of(SPEC, 0).slot_bytes  # of the node's DRAM


class Full:
    """A pool in which every block is pinned, and the line before it."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.waiting = Waiting(self.rig.blocks)
        self.session = self.rig.session()
        blocks = prompt(SMALL, SLOTS * 4)
        self.rig.put(self.session, SMALL, blocks)
        self.pins = [self.rig.pinned(self.session, one).handle for one in blocks.hashes]
        self.order: list[int] = []
        self.attempts = 0

    def ask(
        self, number: int, blocks: int = 1, seconds: float = 5.0, of: Session | None = None
    ) -> asyncio.Task[Any]:
        """A call for the first blocks of a prompt of its own."""
        session = of or self.session
        some = triples(prompt(SMALL, blocks * 4, 1_000 * (number + 1)))

        def attempt() -> Any:
            self.attempts += 1
            return self.rig.store.reserve(session, SMALL, some, SMALL.layout.whole)

        async def call() -> None:
            await self.waiting.for_room(session.tenant, attempt, self.need(some), seconds)
            self.order.append(number)

        return asyncio.create_task(call())

    def need(
        self, some: Sequence[Any], fragment: Fragment = SMALL.layout.whole, group: str = ""
    ) -> Callable[[], Need]:
        """Of a Reserve of these triples, whichever tenant's."""
        return partial(self.rig.store.wants.need, "default", SMALL, some, fragment, group)

    def unpin(self, count: int) -> None:
        going, self.pins = self.pins[-count:], self.pins[:-count]
        self.rig.store.readers.unpin(self.session, going)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(test: Callable[[Full], Awaitable[None]]) -> None:
    full = Full()
    asyncio.run(test(full))  # type: ignore[arg-type]
    full.rig.store.check()


def test_the_waiting_are_served_as_they_came_and_none_overtakes_them() -> None:
    async def test(full: Full) -> None:
        tasks = [full.ask(0, blocks=3), full.ask(1), full.ask(2)]
        await turns()
        for _ in range(2):  # room for the second and third, which the first is to have
            full.unpin(1)
            await turns()
        tasks.append(full.ask(3))
        await turns()
        assert full.order == []
        full.unpin(4)
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        assert full.order == [0, 1, 2, 3]

    run(test)


def test_nobody_looks_for_room_while_no_hold_ends() -> None:
    async def test(full: Full) -> None:
        task = full.ask(0, seconds=0.2)
        with pytest.raises(Overloaded):
            await task
        assert full.attempts == 2, "one on arrival, one at the head of the line"

    run(test)


def test_the_refusal_names_what_was_wanted_and_how_long_it_was_waited_for() -> None:
    async def test(full: Full) -> None:
        with pytest.raises(
            Overloaded, match=r"no room for 2 blocks .* none came in 0\.05 s"
        ) as one:
            await full.ask(0, blocks=2, seconds=0.05)
        assert one.value.retry_after_ms > 0

    run(test)


def test_a_call_whose_time_is_over_or_whose_caller_left_makes_room_in_the_line() -> None:
    async def test(full: Full) -> None:
        first, second, third = full.ask(0, seconds=0.05), full.ask(1), full.ask(2)
        await turns()
        second.cancel()
        with pytest.raises(Overloaded):
            await first
        full.unpin(1)
        await asyncio.wait_for(third, 5)
        await asyncio.wait_for(full.ask(3, blocks=0), 5)  # the line is empty again
        assert full.order == [2, 3]

    run(test)


def test_only_so_many_wait() -> None:
    async def test(full: Full) -> None:
        tasks = [full.ask(number) for number in range(OF_ONE)]
        await turns()
        with pytest.raises(Overloaded, match="other calls wait"):
            await full.ask(99)
        full.unpin(OF_ONE)
        await asyncio.wait_for(asyncio.gather(*tasks), 5)

    run(test)


def test_a_tenant_that_waits_at_its_quota_keeps_nobody_from_room_that_there_is() -> None:
    async def test(full: Full) -> None:
        full.unpin(8)
        full.rig.store.remove([slot.key for slot in full.rig.blocks.index if not slot.held])
        has = (SLOTS - 8) * SMALL.layout.slot_bytes
        full.rig.blocks.shares.granted = {"default": Share(bytes_max=has)}
        line = [full.ask(number, seconds=0.1) for number in range(OF_ONE)]
        await turns()
        await full.ask(50, blocks=4, of=full.rig.session("other"))
        assert full.order == [50]
        first, *others = await asyncio.gather(*line, return_exceptions=True)
        assert isinstance(first, QuotaExceeded), "it hears what kept it out"
        assert all(isinstance(one, Overloaded) for one in others)

    run(test)


def test_of_two_tenants_that_wait_the_one_for_whom_there_is_room_goes_on() -> None:
    async def test(full: Full) -> None:
        other = full.rig.session("other")
        first, second = full.ask(0, blocks=2), full.ask(1, of=other)
        await turns()
        full.unpin(1)
        await asyncio.wait_for(second, 5)
        assert full.order == [1] and not first.done()
        full.unpin(8)  # of what is left no tenant holds all
        await asyncio.wait_for(first, 5)

    run(test)


@pytest.mark.parametrize("how", ["seal", "abort", "end of session"])
def test_what_ends_a_write_window_wakes_the_line(how: str) -> None:
    async def test(full: Full) -> None:
        full.unpin(1)
        writer = full.rig.session()
        window = full.rig.reserve(writer, SMALL, prompt(SMALL, 4, 77))[0]
        task = full.ask(0)
        await turns()
        assert not task.done()
        if how == "seal":
            full.rig.write(window.slot, SMALL)
            full.rig.store.seal(writer, [window.handle])
        elif how == "abort":
            full.rig.store.abort(writer, [window.handle])
        else:
            full.rig.end(writer)
        await asyncio.wait_for(task, 5)

    run(test)


class Call:
    def __init__(self, left: float | None) -> None:
        self.time_remaining = lambda: left


@pytest.mark.parametrize(("others", "fits"), [((), SLOTS), (("other",), SLOTS * 3 // 4)])
def test_nobody_waits_for_more_than_it_could_ever_have(others: tuple[str, ...], fits: int) -> None:
    async def test(full: Full) -> None:
        for name in others:
            full.rig.store.keys(name, SMALL, [])
        for line in (0, 1):
            with pytest.raises(Overloaded) as refused:
                await full.ask(10, blocks=fits + 1, seconds=0.5)
            assert "none came" not in str(refused.value) and "other calls" not in str(refused.value)
            if not line:
                first = full.ask(0, blocks=fits)
                await turns()
        full.unpin(SLOTS)
        await asyncio.wait_for(first, 5)

    run(test)


def test_what_is_here_already_needs_none_of_the_room_that_a_call_waits_for() -> None:
    async def test(full: Full) -> None:
        full.rig.store.keys("other", SMALL, [])
        full.unpin(SLOTS - 10)
        # 3 new ones behind 12 that are there: more than a tenant may hold beside another, and yet
        # no more than there is room for.
        some = triples(prompt(SMALL, SLOTS * 4))[:12] + triples(prompt(SMALL, 3 * 4, 7_000))
        session, store = full.session, full.rig.store

        def attempt() -> Any:
            return store.reserve(session, SMALL, some, SMALL.layout.whole)

        waiting = full.waiting.for_room("default", attempt, full.need(some), 5.0)
        task = asyncio.create_task(waiting)
        await turns()
        assert not task.done(), "it could have them"
        task.cancel()

    run(test)


@pytest.mark.parametrize("quota", [None, SLOTS - 1])
def test_what_is_named_makes_no_room_for_the_rest_and_nobody_waits_for_it(
    quota: int | None,
) -> None:
    """The start of a prompt is there and by nobody held, and with its end it is too long. What is
    before that part of it which is named stays, too."""

    async def test(full: Full) -> None:
        full.unpin(SLOTS)
        most = None if quota is None else quota * SMALL.layout.slot_bytes
        full.rig.blocks.shares.granted = {"default": Share(bytes_max=most)}
        here, new = triples(prompt(SMALL, SLOTS * 4)), triples(prompt(SMALL, 3 * 4, 7_000))
        fits = SLOTS if quota is None else quota
        assert full.need(here[: fits - 3] + new)() is Need.ROOM
        assert full.need(here[: fits - 2] + new)() is Need.TOO_MUCH
        assert full.need([here[fits - 4], *new])() is Need.ROOM
        assert full.need([here[fits - 3], *new])() is Need.TOO_MUCH

    run(test)


def test_what_blocks_come_after_makes_no_room_for_them() -> None:
    async def test(full: Full) -> None:
        full.unpin(SLOTS)
        rig, whole = full.rig, SMALL.layout.whole
        here, new = prompt(SMALL, 12 * 4, 7_000), prompt(SMALL, 5 * 4, 8_000)
        told = (full.session, SMALL, [(one, b"", 4) for one in here.hashes], whole)
        windows = [one for one in rig.store.reserve(*told, after=b"") if one is not None]
        for one in windows:
            rig.write(one.slot, SMALL, whole)
        rig.store.seal(full.session, [one.handle for one in windows])

        def need(blocks: int) -> Need:
            some = [(one, b"", 4) for one in new.hashes[:blocks]]
            return rig.store.wants.need("default", SMALL, some, whole, after=here.hashes[-1])

        assert (need(4), need(5)) == (Need.ROOM, Need.TOO_MUCH)

    run(test)


@pytest.mark.parametrize("in_line", [False, True])
def test_a_partner_passes_the_line_for_what_others_of_its_group_are_filling(in_line: bool) -> None:
    """Rank 0 has sealed its half of a prompt, and waits for room for the next: its tenant holds too
    much, until rank 1 has sealed its own half. Rank 1 may have come before rank 0 had its room."""
    halves, group = (Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)), "tp2"

    async def test(full: Full) -> None:
        rig, ranks = full.rig, (full.session, full.rig.session())
        if not in_line:
            full.unpin(SLOTS)
        rig.store.keys("other", SMALL, [])
        order: list[tuple[int, int]] = []

        async def reserve(rank: int, start: int) -> list[Reserved]:
            some, session = triples(prompt(SMALL, 8 * 4, start)), ranks[rank]
            told = (halves[rank], group)

            def attempt() -> Any:
                return rig.store.reserve(session, SMALL, some, *told)

            need = full.need(some, *told)
            found = await full.waiting.for_room("default", attempt, need, 5.0)
            order.append((rank, start))
            return found

        async def sealed(rank: int, start: int) -> None:
            windows = await reserve(rank, start)
            for one in windows:
                rig.write(one.slot, SMALL, halves[rank])
            rig.store.seal(ranks[rank], [one.handle for one in windows])

        calls = sealed(0, 1_000), reserve(0, 2_000), sealed(1, 1_000)
        tasks = []
        for call in calls:
            tasks.append(asyncio.create_task(call))
            await turns()
        if in_line:
            assert not any(one.done() for one in tasks)
            full.unpin(SLOTS)
        await asyncio.wait_for(asyncio.gather(*tasks), 2)
        assert order == [(0, 1_000), (1, 1_000), (0, 2_000)]

    run(test)


def test_patience_ends_before_the_deadline() -> None:
    assert room_patience(Call(0.3)) == 0.3 - MARGIN_SECONDS
    assert room_patience(Call(2.0)) == 1.6
    assert room_patience(Call(None)) == ROOM_SECONDS_MAX
    assert room_patience(Call(3_600.0)) == ROOM_SECONDS_MAX
    assert room_patience(Call(0.01)) < 0


@pytest.fixture
def pinned(caller: Caller) -> list[bytes]:
    """Every block of a full pool is pinned; the handles."""
    handles: list[bytes] = []
    for number in range(0, ROOM, 512):
        blocks = chain_of(number + 1, 512)
        caller.put(blocks)
        handles += caller.ask("Pin", **caller.about(blocks), pin_ms=600_000).handles
    assert caller.stats().slabs_empty == 0
    return handles


def reserve(caller: Caller, number: int, seconds: float | None) -> Any:
    request = pb.ReserveRequest(session=caller.session, **caller.about(chain_of(number)))
    return caller.kv.Reserve(request, timeout=seconds)


def put(caller: Caller, number: int, seconds: float | None) -> Any:
    blocks = chain_of(number)
    payloads = [payload(h, SPEC, n) for h, n in pairs(blocks)]
    return caller.kv.Put(put_parts(blocks, payloads), timeout=seconds)


@pytest.mark.parametrize("call", [reserve, put])
def test_a_call_into_a_pool_of_pinned_blocks_fails_before_its_deadline_or_gets_their_room(
    caller: Caller, pinned: list[bytes], call: Callable[..., Any]
) -> None:
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        call(caller, 9_999, 6.0)
    took = time.monotonic() - began
    found = Refusal(caught.value)
    assert (found.code, found.kind) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Overloaded"), found
    assert found.retry_after_ms > 0 and "pinned" in found.text
    assert took > 4.0, "it is waited for as long as the deadline lets"
    other = Caller(caller.address)  # whoever waits does not keep others from ending their holds
    later = threading.Timer(0.1, lambda: caller.ask("Unpin", handles=pinned[-1:]))
    later.start()
    call(other, 9_998, CALL_SECONDS)
    later.join()
    other.close()


def test_those_who_wait_leave_room_for_the_calls_that_end_holds(
    caller: Caller, pinned: list[bytes]
) -> None:
    """More calls wait for room than a node serves at once; an Unpin gets in, and room with it."""
    calls = []
    for number in range(40):
        request = pb.ReserveRequest(
            session=caller.session, **caller.about(chain_of(7_000 + number))
        )
        calls.append(caller.kv.Reserve.future(request, timeout=10.0))
    eventually(lambda: sum(one.done() for one in calls) == len(calls) - OF_ONE)
    caller.ask("Unpin", handles=pinned[-OF_ONE:])
    eventually(lambda: all(one.done() for one in calls))
    kinds = [Refusal(one.exception()).kind if one.exception() else "granted" for one in calls]
    assert kinds.count("granted") == OF_ONE
    assert set(kinds) == {"granted", "Overloaded"}
