"""What of a prompt's KV is to go to who decodes it: whose link that takes, and when it counts."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.conductor.decision import Decision
from kvstore.conductor.explained import sentence_of
from kvstore.conductor.in_flight import NO_PRINTS
from kvstore.errors import Overloaded
from kvstore.limits import IN_FLIGHT_SECONDS
from tests.conductor.crews import WHOSE, Rig, ask, chain

TOKENS = 1_024  # of 100 KB, over 10 GB/s
WHOLE = TOKENS * 1e5 / 1e10


class Apart(Rig):
    """Two engines that prefill and two that decode, each at a node of its own."""

    def __init__(self, **rules: float) -> None:
        super().__init__(**rules)
        for name in ("p0", "p1"):
            self.engine(name, decode=None)
        for name in ("d0", "d1"):
            self.engine(name, prefill=None)

    def host(self, name: str) -> Any:
        crew, _ = self.scheduler.crew(WHOSE)
        return crew.fleet.hosts[crew.by_id[name].host]

    def hold(self, name: str, tokens: float) -> None:
        """So much KV is on its way out of an engine's host."""
        self.host(name)["leaves"] = self.now + tokens * 1e5 / 1e10

    def begun(self, request: str) -> str:
        """Where it is prefilled, whose prefill has begun."""
        name = self.sent_to(request, chain(1))
        engine = self.scheduler.crew(WHOSE)[0].by_id[name]
        self.in_flight.accepted(request, engine, 0.1, chain(1), self.now)
        self.in_flight.began(request, engine, self.now)
        return name

    def ended(self, request: str, name: str) -> None:
        self.in_flight.ended(request, self.scheduler.crew(WHOSE)[0].by_id[name], self.now)

    def placed(self, request: str, blocks: int = 64) -> str:
        said = ask(request, chain(1, 64)[:blocks], tokens=TOKENS)
        decision = self.scheduler.place(WHOSE, said, self.now)
        assert isinstance(decision, Decision) and decision.decode is not None
        return decision.decode.facts.engine_id


def test_a_prompt_owes_its_kv_to_the_link_until_it_is_known_who_decodes_it() -> None:
    rig = Apart()
    name = rig.begun("r")
    assert rig.host(name)["owed"] == pytest.approx(WHOLE) and rig.host(name)["leaves"] == 0
    rig.check()
    decoder = rig.placed("r")
    assert rig.host(name)["owed"] == 0
    assert rig.host(name)["leaves"] == pytest.approx(rig.now + WHOLE)
    assert rig.host(decoder)["arrives"] == pytest.approx(rig.now + WHOLE)
    rig.ended("r", name)
    assert rig.host(name)["owed"] == 0
    rig.check()


@pytest.mark.parametrize("over", ["ended", "given up", "silent"])
def test_a_prompt_that_is_over_owes_nothing(over: str) -> None:
    rig = Apart()
    name = rig.begun("r")
    engine = rig.scheduler.crew(WHOSE)[0].by_id[name]
    if over == "ended":
        rig.ended("r", name)
    elif over == "given up":
        rig.in_flight.given_up("r", engine, rig.now)
    else:
        rig.now += IN_FLIGHT_SECONDS
        rig.in_flight.expire(rig.now)
    assert rig.host(name)["owed"] == 0
    rig.check()


def test_a_host_whose_link_is_taken_for_long_prefills_no_more() -> None:
    rig = Apart()
    rig.hold("p0", 100 * TOKENS)
    assert {rig.sent_to(str(number), chain(number)) for number in range(8)} == {"p1"}
    rig.hold("p1", 200 * TOKENS)
    with pytest.raises(
        Overloaded, match=r"come 1\.03 s after .*; its KV is where .* after 1\.03 s"
    ):
        rig.schedule("late", chain(9), ttft=1.0)


def test_who_is_refused_for_the_prefill_alone_is_told_of_nothing_else() -> None:
    rig = Rig()
    rig.engine("a")
    with pytest.raises(Overloaded) as caught:
        rig.schedule("long", chain(9), tokens=20_000, ttft=1.0)
    assert "2.01 s" in str(caught.value) and "where it is decoded" not in str(caught.value)


