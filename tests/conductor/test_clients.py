"""Clients of one crew: who is remembered, and who is refused when there is too little for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.conductor.clients import Clients
from kvstore.conductor.explained import reply_of
from kvstore.core.cost import PrefillCost
from kvstore.errors import Overloaded
from kvstore.limits import CLIENTS_MAX
from tests.conductor.crews import Rig, chain
from tests.conductor.test_closed_loop import MEAN_WORK, OURS, World

TTFT = 3.0


class Shared(World):
    """Requests are clients', some of whom ask for more than others."""

    def __init__(self, conductors: int) -> None:
        super().__init__(engines=6, conductors=conductors, slower=1.0, seed=11, ttft=TTFT)
        self.came: Counter[str] = Counter()
        self.let_in: Counter[str] = Counter()

    def arrive(self, number: int, ttft: float, client: str = "") -> None:
        before = self.refused
        super().arrive(number, ttft, client)
        self.came[client] += 1
        self.let_in[client] += self.refused == before

    def share(self, client: str) -> float:
        return self.let_in[client] / self.came[client]


@cache
def ran(load: float, parts: tuple[int, ...], conductors: int = 1, named: bool = True) -> Shared:
    """So many times what the engines can do is asked for, by clients in these parts."""
    world, at = Shared(conductors), 0.0
    names = [str(number) for number in range(len(parts))]
    for number in range(4_000):
        at += world.dice.expovariate(load * 6 / MEAN_WORK)
        (name,) = world.dice.choices(names, parts)
        client = name if named else ""
        world.at(at, lambda n=number, c=client: world.arrive(n, TTFT, c))  # type: ignore[misc]
    world.run()
    for scheduler in world.schedulers:
        scheduler.check()
        assert scheduler.crew(OURS)[1].held == (0, 0), "something is in flight still"
    return world


@pytest.mark.parametrize("conductors", [1, 2])
@pytest.mark.parametrize("load", [2.0, 5.0])
def test_who_asks_for_less_than_a_share_is_let_in(load: float, conductors: int) -> None:
    nobody, world = ran(load, (95, 5), conductors, named=False), ran(load, (95, 5), conductors)
    assert nobody.share("") < 0.86, "there is too little for all"
    # What it does not get are long prompts: short ones of others overtake them, as its own do.
    assert 1 - world.share("1") < 0.6 * (1 - nobody.share(""))
    assert world.let_in.total() > 0.95 * nobody.let_in.total()


def test_of_those_that_ask_for_too_much_each_gets_as_much() -> None:
    nobody, world = ran(5.0, (60, 30, 1), named=False), ran(5.0, (60, 30, 1))
    assert world.share("0") < nobody.share("") < world.share("1")
    assert world.let_in["0"] < 0.8 * (world.came["0"] / world.came["1"]) * world.let_in["1"]
    assert world.share("2") > world.share("1")


def test_while_there_is_enough_nobody_is_refused_for_having_asked_for_more() -> None:
    assert ran(0.5, (95, 5)).refused == 0


def test_a_client_that_had_more_than_its_share_is_told_so() -> None:
    world = Shared(1)
    (scheduler,) = world.schedulers
    for number in range(400):
        world.arrive(number, TTFT, "small" if number % 40 == 0 else "large")
    assert world.share("small") > 0.8 > world.share("large")
    refusals = [
        str(one.refusal)
        for number in range(1, 400)
        if (one := scheduler.decided(OURS, f"r{number}")) is not None and one.refusal
    ]
    assert any("its client has lately had more than a fair share" in one for one in refusals)


def test_one_that_is_asked_for_again_counts_once() -> None:
    world = Shared(1)
    world.arrive(0, TTFT, "a")
    clients = world.schedulers[0].crew(OURS)[1].clients
    once = clients.counted("a")
    assert once[0] == once[1] > 0
    world.arrive(0, TTFT, "a")
    assert clients.counted("a") == once
    world.arrive(1, 1e-6, "a")
    asked, had = clients.counted("a")
    assert asked > once[0] and had == once[1], "it is refused"
    world.arrive(1, TTFT, "a")
    assert clients.counted("a")[0] == asked and clients.counted("a")[1] > had


def test_who_has_had_nothing_is_let_in_before_who_had_all() -> None:
    clients = Clients()
    clients.asked("a", 100.0, 0.0)
    clients.had("a", 100.0)
    assert clients.patience("a", 0.5) == 0.5, "it is alone"
    clients.asked("b", 100.0, 0.0)
    assert clients.patience("b", 0.5) == 1.0
    assert clients.patience("a", 0.5) < 0.5
    assert clients.patience("c", 0.5) == 1.0, "who was never heard of has had nothing either"


