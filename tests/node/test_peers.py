"""Links to a real node: one for all who ask, made anew when it is another start of it, ended when
nobody uses it; and a peer that fails rests."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from kvstore.clock import SETTLE_TURNS, SimClock
from kvstore.config import OPEN
from kvstore.errors import Crowded, Denied, SessionEnded, Unavailable
from kvstore.limits import DATA_CONNECTIONS_MAX, DATA_SESSION_CONNECTIONS_MAX
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.records import NodeRecord
from kvstore.metadata.roster import Roster
from kvstore.node import peers
from kvstore.node.contacts import Contacts
from kvstore.node.handles import node_tag
from kvstore.node.link import Link, _beside
from kvstore.node.peers import IDLE_SECONDS, REST_SECONDS_MAX, REST_SECONDS_MIN, Peers, Rest
from kvstore.telemetry import NODE, Telemetry
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import Caller, NodeProcess, eventually, running
from tests.transfer.raw import Raw

SECONDS = 20.0


@pytest.fixture(scope="module")
def peer() -> Iterator[NodeProcess]:
    with running() as started:
        yield started


class Desk:
    """The peers of a node `me`, of which there is one, by a clock that a test moves."""

    def __init__(
        self, node: NodeProcess, threads: ThreadPoolExecutor, greeters: ThreadPoolExecutor
    ) -> None:
        self.clock = SimClock(1_000.0)
        self.metadata = EmbeddedMetadata(node.directory / "metadata.db")
        self.roster = Roster(self.metadata, NodeRecord, self.clock, random.Random(1))
        self.counters = Telemetry(NODE)
        self.contacts = Contacts(self.clock, self.counters)
        known = (self.roster, self.clock, threads, greeters, OPEN)
        self.threads, self.peers = threads, Peers("me", *known, self.contacts)
        self.sessions: Callable[[], int] = lambda: _sessions(node.caller())

    @property
    def name(self) -> str:
        return next(iter(self.roster)).node_id

    async def put(self, **changes: Any) -> None:
        record = replace(next(iter(self.roster)), **changes)
        await self.metadata.put(record.key(), record.encode())
        await self.roster.load()


def _sessions(caller: Caller) -> int:
    try:
        return int(caller.stats().sessions) - 1
    finally:
        caller.close()


def with_desk(node: NodeProcess, test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    """Nobody is late at it because this machine is busy."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Desk]:
        with ThreadPoolExecutor(4) as threads, ThreadPoolExecutor(1) as greeters:
            desk = Desk(node, threads, greeters)
            await desk.roster.load()
            try:
                yield desk
            finally:
                await desk.contacts.close()
                await desk.peers.close()
                await desk.metadata.close()

    async def main() -> None:
        async with opened() as desk:
            await test(desk)

    with pytest.MonkeyPatch.context() as patient:
        patient.setattr("kvstore.node.peers.BEGIN_SECONDS", SECONDS)
        patient.setattr("kvstore.node.link.STALL_SECONDS", SECONDS)
        asyncio.run(main())
    eventually(lambda: _sessions(node.caller()) == 0)


