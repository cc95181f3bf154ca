"""An engine's reporter and real conductors: one that is killed, one that comes later."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from kvstore.client import reporter as module
from kvstore.client.reporter import PACE_SECONDS, Reporter
from kvstore.errors import Unavailable
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.doubles import Double, serving
from tests.conductor.reporting import asked, engine, scheduled
from tests.nodes import CALL_SECONDS, eventually, prompt
from tests.pools import ConductorProcess, Nodes, pool


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


def wait_ms(conductor: ConductorProcess) -> float | None:
    """How long a long prompt would wait at the engine; None while none is known."""
    request = pb.ExplainRequest(request=asked("probe", tokens=6_000))
    try:
        found = conductor.stub.Explain(request, timeout=CALL_SECONDS).considered
    except grpc.RpcError:
        return None
    return float(found[0].wait_ms) if found else None


def test_conductors_know_an_engine_and_its_load_until_it_closes(nodes: Nodes) -> None:
    first, second = nodes.conductor("first"), nodes.conductor("second")
    reporter = Reporter(engine("one"), [first.address, second.address])
    with closing(reporter):
        for conductor in (first, second):
            eventually(lambda one=conductor: wait_ms(one) == 0.0)
        reporter.accepted("r", 1_000)
        for conductor in (first, second):  # 10 ms and 1 ms a token
            eventually(lambda one=conductor: wait_ms(one) == pytest.approx(1_010))
        reporter.began("r")
        reporter.ended("r")
        for conductor in (first, second):
            eventually(lambda one=conductor: wait_ms(one) == 0.0)
    for conductor in (first, second):
        eventually(lambda one=conductor: wait_ms(one) is None)


def test_a_conductor_that_starts_anew_is_told_what_waits(nodes: Nodes) -> None:
    conductor = nodes.conductor()
    with closing(Reporter(engine("one"), [conductor.address])) as reporter:
        eventually(lambda: wait_ms(conductor) == 0.0)
        reporter.accepted("waits", 2_000)
        eventually(lambda: wait_ms(conductor) == pytest.approx(2_010))
        address = conductor.address
        conductor.kill()
        reporter.accepted("came meanwhile", 1_000)
        again = nodes.conductor("again", address)
        eventually(lambda: wait_ms(again) == pytest.approx(3_020), 20.0)


def test_a_conductor_that_starts_anew_is_told_what_the_engine_holds_itself(nodes: Nodes) -> None:
    def own(conductor: ConductorProcess) -> int:
        request = pb.ExplainRequest(request=asked("probe", tokens=210, hashes=blocks.hashes))
        try:
            found = conductor.stub.Explain(request, timeout=CALL_SECONDS).considered
        except grpc.RpcError:
            return -1
        return int(found[0].own_blocks) if found else -1

    conductor, blocks = nodes.conductor(), prompt(1, blocks=50)
    with closing(Reporter(engine("one"), [conductor.address])) as reporter:
        reporter.own((), blocks.hashes)
        eventually(lambda: own(conductor) == 50)
        reporter.own(blocks.hashes[45:], ())
        eventually(lambda: own(conductor) == 45)
        address = conductor.address
        conductor.kill()
        reporter.own(blocks.hashes[40:], ())
        again = nodes.conductor("again", address)
        eventually(lambda: own(again) == 40, 20.0)
        reporter.forget_own()
        eventually(lambda: own(again) == 0)


def test_what_is_measured_is_what_is_expected_of_the_engine_from_then_on(nodes: Nodes) -> None:
    conductor = nodes.conductor()
    with closing(Reporter(engine("one"), [conductor.address])) as reporter:
        eventually(lambda: wait_ms(conductor) == 0.0)
        thought = scheduled(conductor.stub, "before", tokens=1_000).ttft_ms
        for _ in range(60):  # twice as slow as its data sheet says
            reporter.prefilled(1_000, 0, 2.02)
            reporter.prefilled(100, 0, 0.22)
        eventually(
            lambda: (
                conductor.stub.Explain(
                    pb.ExplainRequest(request=asked("after", tokens=1_000)), timeout=CALL_SECONDS
                )
                .considered[0]
                .work_ms
                > 1.7 * thought
            )
        )


def test_an_engine_that_finds_no_thread_for_its_stream_tells_of_itself_once_there_are(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def node() -> str:
        assert go_on.wait(CALL_SECONDS)
        asked_node.append(1)
        return "node"

    conductor, go_on, asked_node = nodes.conductor(), threading.Event(), list[int]()
    with closing(Reporter(engine("one"), [conductor.address], node=node)):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            go_on.set()
            eventually(lambda: len(asked_node) >= 3)  # two tries are over
            assert wait_ms(conductor) is None
        eventually(lambda: wait_ms(conductor) == 0.0)


def test_whose_node_is_away_is_told_of_with_the_node_that_it_had_and_anew_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NODE_SECONDS", 0.05)
    double, node = Breaking(), ["first"]
    double.refuses = False

    def now() -> str:
        if not node:
            raise Unavailable("the node failed a moment ago")
        return node[0]

    def told() -> list[str]:
        return [one.engine.node_id for one in double.said if one.HasField("engine")]

    with serving(double), closing(Reporter(engine("one"), [double.address], node=now)):
        eventually(lambda: told() == ["first"])
        node.clear()
        double.breaks = True  # once: with its next message
        eventually(lambda: len(told()) > 1)
        double.breaks = False
        assert {*told()} == {"first"}
        node.append("second")
        eventually(lambda: told()[-1] == "second")


def test_whose_node_was_never_there_is_not_told_of_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 0.1)
    double, asked_node, there = Breaking(), list[int](), threading.Event()
    double.refuses = False

    def now() -> str:
        asked_node.append(1)
        if not there.is_set():
            raise Unavailable("no node serves")
        return "node"

    with serving(double), closing(Reporter(engine("one"), [double.address], node=now)):
        eventually(lambda: len(asked_node) > 3)
        assert not double.said
        there.set()
        eventually(lambda: bool(double.said))


def test_closing_does_not_wait_for_a_conductor_that_is_not_there() -> None:
    with closing(Reporter(engine("one"), ["127.0.0.1:1"])) as reporter:
        reporter.accepted("r", 10)


def test_a_conductor_knows_of_one_that_closes_that_it_has_left(nodes: Nodes) -> None:
    conductor = nodes.conductor()
    with closing(Reporter(engine("one", address="h:1"), [conductor.address])):
        eventually(lambda: wait_ms(conductor) == 0.0)
    said = conductor.stub.Crews(pb.CrewsRequest(), timeout=CALL_SECONDS)
    assert list(said.left) == ["h:1"] and not said.crews


def test_closing_does_not_wait_long_for_a_conductor_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        reporter = Reporter(engine("one"), [f"127.0.0.1:{deaf.getsockname()[1]}"])
        began = time.monotonic()
        reporter.close()
        assert time.monotonic() - began < module._CLOSE_SECONDS


class Breaking(Double):
    """Refuses streams, then hears one and breaks it when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses, self.breaks, self.streams = True, False, 0

    def Report(self, requests: Iterator[pb.ReportRequest], context: Any) -> pb.ReportReply:
        self.streams += 1
        if self.refuses:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        for one in requests:
            self.said.append(one)
            if self.breaks:
                context.abort(grpc.StatusCode.UNAVAILABLE, "no more")
        return pb.ReportReply()


def test_a_stream_that_lasted_is_begun_again_at_once_however_often_it_was_refused_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = [0.0]  # of the pauses: they grow, and are not waited for yet
    monkeypatch.setattr(module.random, "uniform", lambda *_: share[0])
    monkeypatch.setattr(module, "PAUSE_SECONDS_MAX", 3_600.0)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    double = Breaking()
    with serving(double), closing(Reporter(engine("one"), [double.address])):
        eventually(lambda: double.streams > 20)
        double.refuses = False
        eventually(lambda: PACE_SECONDS * len(double.said) > 1.5)
        share[0], before = 1.0, double.streams
        double.breaks = True
        eventually(lambda: double.streams > before)