@given(st.lists(st.tuples(st.integers(0, 1_500), st.booleans()), max_size=60), st.integers(0, 3))
def test_of_too_many_who_was_not_heard_of_for_the_longest_is_forgotten(
    some: list[tuple[int, bool]], rounds: int
) -> None:
    clients = Clients()
    for number in range(rounds * 600):
        clients.asked(str(number), 1.0, 0.001 * number)
    for number, let_in in some:
        clients.asked(str(number), 1.0, 2.0)
        if let_in:
            clients.had(str(number), 1.0)
        clients.check()
    assert len(clients) <= CLIENTS_MAX
    assert all(str(number) in clients for number, _ in some)


def test_a_request_that_is_sent_again_after_a_refusal_is_counted_as_had_once() -> None:
    rig = Rig()
    engine = rig.engine("a")
    for _ in range(3):
        assert rig.sent_to("r", client="c") == "a"
        rig.in_flight.drop("r", rig.now)
        rig.in_flight.accepted("long", engine, 500.0, chain(0, 0), rig.now)
        rig.in_flight.began("long", engine, rig.now)
        with pytest.raises(Overloaded):
            rig.schedule("r", client="c")
        rig.in_flight.drop("long", rig.now)
    asked, had = rig.in_flight.clients.counted("c")
    assert asked == had > 0


def test_how_much_less_a_client_has_had_than_the_one_that_had_the_most() -> None:
    clients = Clients()
    assert clients.lacks("a") == 0.0
    clients.asked("a", 100.0, 0.0)
    clients.had("a", 100.0)
    assert clients.lacks("a") == 0.0, "it is alone"
    clients.asked("b", 25.0, 0.0)
    clients.had("b", 25.0)
    assert (clients.lacks("a"), clients.lacks("b")) == (0.0, 0.75)
    assert clients.lacks("c") == 1.0, "who was never heard of has had nothing"


def turns(
    asked: Iterable[tuple[float, str]], ttft: Mapping[str, float] = MappingProxyType({})
) -> list[float]:
    """When those that come at some time and for some client have their turn at an engine, in
    milliseconds; all are alike but for the seconds in which some clients want first tokens."""
    rig, due = Rig(), list[float]()
    rig.engine("a", prefill=PrefillCost(1e-3, 1e-5, 0.0), decode=None)
    since = rig.now
    for number, (at, client) in enumerate(asked):
        rig.now = since + at
        wanted = ttft.get(client, 0.0)
        decision = rig.schedule(f"{number}", chain(9), client=client, ttft=wanted)
        plan = reply_of(rig.scheduler, decision, False)
        due.append(plan.priority_ms + plan.aging * 1e3 * at)
    return due


def test_one_of_a_client_that_had_little_goes_before_all_that_another_has_had_wait() -> None:
    many = [(0.05 * number, "many") for number in range(400)]
    *others, one = turns([*many, (20.0, "few")])
    assert one < min(others[1:])
    *others, one = turns([*many, (20.0, "many")])
    assert one > max(others)


@pytest.mark.parametrize("seconds", [2.0, 600.0])
def test_who_may_wait_long_for_a_first_token_goes_not_before_who_wants_it_soon(
    seconds: float,
) -> None:
    """How long before its time somebody goes is a matter of what clients have had, not of what
    they say: else who asks for more time would be served first."""
    many = [(0.01 * number, "many") for number in range(400)]
    some = [(4.0 + 0.01 * number, "some") for number in range(200)]
    all_ = [*many, *some, (6.5, "new")]
    told = turns(all_, {"some": seconds, "new": 2.0})
    assert told[-1] < min(told[450:-1]), "these are of one that had something by then"
    assert told == turns(all_), "it changes nobody's turn"


def test_of_clients_that_had_as_much_and_of_one_alone_who_came_first_is_first() -> None:
    both = turns((0.05 * number, "ab"[number % 2]) for number in range(200))
    for earlier, later in zip(both[100:], both[120:], strict=False):
        assert earlier < later, "one more of one than of the other is worth some 0.3 s"
    alone, unnamed = (turns((0.05 * n, name) for n in range(100)) for name in ("a", ""))
    assert alone == unnamed and alone[1:] == sorted(alone[1:])
