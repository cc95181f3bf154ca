"""A peer is measured when it is met, beside the fetches and not before them; what is wrong is said
aloud, and what was found is in the node's figures."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kvstore.clock import SimClock
from kvstore.errors import KVStoreError, Unavailable
from kvstore.limits import PROBE_BYTES_MIN
from kvstore.metadata.records import NodeRecord
from kvstore.node.contacts import (
    AGAIN_SECONDS,
    HEARD_SECONDS,
    PAUSE_SECONDS,
    QUIET_SECONDS_MAX,
    Contacts,
)
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer.probe import Probe
from kvstore.wire.v1 import admin_pb2
from kvstore.wire.v1 import kv_pb2 as pb
from tests.faults.proxy import Faults, Proxy
from tests.node.test_peers import Desk, with_desk
from tests.nodes import Caller, NodeProcess, eventually, prompt, running
from tests.pools import pool

FAST, SLOW = Probe(1e-4, 1e9, 1e9), Probe(1e-4, 1e9, 1e8)
numbers = itertools.count(31_000_000)


class Met:
    """A link to a peer whose transports give what a test says."""

    def __init__(self, node_id: str = "n1", epoch: int = 1) -> None:
        self.node_id, self.epoch, self.address = node_id, epoch, "10.0.0.1:7410"
        self.alive, self.busy, self.probes = True, False, 0
        self.gives: dict[str, Probe | KVStoreError] = {"tcp": FAST}

    async def probe(self) -> dict[str, Probe | KVStoreError]:
        self.probes += 1
        return self.gives


class Scene:
    def __init__(self) -> None:
        self.clock, self.counters = SimClock(1_000.0), Telemetry(NODE)
        self.contacts = Contacts(self.clock, self.counters)

    async def meet(self, link: Any, seconds: float = PAUSE_SECONDS) -> None:
        self.contacts.met(link)
        await self.clock.advance(seconds)

    def counted(self) -> list[int]:
        totals = self.counters.totals()
        return [totals[name] for name in ("probes", "probe_failures", "probe_warnings")]


def told(story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        scene = Scene()
        async with asyncio.timeout(20):
            await story(scene)
        await scene.contacts.close()

    asyncio.run(main())


def test_a_peer_is_measured_once_for_each_start_of_it_and_again_much_later() -> None:
    async def story(scene: Scene) -> None:
        link, other = Met(), Met("n2")
        for _ in range(3):
            await scene.meet(link)
        assert link.probes == 1
        await scene.meet(other)
        assert other.probes == 1, "each peer by itself"
        link.epoch += 1
        await scene.meet(link)
        assert link.probes == 2, "a start of it is another peer"
        await scene.clock.advance(AGAIN_SECONDS)
        assert link.probes == 2, "nothing happens by itself"
        await scene.meet(link)
        assert link.probes == 3 and scene.counted() == [4, 0, 0]

    told(story)


def test_a_probe_waits_for_the_fetch_under_way_and_not_for_ever() -> None:
    async def story(scene: Scene) -> None:
        link, endless = Met(), Met("n2")
        link.busy = endless.busy = True
        scene.contacts.met(link)  # type: ignore[arg-type]
        await scene.meet(endless, 4 * PAUSE_SECONDS)
        assert link.probes == endless.probes == 0
        link.busy = False
        await scene.clock.advance(PAUSE_SECONDS)
        assert link.probes == 1
        await scene.clock.advance(QUIET_SECONDS_MAX)
        assert endless.probes == 1

    told(story)


def test_one_peer_at_a_time_is_measured() -> None:
    async def story(scene: Scene) -> None:
        first, second = Met("n1"), Met("n2")
        gate = asyncio.Event()

        async def held() -> dict[str, Probe | KVStoreError]:
            await gate.wait()
            return {"tcp": FAST}

        first.probe = held  # type: ignore[method-assign]
        scene.contacts.met(first)  # type: ignore[arg-type]
        await scene.meet(second)
        assert second.probes == 0
        gate.set()
        await scene.clock.advance(0)
        assert second.probes == 1

    told(story)


def test_what_fails_is_an_error_and_what_is_far_slower_a_warning_each_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(scene: Scene) -> None:
        link = Met()
        link.gives = {"tcp": FAST, "ucx": Unavailable("no device"), "other": SLOW}
        await scene.meet(link, PAUSE_SECONDS + 2 * HEARD_SECONDS)
        link.epoch += 1
        await scene.meet(link, PAUSE_SECONDS + 2 * HEARD_SECONDS)
        said = [(one.levelno, one.getMessage()) for one in caplog.records]
        (failed, error), (slow, warning) = said
        assert (failed, slow) == (logging.ERROR, logging.WARNING)
        for text in (error, warning):
            assert "node n1 at 10.0.0.1:7410" in text
        assert error.endswith("ucx does not work: no device")
        assert "other 10 times slower than tcp" in warning
        assert scene.counted() == [6, 2, 2]
        await scene.clock.advance(AGAIN_SECONDS)
        await scene.meet(link, PAUSE_SECONDS + 2 * HEARD_SECONDS)
        assert len(caplog.records) == 4, "and again, when it is still so"

    told(story)


def test_a_peer_that_ends_while_it_is_measured_is_no_wrong_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(scene: Scene) -> None:
        link = Met()
        link.gives, link.alive = {"tcp": Unavailable("it hung up")}, False
        await scene.meet(link)
        assert not caplog.records and not scene.contacts.worst(9) and scene.counted() == [0, 0, 0]
        link.gives, link.alive = {"tcp": FAST}, True
        await scene.meet(link)
        assert link.probes == 2, "met again, it is measured"

    told(story)


@pytest.mark.parametrize("tries", [1, 2])
def test_a_peer_whose_end_is_heard_of_after_its_data_connections_broke_is_no_wrong_setting(
    caplog: pytest.LogCaptureFixture, tries: int
) -> None:
    """It may have hung until it was tried again."""

    async def story(scene: Scene) -> None:
        link = Met()
        link.gives = {"tcp": Unavailable("it hung up")}
        await scene.meet(link, PAUSE_SECONDS + (tries - 1) * HEARD_SECONDS)
        link.alive = False
        await scene.clock.advance(HEARD_SECONDS)
        assert link.probes == tries
        assert not caplog.records and not scene.contacts.worst(9) and scene.counted() == [0, 0, 0]

    told(story)


def test_a_peer_that_stands_still_for_a_moment_is_no_wrong_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(scene: Scene) -> None:
        link = Met()
        link.gives = {"tcp": Unavailable("it did not answer in time")}
        await scene.meet(link)
        link.gives = {"tcp": FAST}
        await scene.clock.advance(HEARD_SECONDS)
        assert link.probes == 2 and not caplog.records
        assert [one.measured for one in scene.contacts.worst(9)] == [{"tcp": FAST}]

    told(story)


def test_the_worst_are_named_first_and_one_that_let_nobody_in_is_measured_when_it_does() -> None:
    async def story(scene: Scene) -> None:
        links = [Met(f"n{number}") for number in range(4)]
        links[1].gives = {"tcp": SLOW}
        links[2].gives = {"tcp": FAST, "ucx": SLOW}
        for link in links[:3]:
            await scene.meet(link)
        for _ in range(2):
            scene.contacts.refused(links[3], "tcp", TimeoutError())  # type: ignore[arg-type]
        assert [one.node_id for one in scene.contacts.worst(9)] == ["n3", "n2", "n1", "n0"]
        assert [one.node_id for one in scene.contacts.worst(1)] == ["n3"]
        await scene.meet(links[3])
        assert [one.node_id for one in scene.contacts.worst(2)] == ["n2", "n1"]

    told(story)


def test_a_peer_whose_data_port_was_late_once_is_not_blamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may have stood still for that long."""

    async def story(scene: Scene) -> None:
        link, late, gone = Met(), TimeoutError(), Unavailable("it cannot be reached")
        for _ in range(2):
            scene.contacts.refused(link, "tcp", late)  # type: ignore[arg-type]
            assert not scene.contacts.worst(9) and not caplog.records
            await scene.meet(link)
            assert not caplog.records, "it lets others in again"
            scene.contacts._known.clear()
        scene.contacts.refused(link, "tcp", gone)  # type: ignore[arg-type]
        assert [one.levelno for one in caplog.records] == [logging.ERROR]

    told(story)