def test_many_who_ask_at_once_share_one_session_and_tenants_are_apart(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        links = await asyncio.gather(*(desk.peers.link(desk.name, "default") for _ in range(10)))
        link = links[0]
        assert all(one is link for one in links) and desk.sessions() == 1
        with pytest.raises(Denied):
            await desk.peers.link(desk.name, "another tenant")
        assert desk.peers.may_ask(desk.name), "what one tenant is refused harms no other"
        with pytest.raises(SessionEnded):
            await link.call(link.kv.Close, pb.CloseRequest(session=b"?", handles=[b"h"]), SECONDS)
        assert link.alive, "it was refused, and not by the network"

    with_desk(peer, test)


def test_who_is_well_is_met_while_all_threads_wait_for_those_that_hang(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        loop, hung = asyncio.get_running_loop(), threading.Event()
        waiting = [loop.run_in_executor(desk.threads, hung.wait) for _ in range(8)]
        try:
            link = await desk.peers.link(desk.name, "default")
            assert link.alive and desk.peers.may_ask(desk.name)
        finally:
            hung.set()
        await asyncio.gather(*waiting)

    with_desk(peer, test)


def test_two_links_are_never_made_at_once_though_it_is_tidied_up_between_two_callers(
    peer: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(desk: Desk) -> None:
        gates, making, most = [asyncio.Event(), asyncio.Event()], 0, 0
        ends = iter(gates)

        async def refused(*_: Any) -> None:
            nonlocal making, most
            making, most = making + 1, max(most, making + 1)
            await next(ends, gates[-1]).wait()
            making -= 1
            raise Denied("nobody is let in")

        async def ask() -> None:
            with pytest.raises(Denied):
                await desk.peers.link(desk.name, "default")

        monkeypatch.setattr(desk.peers, "_begun", refused)
        keeping = asyncio.create_task(desk.peers.keep())
        first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
        await asyncio.sleep(0)  # the first makes a link, and the second waits for it
        time_goes_by = asyncio.create_task(desk.clock.advance(IDLE_SECONDS / 4))
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        gates[0].set()  # the first gives up just before links are tidied up
        await asyncio.gather(first, time_goes_by)
        third = asyncio.create_task(ask())
        await asyncio.sleep(0)
        gates[1].set()
        await asyncio.gather(second, third)
        assert most == 1
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    with_desk(peer, test)


def test_another_start_or_another_address_is_another_link(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        first = await desk.peers.link(desk.name, "default")
        assert await desk.peers.link(desk.name, "default") is first
        await desk.put(epoch=99)
        second = await desk.peers.link(desk.name, "default")
        assert second is not first and not first.alive
        await desk.put(address="127.0.0.2:1")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.2:1 cannot be used"):
            await desk.peers.link(desk.name, "default")
        await desk.put(address=peer.address)

    with_desk(peer, test)


def test_a_link_that_is_slow_to_end_holds_up_no_other_and_there_is_one_such_at_a_time(
    peer: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, may_end, ending = Link.close, asyncio.Event(), list[Link]()

    async def slow(link: Link) -> None:
        ending.append(link)
        await may_end.wait()
        await close(link)

    async def test(desk: Desk) -> None:
        first = await desk.peers.link(desk.name, "default")
        monkeypatch.setattr(Link, "close", slow)
        await desk.put(epoch=98)
        try:
            async with asyncio.timeout(SECONDS):
                second = await desk.peers.link(desk.name, "default")
            assert second.alive and ending == [first]
            await desk.put(epoch=99)
            third = asyncio.create_task(desk.peers.link(desk.name, "default"))
            for _ in range(SETTLE_TURNS):
                await asyncio.sleep(0)
            assert not third.done() and ending == [first]
        finally:
            may_end.set()
        assert (await third).alive and ending == [first, second]

    with_desk(peer, test)


def test_links_that_are_slow_to_end_end_side_by_side_once_unused_and_with_the_node(
    peer: NodeProcess,
) -> None:
    together: asyncio.Barrier

    class Slow:
        """Stands for a link that nobody uses any more, and that ends once others do too."""

        alive, used = False, 0.0

        async def close(self) -> None:
            with suppress(asyncio.BrokenBarrierError):  # the test is over
                await together.wait()

    async def test(desk: Desk) -> None:
        nonlocal together
        together, peers = asyncio.Barrier(3), desk.peers
        keeping = asyncio.create_task(peers.keep())
        try:
            async with asyncio.timeout(SECONDS):
                peers._links |= {("a node", str(i)): cast(Link, Slow()) for i in range(2)}
                await desk.clock.advance(IDLE_SECONDS)
                await together.wait()
                peers._links |= {("a node", str(i)): cast(Link, Slow()) for i in range(3)}
                await peers.close()
        finally:
            keeping.cancel()
            await together.abort()
        assert not peers._links

    with_desk(peer, test)


def test_a_node_that_is_another_than_its_record_says_is_not_used(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        stranger = replace(next(iter(desk.roster)), node_id="stranger")
        await desk.metadata.put(stranger.key(), stranger.encode())
        await desk.roster.load()
        with pytest.raises(Unavailable, match="not stranger"):
            await desk.peers.link("stranger", "default")
        assert not desk.peers.may_ask("stranger"), "it rests"
        await desk.metadata.delete(stranger.key())

    with_desk(peer, test)


def test_one_that_fails_rests_ever_longer_and_is_asked_again(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        name, peers = desk.name, desk.peers
        for rest in (REST_SECONDS_MIN, 2 * REST_SECONDS_MIN, 4 * REST_SECONDS_MIN):
            peers.failed(name)
            peers.failed(name)  # told twice of one failure
            assert not peers.may_ask(name) and not peers.known()
            with pytest.raises(Unavailable, match="failed a moment ago"):
                await peers.link(name, "default")
            await desk.clock.advance(rest - 0.01)
            assert not peers.may_ask(name)
            await desk.clock.advance(0.02)
            assert peers.may_ask(name)
        assert await peers.link(name, "default")

    with_desk(peer, test)


def test_a_node_that_has_no_connection_left_for_one_tenant_is_asked_for_others(
    peer: NodeProcess,
) -> None:
    sessions = DATA_CONNECTIONS_MAX * 3 // 4 // DATA_SESSION_CONNECTIONS_MAX

    async def test(desk: Desk) -> None:
        with ExitStack() as crowd:
            for _ in range(sessions):
                one = peer.caller()
                crowd.callback(one.close)
                for _ in range(DATA_SESSION_CONNECTIONS_MAX):
                    crowd.enter_context(Raw.of(one))
            for _ in range(2):
                with pytest.raises(Crowded, match=r"left for this tenant$"):
                    await desk.peers.link(desk.name, "default")
                with pytest.raises(Crowded, match="left for this tenant a moment ago"):
                    await desk.peers.link(desk.name, "default")
                assert desk.peers.may_ask(desk.name), "it serves everybody else"
                await desk.clock.advance(REST_SECONDS_MAX)
        assert await desk.peers.link(desk.name, "default")

    with_desk(peer, test)


def test_rests_are_bounded_and_an_old_failure_counts_for_nothing() -> None:
    rest, now = None, 0.0
    for _ in range(10):
        rest = Rest.after(rest, now)
        now = rest.until
    assert rest is not None and rest.seconds == REST_SECONDS_MAX
    assert Rest.after(rest, now + REST_SECONDS_MAX + 1).seconds == REST_SECONDS_MIN


def test_a_link_that_nobody_uses_is_ended_and_one_that_is_used_stays(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        keeping = asyncio.create_task(desk.peers.keep())
        link = await desk.peers.link(desk.name, "default")
        for _ in range(3):  # used by what began long ago, and not asked for anew
            await desk.clock.advance(IDLE_SECONDS * 0.6)
            await link.in_thread(lambda: None)
            await desk.clock.advance(0.1)
        assert link.alive
        await desk.clock.advance(IDLE_SECONDS * 1.5)
        async with asyncio.timeout(20):
            while link.alive:
                await asyncio.sleep(0.01)
        keeping.cancel()

    with_desk(peer, test)


def test_handles_of_nodes_that_are_gone_are_known_still(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        (record,) = desk.roster
        name = record.node_id
        desk.peers.seen(record)
        desk.peers.failed(name)
        assert desk.peers.by_tag(node_tag(name)) == name, "it rests"
        desk.roster._records.clear()
        assert desk.peers.by_tag(node_tag(name)) == name, "it is gone"
        assert desk.peers.by_tag(node_tag("never seen")) is None
        assert desk.peers.by_tag(node_tag("me")) is None

    with_desk(peer, test)


def test_of_many_that_came_and_went_those_that_are_there_are_not_forgotten(
    peer: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "NODES_MAX", 2)

    async def test(desk: Desk) -> None:
        (record,) = desk.roster
        desk.peers.seen(record)
        for i in range(20):
            desk.peers.seen(replace(record, node_id=f"n{i}"))
        known = [desk.peers.by_tag(node_tag(name)) for name in (record.node_id, "n15", "n19")]
        assert known == [record.node_id, None, "n19"]

    with_desk(peer, test)


def test_who_had_an_id_or_a_host_is_gone_once_nobody_has_it_any_more(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        (record,) = desk.roster
        name, host = record.node_id, record.address.rpartition(":")[0]
        assert not desk.peers.gone(name), "it was never seen"
        desk.peers.seen(record)
        assert not any(map(desk.peers.gone, (name, host, "never seen", "")))
        desk.roster._records.clear()
        assert all(map(desk.peers.gone, (name, host)))
        assert not any(map(desk.peers.gone, ("me", "never seen", "")))
        mine = replace(record, node_id="me")
        desk.peers.seen(mine)
        for records in ({mine.key(): mine}, {}):  # it is here, also while the metadata forgets it
            desk.roster._records = dict(records)
            assert desk.peers.gone(name)
            assert not any(map(desk.peers.gone, ("me", host))), "it may be on this host, too"

    with_desk(peer, test)


def test_data_connections_go_to_the_node_itself_whatever_host_it_names() -> None:
    assert _beside("10.0.0.1:7410", "169.254.169.254:8000") == "10.0.0.1:8000"
    assert _beside("[fd00::1]:7410", "[::1]:8000") == "[fd00::1]:8000"
    for named in ("", "8000x", "host:", "host:0", "host:65536", "host:-1", "host:٣", "h:000001"):
        with pytest.raises(Unavailable, match="names no port"):
            _beside("10.0.0.1:7410", named)
