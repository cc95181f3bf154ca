"""What is said of a link's transports, and how much is moved to measure them."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.client import Client
from kvstore.errors import Denied, SessionEnded, Unavailable
from kvstore.limits import PROBE_BYTES_MAX, PROBE_BYTES_MIN
from kvstore.transfer import calls, shm
from kvstore.transfer.frames import CALL
from kvstore.transfer.probe import SLOWER_MAX, Complaint, Probe, judge
from tests.client.kv import spec_of
from tests.nodes import running


def at(rate: float, back: float = 1e12) -> Probe:
    return Probe(1e-5, rate, back)


def test_a_transport_that_fails_is_an_error_even_where_another_works() -> None:
    found = judge({"tcp": at(1e9), "ucx": Unavailable("no device")})
    assert found == [Complaint("ucx", True, "does not work: no device")]


def test_a_port_has_to_be_open_to_whoever_does_not_reach_it_and_not_to_whoever_may_not() -> None:
    (unreached,) = judge({"tcp": Unavailable("no answer")})
    assert "--data-port" in unreached.text
    for answer in (Denied("not you"), SessionEnded("not now")):
        (refused,) = judge({"tcp": answer})
        assert refused.text == f"does not work: {answer}"


def test_one_that_is_far_slower_than_the_best_in_either_direction_is_a_warning() -> None:
    edge = 1e9 / SLOWER_MAX
    assert judge({"ucx": at(1e9, 1e9), "tcp": at(edge, 1e9)}) == []
    for slow in (at(edge * 0.9, 1e9), at(1e9, edge * 0.9)):
        (found,) = judge({"ucx": at(1e9, 1e9), "tcp": slow})
        assert (found.transport, found.error) == ("tcp", False) and "slower than ucx" in found.text


def test_memory_that_is_slow_is_no_network() -> None:
    (found,) = judge({"tcp": at(1e9, 1e9), "shm": at(1e8, 1e8)})
    assert (found.transport, found.error) == ("shm", False)
    assert found.text == "10 times slower than tcp: this host is busy, or short of memory"


def test_a_network_is_not_held_against_memory_but_against_the_other_network() -> None:
    memory, near, far = at(24e9, 24e9), at(3e9, 3e9), at(1e8, 1e8)
    assert judge({"tcp": near, "shm": memory}) == []
    (found,) = judge({"tcp": far, "ucx": near, "shm": memory})
    assert found == Complaint("tcp", False, "30 times slower than ucx: see which network it takes")


def test_alone_or_with_its_like_nobody_is_slow() -> None:
    assert judge({"tcp": at(1.0)}) == [] and judge({}) == []


class Link:
    """A data connection by a clock of its own, that takes `rate` bytes a second to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
        self.rate, self.now, self.size = rate, 0.0, 0
        self.moved = 0
        monkeypatch.setattr(calls.time, "perf_counter", lambda: self.now)

    def send(self, data: bytes | memoryview) -> None:
        if len(data) == CALL.size:
            self.size = CALL.unpack(data)[-1]
        self._pass(len(data))

    def receive(self, count: int) -> bytes:
        self._pass(count)
        return bytes(count)

    def receive_into(self, buffers: list[memoryview]) -> int:
        (room,) = buffers
        assert len(room) == self.size
        self._pass(self.size)
        return self.size

    def _pass(self, count: int) -> None:
        self.now += 1e-4 + count / self.rate
        self.moved += count


@pytest.mark.parametrize("rate", [1e5, 1e7, 1e9, 1e11])
def test_a_probe_moves_what_its_link_takes_to_be_measured_and_no_more(
    monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    link: Any = Link(monkeypatch, rate)
    found = calls.probe(link, PROBE_BYTES_MAX)
    assert rate / 3 < found.slowest < rate * 3
    assert link.moved < 2 * 4 / 3 * PROBE_BYTES_MAX + 2_000
    assert link.now < max(0.3, 2.5 * PROBE_BYTES_MIN / rate), "a slow link is not held for long"


def test_of_copies_on_one_host_the_quickest_says_how_fast_its_memory_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter(accumulate([0.0, 1.0, 0.0, 0.25, 0.0, 0.5]))  # the first brings pages in
    with running() as node, Client.at(node.address, spec_of("p"), transport="shm") as client:
        transport: Any = client.connection.link().transport
        size = min(PROBE_BYTES_MAX, len(transport._reading.bytes))
        monkeypatch.setattr(shm, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
        assert transport.probe() == Probe(0.0, 4 * size, 4 * size)


def test_a_real_node_is_probed_both_ways_over_each_transport() -> None:
    with running() as node:
        for transport in ("tcp", "shm"):
            told = {"deadline_seconds": 20.0, "transport": transport}
            with Client.at(node.address, spec_of("p"), **told) as client:
                probe = client.connection.link().transport.probe()
                assert 0 < probe.slowest < 1e12
                assert probe.round_trip_seconds >= 0