# Real nodes


@pytest.fixture(scope="module")
def peer() -> Iterator[NodeProcess]:
    with running() as started:
        yield started


def test_a_real_peer_is_measured_both_ways_beside_the_link_and_ends_with_it(
    peer: NodeProcess,
) -> None:
    async def test(desk: Desk) -> None:
        link = await desk.peers.link(desk.name, "default")
        assert not desk.contacts.worst(1), "whoever asked for the link has it before"
        await _until(lambda: desk.contacts.worst(1), desk)
        (found,) = desk.contacts.worst(1)
        probe = found.measured["tcp"]
        assert isinstance(probe, Probe) and 0 < probe.slowest < 1e12 and not found.complaints
        assert (found.node_id, found.epoch) == (link.node_id, link.epoch)

    with_desk(peer, test)


def test_a_data_port_that_lets_nobody_in_is_said_aloud(
    peer: NodeProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:  # and listens not: whoever connects there is refused
        taken.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("kvstore.node.link._beside", lambda *_: closed)

        async def test(desk: Desk) -> None:
            with pytest.raises(Unavailable, match="cannot be used"):
                await desk.peers.link(desk.name, "default")
            assert desk.contacts.worst(1)[0].complaints[0].error

        with_desk(peer, test)
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert f"{closed} cannot be reached" in said and "refused" in said and "--data-port" in said


class Broken:
    """UCX to a node, that does not work."""

    failure = Unavailable("no device")

    def to(self, record: NodeRecord) -> Broken:
        return self

    def begin(self, *_: object) -> None: ...

    async def close(self) -> None: ...


def test_ucx_that_does_not_work_is_among_what_was_found(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        desk.peers._ucx = Broken()  # type: ignore[assignment]
        await desk.peers.link(desk.name, "default")
        await _until(lambda: desk.contacts.worst(1), desk)
        (found,) = desk.contacts.worst(1)
        assert isinstance(found.measured["tcp"], Probe)
        assert [one.text for one in found.complaints] == ["does not work: no device"]

    with_desk(peer, test)


def test_a_link_is_busy_as_long_as_a_thread_uses_it(peer: NodeProcess) -> None:
    async def test(desk: Desk) -> None:
        link, go = await desk.peers.link(desk.name, "default"), threading.Event()
        working = asyncio.create_task(link.in_thread(go.wait, 20.0))
        await asyncio.sleep(0)
        assert link.busy
        go.set()
        assert await working and not link.busy

    with_desk(peer, test)


def test_a_probe_that_stands_still_is_given_up(
    peer: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.node.contacts.PROBE_SECONDS", 0.2)
    with Proxy(_data_address(peer)) as proxy:
        monkeypatch.setattr("kvstore.node.link._beside", lambda *_: proxy.address)

        async def test(desk: Desk) -> None:
            # A second probe makes a connection, which waits as long as any for the first word.
            monkeypatch.setattr("kvstore.node.link.STALL_SECONDS", 1.0)
            link = await desk.peers.link(desk.name, "default")
            proxy.to_caller.faults = Faults(stalled=True)
            await _until(lambda: desk.contacts.worst(1), desk)
            ((complaint,),) = [one.complaints for one in desk.contacts.worst(1)]
            assert complaint.error and not link.busy
            proxy.to_caller.faults = Faults()
            assert isinstance((await link.probe())["tcp"], Probe), "on a connection of its own"

        with_desk(peer, test)


def _data_address(node: NodeProcess) -> str:
    caller = node.caller()
    try:
        return str(caller.opened.data_address)
    finally:
        caller.close()


async def _until(condition: Callable[[], Any], desk: Desk) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await desk.clock.advance(PAUSE_SECONDS)
            await asyncio.sleep(0.01)


def fetched(reader: Caller, holder: Caller, count: int = 2) -> None:
    """Blocks that one node had, by way of the other."""
    blocks = prompt(next(numbers), count)
    for caller in (holder, reader):
        caller.register()
    holder.put(blocks)
    assert eventually(lambda: reader.get(blocks)[0] == [pb.HIT] * count, 20)


def shown(caller: Caller) -> list[admin_pb2.ContactStats]:
    return list(caller.stats().contacts)


def test_nodes_that_meet_by_a_fetch_show_what_they_measured() -> None:
    with pool() as nodes:
        first, second = nodes.node("a"), nodes.node("b")
        holder, reader = first.caller(), second.caller()
        fetched(reader, holder)
        (contact,) = eventually(lambda: shown(reader), 20)
        assert contact.address == first.address and contact.node_id == holder.opened.node_id
        (tcp,) = contact.transports
        assert tcp.name == "tcp" and not tcp.complaint and not tcp.error
        assert min(tcp.there_bytes_per_second, tcp.back_bytes_per_second) > 0
        assert tcp.round_trip_seconds > 0
        assert reader.counters()["probes"] == 1 and holder.counters()["probes"] == 0


def test_over_a_slow_link_little_is_moved_to_measure_it() -> None:
    with pool() as nodes:
        first, second = nodes.node("a"), nodes.node("b")
        reader = second.caller()
        with nodes.behind(first) as (_, moves):
            moves.to_caller.faults = moves.to_server.faults = Faults(bytes_per_second=1e6)
            fetched(reader, first.caller(), 1)
            (contact,) = eventually(lambda: shown(reader), 20)
            (tcp,) = contact.transports
            assert 0 < tcp.back_bytes_per_second < 2e6 and not tcp.complaint
            assert moves.to_server.passed_bytes < 2 * PROBE_BYTES_MIN
            assert moves.to_caller.passed_bytes < 3 * PROBE_BYTES_MIN
