"""Real nodes, conductors and engines: requests go where a conductor says, and whoever dies under
them costs none.

two that prefill, two that decode ──Report──▶ two conductors ◀──Schedule── callers
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.chats import Coming
from bench.drive import Answers, RoundRobin, in_turn
from bench.fleet import Fleet, Plan, running
from bench.route import with_a_conductor_killed
from kvstore.client import conductors as conductors_module
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.engine.reference import Reference
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import One
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.engine.runs import prompt

NEW = 4
# Memory for all that is prompted. Who reuses more where it is short is for `bench route` to say:
# that takes a load that keeps engines busy.
PLAN = Plan(dram=("8MiB",), slab="1MiB", pages=96)
DOCUMENTS, DOCUMENT_TOKENS, CYCLES = 8, 448, 4


@pytest.fixture(autouse=True)
def processes() -> None:
    """Nodes that a test starts anew are the module's, and outlive it."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conductor's answer is waited for on a machine that does other things, too."""
    monkeypatch.setattr(conductors_module, "ANSWER_SECONDS", 60.0)


@pytest.fixture(scope="module")
def fleet(model_dir: Path) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(prefix="mp") as directory,
        running(Path(directory), model_dir, PLAN) as made,
    ):
        yield made


class Fixed:
    """The same plan for whatever is asked."""

    def __init__(self, prefill: str, decode: str) -> None:
        self._prefill = pb.ScheduleReply.Place(address=prefill)
        self._decode = pb.ScheduleReply.Place(address=decode)

    def give_up(self, request: pb.ScheduleRequest) -> None:
        """Nothing is counted."""

    def schedule(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        if request.phase == pb.DECODE:
            return None
        split = pb.ScheduleReply.Split(computed_tokens=request.tokens)
        return pb.ScheduleReply(prefill=self._prefill, decode=self._decode, split=split)


def asked(name: str, tokens: list[int]) -> Request:
    return Request(name, tuple(tokens), NEW, ignore_eos=True)


def by_two(cycles: int, seed: int) -> list[Coming]:
    """Questions about documents, of which two come at a time, in the order in which documents were
    asked about before; of the two the other one is first each time."""
    documents = [prompt(DOCUMENT_TOKENS, seed=seed + number) for number in range(DOCUMENTS)]
    found = []
    for cycle in range(cycles):
        for number in range(DOCUMENTS):
            which = number ^ (cycle % 2)
            tokens = documents[which] + prompt(20, seed=1_000 * cycle + which)
            found.append(Coming(0.0, asked(f"{seed} {cycle} {which}", tokens)))
    return found


def answers_to(coming: list[Coming], reference: Reference) -> Answers:
    return {one.request.id: reference.tokens(list(one.request.prompt), NEW) for one in coming}


def test_as_much_is_reused_as_round_robin_and_tokens_are_those_of_one_process(
    fleet: Fleet, reference: Reference, patient: None
) -> None:
    coming = by_two(CYCLES, seed=200)
    answers = answers_to(coming, reference)
    fleet.refresh()
    others = in_turn(fleet, RoundRobin(fleet), coming, together=2)
    fleet.refresh()
    with Conductors(fleet.told, OPEN) as conductors:
        ours = in_turn(fleet, conductors, coming, together=2)
    for ran in (others, ours):
        assert not ran.failed and not ran.wrong(answers)
    assert all(what.expected_seconds for _, what in ours.done), "all were planned"
    # All but the first question about each document finds it, less what nobody has heard of yet.
    assert ours.hit_share > 0.5 and ours.hit_share > 0.9 * others.hit_share


def test_an_engine_that_is_not_there_costs_no_request(fleet: Fleet, reference: Reference) -> None:
    prefill, decode = fleet.addresses["prefill"][0], fleet.addresses["decode"][0]
    tokens = prompt(300, seed=70)
    wanted = reference.tokens(tokens, NEW)
    for number, plan in enumerate((Fixed("127.0.0.1:1", decode), Fixed(prefill, "127.0.0.1:1"))):
        dispatcher = Dispatcher(plan, One(fleet.spec), [decode], OPEN)
        told: list[int] = []
        outcome = dispatcher.run(
            asked(f"gone {number}", tokens), lambda one, _, told=told: told.append(one)
        )
        assert outcome.tokens == told == wanted and outcome.tries == 2
        assert outcome.engines[-1] == decode and "127.0.0.1:1" in outcome.engines
        dispatcher.close()


def test_one_engine_that_is_to_do_both_does_both(fleet: Fleet, reference: Reference) -> None:
    (one, _), tokens = fleet.addresses["decode"], prompt(300, seed=71)
    dispatcher = Dispatcher(Fixed(one, one), One(fleet.spec), [], OPEN)
    outcome = dispatcher.run(asked("both", tokens))
    assert outcome.tokens == reference.tokens(tokens, NEW) and outcome.engines == [one]
    dispatcher.close()


def test_a_conductor_that_is_killed_midway_fails_no_request_and_both_of_them_none(
    fleet: Fleet, reference: Reference
) -> None:
    coming = by_two(2, seed=300)
    answers = answers_to(coming, reference)
    killed = with_a_conductor_killed(fleet, coming)
    assert not killed.failed and not killed.wrong(answers)
    for one in fleet.conductors:
        if one.exited is None:
            fleet.kill(one)
    with Conductors(fleet.told, OPEN) as conductors:
        alone = in_turn(fleet, conductors, coming, together=2)
    assert not alone.failed and not alone.wrong(answers)
    assert not any(what.expected_seconds for _, what in alone.done), "nobody was there to plan"
