"""Engines that do as they are told, in virtual time: what conductors predict is what comes.

Each engine runs one prompt at a time, whichever has the least priority plus its share of when it
came, and tells every conductor a moment later. Nothing here is random but arrivals and sizes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median
from typing import Any

import pytest

from kvstore.conductor.choices import RULES
from kvstore.conductor.decision import Ask
from kvstore.conductor.explained import reply_of
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.reports import Reporter
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.table import Table
from kvstore.core.fit import Error
from kvstore.errors import Overloaded
from kvstore.limits import IN_FLIGHT_SECONDS
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import chain
from tests.conductor.reporting import accepted, engine
from tests.nodes import SPEC

OURS = ("team", SPEC.digest, 0)
A, B = 0.02, 1e-4  # seconds of a prefill as engines say, and of each of its tokens
DELAY_SECONDS = 0.005  # until a conductor hears what an engine says
TOKENS = (100, 400, 1_500, 6_000)
MEAN_WORK = fmean(A + B * one for one in TOKENS)


@dataclass(order=True)
class Prompt:
    """One that came to an engine; the least runs first."""

    key: float
    request: str
    tokens: int
    came: float
    predicted: float  # seconds until its first token
    begin_by: float  # or it is dropped
    asked: Scheduler = field(compare=False)  # who sent it there


@dataclass
class Engine:
    """One that only prefills."""

    name: str
    reporters: list[Reporter]
    waiting: list[Prompt] = field(default_factory=list)
    running: Prompt | None = None


class World:
    """`slower`: what prefills take, to what the engines say at first; `untold`: to what they say
    that each took; `ttft`: within which conductors want a first token where a request says none."""

    def __init__(
        self, engines: int, conductors: int, slower: float, seed: int, untold: float = 1.0,
        ttft: float = RULES.ttft,
    ) -> None:  # fmt: skip
        self.dice, self.now, self._order = random.Random(seed), 0.0, itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.slower, self.untold, rules = slower, untold, RULES._replace(ttft=ttft)
        self.schedulers = [
            Scheduler(Table(PoolIndex(1)), lambda: (), random.Random(seed + number), rules)
            for number in range(conductors)
        ]
        self.engines = [Engine(f"e{number}", []) for number in range(engines)]
        for one in self.engines:
            cost = pb.ReportRequest.Cost(a=A, b=B)
            said = engine(one.name, prefill=cost, decode=None)
            for scheduler in self.schedulers:
                one.reporters.append(Reporter(scheduler, "team", lambda: bytes(32)))
                one.reporters[-1].take(pb.ReportRequest(engine=said), self.now)
        self.took: list[tuple[float, float]] = []  # until the first token: predicted, and true
        self.refused = self.dropped = 0

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), do))

    def run(self) -> None:
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()

    def tell(self, one: Engine, **fields: Any) -> None:
        message = pb.ReportRequest(**fields)
        for reporter in one.reporters:
            self.at(DELAY_SECONDS, lambda it=reporter: it.take(message, self.now))  # type: ignore[misc]

    def arrive(self, number: int, ttft: float, client: str = "") -> None:
        """Some conductor is asked, and the prompt goes where it says."""
        request, tokens = f"r{number}", self.dice.choice(TOKENS)
        scheduler = self.dice.choice(self.schedulers)
        try:
            ask = Ask(request, chain(number, 4), tokens, 0.0, ttft, client=client)
            decision = scheduler.schedule(OURS, ask, self.now)
        except Overloaded:
            self.refused += 1
            return
        plan = reply_of(scheduler, decision, False)
        one = next(it for it in self.engines if it.name == plan.prefill.engine_id)
        key = plan.priority_ms + plan.aging * 1e3 * self.now
        begin_by = self.now + 1e-3 * plan.drop_after_ms
        prompt = Prompt(key, request, tokens, self.now, 1e-3 * plan.ttft_ms, begin_by, scheduler)
        heapq.heappush(one.waiting, prompt)
        self.tell(one, accepted=[accepted(request, tokens)])
        self.begin(one)

    def begin(self, one: Engine) -> None:
        while one.waiting and one.running is None:
            prompt = heapq.heappop(one.waiting)
            if self.now > prompt.begin_by:
                self.dropped += 1
                self.tell(one, given_up=[prompt.request])
                continue
            one.running = prompt
            self.tell(one, began=[prompt.request])
            takes = self.slower * (A + B * prompt.tokens)
            self.at(self.untold * takes, partial(self.end, one, prompt, takes))

    def end(self, one: Engine, prompt: Prompt, takes: float) -> None:
        self.took.append((prompt.predicted, self.now - prompt.came))
        measured = pb.ReportRequest.Prefill(new_tokens=prompt.tokens, seconds=takes)
        self.tell(one, ended=[prompt.request], prefills=[measured])
        one.running = None
        self.begin(one)


def ran(
    load: float,
    conductors: int = 1,
    slower: float = 1.0,
    requests: int = 1_500,
    ttft: float = 0.0,
    untold: float = 1.0,
) -> World:
    """A world in which requests keep the engines busy for this share of time."""
    world = World(engines=6, conductors=conductors, slower=slower, seed=11, untold=untold)
    at, rate = 0.0, load * 6 / (MEAN_WORK * slower * untold)
    for number in range(requests):
        at += world.dice.expovariate(rate)
        world.at(at, lambda n=number: world.arrive(n, ttft))  # type: ignore[misc]
    world.run()
    for scheduler in world.schedulers:
        scheduler.check()
        assert scheduler.crew(OURS)[1].held == (0, 0), "something is in flight still"
        scheduler.sweep(world.now - IN_FLIGHT_SECONDS)
    return world


def off(world: World, since: int = 0) -> float:
    """By what share predictions are off, of most requests."""
    return median(abs(true / said - 1) for said, true in world.took[since:])


@pytest.mark.parametrize("load", [0.5, 0.85])
def test_what_is_predicted_is_what_comes(load: float) -> None:
    assert off(ran(load)) < 0.02


def test_engines_that_are_slower_than_they_said_are_soon_known() -> None:
    world = ran(0.7, slower=2.5)
    assert off(world, since=500) < 0.05
    errors: list[Error] = [
        one.errors.mean for one in world.schedulers[0].crew(OURS)[0].by_id.values()
    ]
    assert all(one.size < 0.5 for one in errors)


@pytest.mark.parametrize("untold", [0.6, 1.6])
def test_time_that_engines_do_not_tell_of_is_soon_known(untold: float) -> None:
    assert off(ran(0.7, untold=untold, requests=400)) > 0.1, "there is something to learn"
    assert off(ran(0.7, untold=untold), since=500) < 0.07


def test_two_conductors_do_nearly_as_well_as_one_because_engines_tell_both() -> None:
    alone, both = ran(0.85), ran(0.85, conductors=2)
    means = [fmean(true for _, true in world.took) for world in (alone, both)]
    assert means[1] < 1.15 * means[0]
    assert off(both) < 0.1


def test_past_saturation_whoever_is_served_is_in_time_and_few_waited_for_nothing() -> None:
    world = ran(1.6, ttft=3.0)
    assert all(true <= 3.0 for _, true in world.took)
    # Long prompts are what is refused, and what shorter ones overtake until it is too late.
    assert len(world.took) > 0.8 * 1_500 and world.dropped < 0.1 * 1_500
    assert world.refused > 0
