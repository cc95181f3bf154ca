"""Once a conductor serves, nobody waits for a compiler."""

from __future__ import annotations

from types import ModuleType

from kvstore.conductor.explained import explain
from kvstore.conductor.warm_up import compiled
from kvstore.kernels import decision, expected, fitting, pool_index
from tests.conductor.crews import WHOSE, Rig, ask, chain
from tests.conductor.test_reports import Streams, prefill, step, transfer
from tests.nodes import prompt


def signatures(module: ModuleType) -> dict[str, int]:
    """How many types of arguments each loop that Python calls was compiled for."""
    found = {name: getattr(one, "signatures", None) for name, one in vars(module).items()}
    return {name: len(some) for name, some in found.items() if some}


def test_what_a_conductor_does_was_compiled_before_it_serves() -> None:
    compiled()
    modules = (decision, expected, fitting, pool_index)
    before = [signatures(module) for module in modules]
    assert before[0].keys() >= {"choose", "decoder", "wait_in_line", "leave_line", "rank_of"}
    assert before[1].keys() >= {"expect", "settle", "move"}
    rig = Rig()
    for name in "abc":
        rig.engine(name)
    rig.node("elsewhere", chain(1))
    for number in range(50):
        decided = rig.schedule(f"{number}", chain(number % 7, 64), waited=1.5, ttft=900)
        explain(rig.scheduler, decided, False)
        rig.scheduler.place(WHOSE, ask(f"{number}", chain(1, 0)), rig.now)
    rig.in_flight.began("1", rig.in_flight.prompts["1"].engine, rig.now)
    rig.in_flight.ended("1", rig.in_flight.prompts["1"].engine, rig.now)
    rig.check()
    streams = Streams()
    measured = {"prefills": [prefill()], "steps": [step()], "transfers": [transfer()]}
    streams.say(streams.begin(), held=prompt(1).hashes, cleared=True, **measured)
    assert [signatures(module) for module in modules] == before
