"""Engines that prefill and engines that decode, in virtual time: what becomes of those that wait
for room, as callers of one conductor or of two have it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.reports import Reporter
from kvstore.conductor.room import Parked
from kvstore.errors import TooLate
from kvstore.limits import SENT_SECONDS
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import engine
from tests.conductor.test_closed_loop import DELAY_SECONDS, OURS, Engine, Prompt, World

STEP_SECONDS, OUTPUT_TOKENS = 0.02, 200
ROOM_TOKENS = 12_000
CALL_SECONDS = 0.25  # that one call waits in line, as the gateway's do
TTFT = 3.0


@dataclass
class Decoder:
    """One that only decodes; each step takes as long."""

    name: str
    reporters: list[Reporter] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)  # of what it decodes


class Halves(World):
    """Some engines decode. A caller keeps to the conductor that sent its prompt."""

    def __init__(self, decoders: int, conductors: int) -> None:
        super().__init__(engines=6, conductors=conductors, slower=1.0, seed=11)
        self.decoders = {f"d{number}": Decoder(f"d{number}") for number in range(decoders)}
        cost = pb.ReportRequest.Cost(a=STEP_SECONDS)
        for one in self.decoders.values():
            said = engine(one.name, prefill=None, decode=cost, room_tokens=ROOM_TOKENS)
            for scheduler in self.schedulers:
                one.reporters.append(Reporter(scheduler, "team", lambda: bytes(32)))
                one.reporters[-1].take(pb.ReportRequest(engine=said), self.now)
        self.first_tokens: list[
            tuple[int, float]
        ] = []  # tokens of a prompt, and when its first was
        self.begun: set[str] = set()
        self.given_up = self.fullest = 0
        self.token_seconds = self.busy_seconds = 0.0

    def beat(self) -> None:
        """Engines say that they are there, and conductors give up what they never heard of."""
        for one in (*self.engines, *self.decoders.values()):
            for reporter in one.reporters:
                reporter.take(pb.ReportRequest(), self.now)
        for scheduler in self.schedulers:
            scheduler.sweep(self.now)

    def end(self, one: Engine, prompt: Prompt, takes: float) -> None:
        super().end(one, prompt, takes)
        self.place(prompt)

    def place(self, prompt: Prompt) -> None:
        """Its caller asks who decodes it, and waits."""
        none, waited = np.zeros(0, np.uint64), self.now - prompt.came
        ask = Ask(prompt.request, none, prompt.tokens, waited, TTFT)
        try:
            placed = prompt.asked.place(OURS, ask, self.now, partial(self.decode, prompt))
        except TooLate:
            self.given_up += 1
            return
        if isinstance(placed, Decision):
            self.decode(prompt, placed)
        else:
            self.at(CALL_SECONDS, partial(self.ask_again, prompt, placed))

    def ask_again(self, prompt: Prompt, parked: Parked) -> None:
        prompt.asked.step_out(OURS, parked)
        if prompt.request not in self.begun:
            self.place(prompt)

    def decode(self, prompt: Prompt, decision: Decision) -> None:
        assert decision.decode is not None
        one = self.decoders[decision.decode.facts.engine_id]
        assert prompt.request not in self.begun, "twice"
        self.begun.add(prompt.request)
        one.tokens[prompt.request] = prompt.tokens
        self.fullest = max(self.fullest, sum(one.tokens.values()))
        self.first_tokens.append(self.now - prompt.came)
        self.tell_load(one, decoding=[prompt.request])
        self.at(OUTPUT_TOKENS * STEP_SECONDS, partial(self.over, one, prompt))

    def over(self, one: Decoder, prompt: Prompt) -> None:
        took = OUTPUT_TOKENS * STEP_SECONDS
        self.busy_seconds = self.now
        self.token_seconds += took * (one.tokens.pop(prompt.request) + OUTPUT_TOKENS)
        self.tell_load(one, over=pb.ReportRequest.Over(sequences=1, output_tokens=OUTPUT_TOKENS))

    def tell_load(self, one: Decoder, **fields: Any) -> None:
        load = pb.ReportRequest.Load(batch=len(one.tokens), context_tokens=sum(one.tokens.values()))
        message = pb.ReportRequest(load=load, **fields)
        for reporter in one.reporters:
            self.at(DELAY_SECONDS, lambda it=reporter: it.take(message, self.now))  # type: ignore[misc]


def ran(rate: float, conductors: int = 1, requests: int = 1_200) -> Halves:
    """So many requests a second, for two engines that decode 2.7 of them."""
    world, at = Halves(2, conductors), 0.0
    for number in range(requests):
        at += world.dice.expovariate(rate)
        world.at(at, lambda n=number: world.arrive(n, TTFT))  # type: ignore[misc]
    for second in range(int(at + 2 * SENT_SECONDS)):
        world.at(float(second), world.beat)
    world.run()
    for scheduler in world.schedulers:
        scheduler.check()
        in_flight = scheduler.crew(OURS)[1]
        assert in_flight.held == (0, 0) and not len(in_flight.room), "something is left"
    return world


@pytest.mark.parametrize("conductors", [1, 2])
def test_where_there_is_room_nobody_waits_for_it(conductors: int) -> None:
    world = ran(1.0, conductors)
    assert world.refused + world.given_up < 0.03 * 1_200 and not world.dropped
    assert np.percentile(world.first_tokens, 90) < 1.0


@pytest.mark.parametrize("conductors", [1, 2])
def test_those_that_are_too_many_are_refused_when_they_come_and_not_when_they_are_prefilled(
    conductors: int,
) -> None:
    world = ran(16.0, conductors)
    assert len(world.first_tokens) + world.refused + world.given_up + world.dropped == 1_200
    assert world.refused > 0.3 * 1_200
    assert world.given_up + world.dropped < 0.1 * world.refused
    assert max(world.first_tokens) <= TTFT + CALL_SECONDS
    assert fmean(world.first_tokens) < 0.2 * TTFT, "nobody stands in line in vain"


@pytest.mark.parametrize("conductors", [1, 2])
def test_engines_that_decode_are_kept_full_and_not_fuller(conductors: int) -> None:
    world = ran(16.0, conductors)
    assert world.token_seconds > 0.85 * 2 * ROOM_TOKENS * world.busy_seconds
    # Two conductors may give the same room away, for as long as they have not heard of it.
    assert world.fullest <= ROOM_TOKENS * (1.0 if conductors == 1 else 1.5)