def test_it_is_said_how_long_after_its_prefill_a_prompt_is_where_it_is_decoded() -> None:
    rig = Apart()
    for name in ("p0", "p1"):
        rig.hold(name, 50 * TOKENS)
    said = sentence_of(rig.schedule("r", chain(1)))
    work = 0.01 + TOKENS * 1e-4
    assert f"and is where it is decoded {1e3 * (51 * WHOLE - work):.3g} ms after that; d" in said
    assert "decodes it, alone where it lacks little; " in said
    assert "where it is decoded" not in sentence_of(Apart().schedule()), "it is there by then"


def test_who_decodes_is_whose_host_has_the_most_of_it_and_the_rest_is_sent() -> None:
    rig = Apart()
    for name in ("p0", "p1", "d0"):
        rig.node(f"node of {name}", NO_PRINTS)
    rig.node("node of d1", chain(1)[:48])
    name = rig.begun("r")
    assert rig.host(name)["owed"] == pytest.approx(WHOLE / 4)
    assert rig.placed("r") == "d1"
    assert rig.host("d1")["arrives"] == pytest.approx(rig.now + WHOLE / 4)


def test_who_names_no_blocks_is_decoded_anywhere() -> None:
    rig = Apart()
    rig.node("node of d1", chain(1))
    rig.begun("r")
    assert {rig.placed("r", blocks=0) for _ in range(20)} == {"d0", "d1"}


def test_what_waited_for_room_is_on_its_way_once_it_has_some() -> None:
    rig = Apart()
    crew, _ = rig.scheduler.crew(WHOSE)
    for name in ("d0", "d1"):
        crew.by_id[name].batch, crew.by_id[name].context_tokens = 1, 100_000
        crew.load(crew.by_id[name])
    name = rig.begun("r")
    served = list[Decision]()
    rig.scheduler.place(WHOSE, ask("r", chain(1), tokens=TOKENS), rig.now, served.append)
    assert not served and rig.host(name)["owed"] == pytest.approx(WHOLE)
    crew.by_id["d1"].batch = crew.by_id["d1"].context_tokens = 0
    crew.load(crew.by_id["d1"])
    rig.scheduler.serve(WHOSE, crew.by_id["d1"], rig.now + 2.0)
    assert served and rig.host(name)["owed"] == 0
    assert rig.host("d1")["arrives"] == pytest.approx(rig.now + 2.0 + WHOLE)
    rig.check()


def test_where_somebody_of_the_host_decodes_nothing_is_sent() -> None:
    rig = Rig()
    rig.engine("p", decode=None, node_id="one")
    rig.engine("d", prefill=None, node_id="one")
    rig.sent_to("r")
    crew, _ = rig.scheduler.crew(WHOSE)
    assert not crew.fleet.hosts["owed"].any()
    rig.scheduler.place(WHOSE, ask("r", tokens=TOKENS), rig.now)
    assert not crew.fleet.hosts["leaves"].any()


def test_once_nobody_decodes_there_any_more_it_is_sent() -> None:
    rig = Rig()
    rig.engine("p", decode=None, node_id="one")
    near = rig.engine("near", prefill=None, node_id="one")
    rig.engine("far", prefill=None, node_id="two")
    rig.scheduler.leave(WHOSE, near, rig.now)
    rig.check()
    rig.sent_to("r")
    assert rig.scheduler.crew(WHOSE)[0].fleet.hosts["owed"].any()


def test_a_fetch_takes_each_end_for_as_long_as_its_bytes_and_no_longer() -> None:
    rig = Rig()
    rig.engine("a")
    rig.node("elsewhere", chain(1)[:60])
    rig.schedule("r", chain(1))
    crew, _ = rig.scheduler.crew(WHOSE)
    before = crew.fleet.hosts["arrives"].max()
    assert before == pytest.approx(rig.now + 60 * 16 * 1e5 / 1e10)
