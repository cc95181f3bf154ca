"""An engine that can switch does what its conductors agree on, and where none answers stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from kvstore.client import switching
from kvstore.client.reporter import Reporter
from kvstore.client.switching import Switching, agreed
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.doubles import Double, serving
from tests.conductor.reporting import engine
from tests.nodes import eventually

Crew = pb.BalanceReply.Crew
NAMED, HELD = Crew(engine_id="e", role=pb.DECODES), Crew(engine_id="another", held=True)
NOTHING = Crew()


@pytest.mark.parametrize(
    ("answers", "role"),
    [
        ([], pb.AS_IT_IS),
        ([NOTHING, NOTHING], pb.AS_IT_IS),
        ([NAMED], pb.DECODES),
        ([NOTHING, NAMED], pb.DECODES),
        ([NAMED, NAMED], pb.DECODES),
        ([NAMED, HELD], pb.AS_IT_IS),
        ([HELD, NOTHING], pb.AS_IT_IS),
        ([Crew(role=pb.DECODES, held=True)], pb.AS_IT_IS),
        ([NAMED, Crew(role=pb.PREFILLS)], pb.AS_IT_IS),
        ([Crew(role=pb.BOTH)], pb.AS_IT_IS),
    ],
)
def test_one_that_is_named_switches_unless_another_conductor_holds_it_back(
    answers: list[Crew], role: int
) -> None:
    assert agreed(answers) == role


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "ASK_SECONDS", (0.01, 0.02))


@contextmanager
def elastic(*conductors: str) -> Iterator[tuple[list[int], threading.Event]]:
    """An engine that prefills, and the roles that it took."""
    who, roles, once = engine("e", elastic=pb.PREFILLS), list[int](), threading.Event()

    def took(role: int) -> None:
        roles.append(role)
        once.set()

    with (
        closing(Reporter(who, conductors)) as reporter,
        closing(Switching(reporter, who, conductors, took)),
    ):
        yield roles, once


def test_it_reports_anew_in_its_new_role_to_all_conductors_and_then_rests(quick: None) -> None:
    first, second = Double(), Double()
    with serving(first, second), elastic(first.address, second.address) as (roles, once):
        eventually(lambda: first.asked and second.asked)
        assert first.asked[0].engine_id == "e" and not roles
        second.crew = NAMED
        assert once.wait(10)
        second.crew = Crew(engine_id="e", role=pb.PREFILLS)
        for one in (first, second):
            eventually(lambda one=one: one.roles == [pb.PREFILLS, pb.DECODES])
        counts = len(first.asked)
        time.sleep(0.3)
        assert roles == [pb.DECODES] and len(first.asked) == counts, "it has just switched"


def test_an_engine_that_finds_no_thread_to_ask_with_asks_once_there_are(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if threading.current_thread().name != "switching":
            return start(thread)  # of gRPC, which ends the process where it has none
        tries.append(1)
        raise RuntimeError("can't start new thread")

    one, tries = Double(), list[int]()
    one.crew = NAMED
    with serving(one):
        monkeypatch.setattr(switching, "ASK_SECONDS", (0.3, 0.3))
        with elastic(one.address) as (roles, once):
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refused)
                eventually(lambda: len(tries) >= 3)
                assert not roles
            assert once.wait(10) and roles == [pb.DECODES]


def test_a_dead_conductor_changes_no_role_and_keeps_none_from_changing(quick: None) -> None:
    with elastic("127.0.0.1:1") as (roles, _):
        time.sleep(0.3)
        assert not roles
    alive = Double()
    alive.crew = NAMED
    with serving(alive), elastic("127.0.0.1:1", alive.address) as (_, once):
        assert once.wait(10)


def test_it_stays_where_one_conductor_names_it_and_another_names_somebody_else(
    quick: None,
) -> None:
    first, second = Double(), Double()
    first.crew, second.crew = NAMED, HELD
    with serving(first, second), elastic(first.address, second.address) as (roles, once):
        eventually(lambda: len(second.asked) > 10)
        assert not roles
        second.crew = NOTHING
        assert once.wait(10)
