"""Which namespaces engines of a model serve, as a conductor says it, and in which of them a request
is run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest

from kvstore.block import chain
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.content import salted
from kvstore.errors import Unavailable
from kvstore.gateway import spaces
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Space, Told
from kvstore.naming import names_of
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, engine
from tests.nodes import SPEC, eventually
from tests.pools import ConductorProcess, pool

OTHER = b"o" * 32
SLOW = pb.ReportRequest.Cost(a=5.0, b=1e-3)
REQUEST = Request("r", tuple(range(10)), 4, client="c", ttft_ms=9_000)


@pytest.fixture(scope="module")
def conductor() -> Iterator[ConductorProcess]:
    with pool() as nodes:
        yield nodes.conductor()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What conductors say is asked for each time, and none is late because this machine is busy."""
    monkeypatch.setattr("kvstore.client.conductors.ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(spaces, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(spaces, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(spaces, "_ABSENT_SECONDS", 0.0)


Report = Callable[..., Reporting]


@pytest.fixture
def report(conductor: ConductorProcess) -> Iterator[Report]:
    made: list[Reporting] = []

    def begin(name: str, **fields: Any) -> Reporting:
        said = pb.ReportRequest(engine=engine(name, **fields))
        made.append(Reporting(conductor.address, said))
        return made[-1]

    yield begin
    for one in made:
        one.end()


def test_a_request_names_its_blocks_as_its_space_does_under_its_salt() -> None:
    request = Request("r", tuple(range(10)), 4, salt="s", client="c", tpot_ms=7)
    asked = Space(OTHER, 2, 4).asked(request)
    assert (asked.namespace, asked.group, asked.tokens) == (OTHER, 2, 10)
    assert list(asked.hashes) == list(chain(OTHER, 2, range(10), 4, salted("s")).hashes)
    assert list(asked.hashes) != list(chain(OTHER, 2, range(10), 4).hashes)
    assert (asked.client, asked.tpot_ms, asked.max_new_tokens) == ("c", 7, 4)


def test_a_request_names_its_pages_as_sglang_s_engines_do() -> None:
    request = Request("r", tuple(range(10)), 4, salt="s")
    asked = Space(OTHER, 0, 4, naming="sglang 0/1").asked(request)
    assert tuple(asked.hashes) == names_of(OTHER, 0, 4, "sglang 0/1").of(range(10), "s")
    assert len(asked.hashes) == 2 and asked.tokens == 10


def test_of_an_answer_for_which_nobody_named_a_length_no_room_is_wanted() -> None:
    request = Request("r", tuple(range(10)), 4, as_many_as_fit=True, open_ended=True)
    assert Space(OTHER, 2, 4).asked(request).max_new_tokens == 0
    short = Request("r", tuple(range(10)), 4, as_many_as_fit=True)
    assert Space(OTHER, 2, 4).asked(short).max_new_tokens == 4, "it is no longer than that"


def test_engines_of_these_weights_are_found_and_no_others(
    conductor: ConductorProcess, report: Report, fresh: None
) -> None:
    with Conductors([conductor.address]) as conductors:
        told = Told(conductors, "w1")
        assert not told.now()
        report("ours", revision="w1")
        report("theirs", revision="w1", namespace=OTHER, group=1, address="http://127.0.0.1:1")
        report("others", revision="w2", namespace=b"x" * 32)
        report("mute", namespace=b"y" * 32)
        ours, theirs = Space(SPEC.digest, 0, 4), Space(OTHER, 1, 4, samples=True)
        eventually(lambda: set(told.now()) == {ours, theirs})


def test_engines_whose_blocks_are_called_as_nobody_here_knows_are_passed_over(
    conductor: ConductorProcess, report: Report, fresh: None
) -> None:
    """They are newer than this gateway."""
    with Conductors([conductor.address]) as conductors:
        told = Told(conductors, "w1")
        report("new", revision="w1", namespace=b"n" * 32, naming="to come")
        more = {"naming": "sglang mla", "address": "sglang://127.0.0.1:1"}
        report("pages", revision="w1", namespace=b"p" * 32, **more)
        pages = Space(b"p" * 32, 0, 4, samples=True, naming="sglang mla")
        eventually(lambda: set(told.now()) == {pages})
        crews = conductor.stub.Crews(pb.CrewsRequest(revision="w1"), timeout=5).crews
        assert {one.naming for one in crews} == {"to come", "sglang mla"}


def test_a_request_is_run_where_its_first_token_is_soonest(
    conductor: ConductorProcess, report: Report, fresh: None
) -> None:
    with Conductors([conductor.address]) as conductors:
        told = Told(conductors, "w1")
        report("slow", revision="w1", prefill=SLOW)
        quick = report("quick", revision="w1", namespace=OTHER)
        eventually(lambda: len(told.now()) == 2)

        def chosen() -> bytes:
            asks = [one.asked(REQUEST) for one in told.now()]
            for one in asks:
                one.request_id = "r"
            return bytes(asks[told.first(asks)].namespace)

        assert chosen() == OTHER
        quick.end()
        eventually(lambda: len(told.now()) == 1)
        assert chosen() == SPEC.digest


def test_a_request_is_run_where_there_is_room_for_its_prompt_if_its_answer_may_be_cut(
    conductor: ConductorProcess, report: Report, fresh: None
) -> None:
    with Conductors([conductor.address]) as conductors:
        told = Told(conductors, "w1")
        report("none", revision="w1", room_tokens=9)
        report("some", revision="w1", namespace=OTHER, room_tokens=12)
        eventually(lambda: len(told.now()) == 2)
        request = replace(REQUEST, max_new_tokens=16, as_many_as_fit=True)
        asks = [one.asked(request) for one in told.now()]
        for one in asks:
            one.request_id = "r"
        for turned in (asks, asks[::-1]):
            assert turned[told.first(turned)].namespace == OTHER


def test_a_conductor_is_told_of_a_request_all_that_bears_on_where_it_is_to_run() -> None:
    asked = Space(SPEC.digest, 0, 4).asked(REQUEST)
    assert (asked.tokens, len(asked.hashes), asked.max_new_tokens) == (10, 3, 4)
    assert (asked.client, asked.ttft_ms, asked.tpot_ms) == ("c", 9_000, 0)
    assert not asked.as_many_as_fit
    assert Space(SPEC.digest, 0, 4).asked(replace(REQUEST, as_many_as_fit=True)).as_many_as_fit


def test_who_has_no_engine_to_be_sent_to_is_told_what_each_conductor_says(
    conductor: ConductorProcess, report: Report, fresh: None
) -> None:
    report("others", revision="w2")
    with Conductors([conductor.address, "127.0.0.1:1"]) as conductors:
        dispatcher = Dispatcher(conductors, Told(conductors, "w1"), (), OPEN)
        with closing(dispatcher), pytest.raises(Unavailable, match="no engine is known") as none:
            dispatcher.run(REQUEST)
    assert f"{conductor.address} names no engine of yours with these weights" in str(none.value)
    assert "127.0.0.1:1 cannot be reached" in str(none.value)
    assert none.value.retry_after_ms, "they may come"


def test_what_was_known_is_kept_while_no_conductor_answers(
    report: Report, conductor: ConductorProcess, fresh: None
) -> None:
    report("ours", revision="w1")
    with Conductors([conductor.address]) as conductors:
        told = Told(conductors, "w1")
        eventually(lambda: len(told.now()) == 1)
        conductor.kill()
        for _ in range(3):
            assert len(told.now()) == 1
            time.sleep(0.05)
        assert not Told(conductors, "w1").now()


class Answers:
    """Stands for conductors that say what they please."""

    def __init__(self, *crews: pb.CrewsReply.Crew) -> None:
        self.said: Iterable[pb.CrewsReply] = [pb.CrewsReply(crews=crews)]

    def crews(self, revision: str, seconds: float) -> Any:
        return (("c:1", one) for one in self.said)


def test_a_crew_whose_blocks_have_no_tokens_is_none(fresh: None) -> None:
    crew = pb.CrewsReply.Crew(namespace=OTHER, engines=1)
    told = Told(cast(Conductors, Answers(crew)), "w1")
    assert not told.now()
    assert told.why_none() == "c:1 names engines whose blocks nobody can name here"


def test_who_has_these_weights_no_more_is_what_one_conductor_says_and_none_denies(
    fresh: None,
) -> None:
    here, there = (
        pb.CrewsReply.Crew(namespace=OTHER, engines=1, block_tokens=4, addresses=[one])
        for one in ("h:1", "h:2")
    )
    conductors = Answers(here)
    told = Told(cast(Conductors, conductors), "w1")
    told.now()
    assert not told.left()
    # One does not hear of an engine that another does: both have it.
    conductors.said = [pb.CrewsReply(crews=[one], left=["h:2", "h:3"]) for one in (here, there)]
    eventually(lambda: told.now() and told.left() == {"h:3"})
    assert len(told.now()) == 1, "and both are of one kind"
    conductors.said = [pb.CrewsReply()]
    eventually(lambda: not told.now() and not told.left())


@pytest.mark.parametrize("turned", [1, -1])
def test_engines_can_sample_where_no_conductor_hears_of_one_that_cannot(
    turned: int, fresh: None
) -> None:
    """Whoever answers last: it may be the one that does not hear of it."""
    ours, theirs = (
        pb.CrewsReply.Crew(namespace=OTHER, engines=some, over_http=1, block_tokens=4)
        for some in (2, 1)
    )
    conductors = Answers(theirs)
    told = Told(cast(Conductors, conductors), "w1")
    assert [one.samples for one in told.now()] == [True]
    conductors.said = [pb.CrewsReply(crews=[one]) for one in (ours, theirs)[::turned]]
    eventually(lambda: [one.samples for one in told.now()] == [False])
    conductors.said = [pb.CrewsReply(crews=[theirs])] * 2
    eventually(lambda: [one.samples for one in told.now()] == [True])


@pytest.mark.parametrize("turned", [1, -1])
def test_weights_by_whose_name_conductors_differ_are_no_name(turned: int, fresh: None) -> None:
    def crew(**weights: bytes) -> pb.CrewsReply.Crew:
        adapters = [pb.Adapter(name=name, weights=one) for name, one in weights.items()]
        told = {"namespace": OTHER, "engines": 1, "over_http": 1, "block_tokens": 4}
        return pb.CrewsReply.Crew(**told, adapters=adapters)

    ours = crew(same=b"1" * 32, other=b"2" * 32, odd=b"3", mine=b"4" * 32)
    theirs = crew(same=b"1" * 32, other=b"9" * 32)
    conductors = Answers()
    conductors.said = [pb.CrewsReply(crews=[one]) for one in (ours, theirs)[::turned]]
    told = Told(cast(Conductors, conductors), "w1")
    known = {"same": b"1" * 32, "other": b"", "odd": b"", "mine": b"4" * 32}
    eventually(lambda: [one.adapters for one in told.now()] == [known])


def test_the_first_request_waits_for_no_more_conductors_than_name_engines() -> None:
    def said() -> Iterator[pb.CrewsReply]:
        yield pb.CrewsReply()
        yield pb.CrewsReply(crews=[crew])
        raise AssertionError("it waits for who says nothing")

    crew = pb.CrewsReply.Crew(namespace=OTHER, engines=1, block_tokens=4)
    conductors = Answers()
    conductors.said = said()
    assert len(Told(cast(Conductors, conductors), "w1").now()) == 1


class Silent:
    """Stands for conductors of which none answers: each time they are all waited for."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def crews(self, revision: str, seconds: float) -> Sequence[pb.CrewsReply]:
        self.now, self.asked = self.now + 4 * seconds, self.asked + 1
        return []


def test_that_nobody_answers_is_as_good_as_new_from_when_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    silent = Silent()
    monkeypatch.setattr(spaces, "time", silent)
    told = Told(cast(Conductors, silent), "w1")
    for _ in range(3):
        assert not told.now()
    assert silent.asked == 1
    silent.now += spaces.KEPT_SECONDS
    assert not told.now() and silent.asked == 2


def test_what_is_known_is_gone_on_with_where_no_thread_can_be_had(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    crew = pb.CrewsReply.Crew(namespace=OTHER, engines=1, block_tokens=4)
    told = Told(cast(Conductors, Answers(crew)), "w1")
    assert len(told.now()) == 1
    monkeypatch.setattr(threading.Thread, "start", none)
    assert len(told.now()) == 1
