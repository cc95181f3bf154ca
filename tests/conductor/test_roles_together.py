"""Several conductors that do not know of each other, and engines that ask all of them: never do two
switch on one reason, and in the end they are split as they should be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.client.switching import ASK_SECONDS, REST_SECONDS, agreed
from kvstore.conductor.facts import Role
from kvstore.kernels.roles import GAIN, QUIET
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import WHOSE, chain
from tests.conductor.test_roles import Elastic

STEP = 0.25
PREFILLS = 1  # engines, at first
BEST_MAX = 5  # engines that prefill, under any load that is made here


class World:
    """In steps of virtual time. What an engine decided to do reaches each conductor later."""

    def __init__(self, conductors: int, seed: int) -> None:
        self.dice = random.Random(seed)
        self.rigs = [Elastic() for _ in range(conductors)]
        self.names = ["p", *"abcde"]
        for rig in self.rigs:
            for name in "de":
                rig.enter(name, Role.DECODES)
        self.roles = dict.fromkeys(self.names, Role.DECODES) | {"p": Role.PREFILLS}
        self.asks = {name: self.dice.uniform(0, 4) for name in self.names}
        self.coming: list[tuple[float, int, str]] = []  # reports of new roles
        self.now, self.switches, self.count = 0.0, list[float](), 0
        self.down: set[int] = set()

    def run(self, seconds: float, rate: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            for rig in self.rigs:
                rig.pass_(STEP)
            if self.dice.random() < rate * STEP:
                self._asked()
            for one in [one for one in self.coming if one[0] <= self.now]:
                self.coming.remove(one)
                self.rigs[one[1]].enter(one[2], self.roles[one[2]])
            for name in self.names:
                if self.asks[name] <= self.now:
                    self._asks(name)

    def _asked(self) -> None:
        self.count += 1
        request, rig = f"{self.count}", self.dice.choice(self.rigs)
        decision = rig.schedule(request, chain(self.count), tokens=8_000)
        rig.in_flight.drop(request, rig.now)
        assert decision.prefill is not None
        for other in self.rigs:
            if other is not rig:
                other.scheduler.crew(WHOSE)[0].roles.asked_elsewhere(other.now)

    def _asks(self, name: str) -> None:
        self.asks[name] = self.now + self.dice.uniform(*ASK_SECONDS)
        answers = []
        for number, rig in enumerate(self.rigs):
            if number not in self.down:
                role, held = rig.says(name)
                answers.append(pb.BalanceReply.Crew(role=pb.Role.Value(Role(role).name), held=held))
        role = agreed(answers)
        if role in (0, self.roles[name]):
            return
        self.roles[name] = Role(role)
        self.switches.append(self.now)
        self.asks[name] = self.now + REST_SECONDS
        for number in range(len(self.rigs)):
            self.coming.append((self.now + self.dice.uniform(0, 2.0), number, name))

    @property
    def prefills(self) -> int:
        return sum(role is Role.PREFILLS for role in self.roles.values())


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 3), st.integers(0, 1 << 20))
def test_no_two_switch_within_half_a_minute_and_they_end_as_they_should(
    conductors: int, seed: int
) -> None:
    world = World(conductors, seed)
    world.run(420.0, rate=3.0)
    gaps = [b - a for a, b in zip(world.switches, world.switches[1:], strict=False)]
    assert all(gap >= QUIET - 2.5 for gap in gaps), "two switched on one reason"
    assert 2 <= world.prefills <= BEST_MAX and len(world.switches) == world.prefills - PREFILLS
    for rig in world.rigs:
        advice = rig.advice
        assert advice.prefills == world.prefills and advice.decodes == 6 - world.prefills
        busier = max(advice.prefill_load, advice.decode_load)
        assert advice.best_load > GAIN * busier * 0.9
        rig.check()


@pytest.mark.parametrize("seed", range(3))
def test_a_dead_conductor_keeps_nobody_from_switching_and_where_all_are_dead_nobody_does(
    seed: int,
) -> None:
    world = World(2, seed)
    world.down = {1}
    world.run(200.0, rate=3.0)
    assert world.switches
    before = len(world.switches)
    world.down = {0, 1}
    world.run(60.0, rate=3.0)
    assert len(world.switches) == before, "nobody answers"
