"""Once a conductor serves, nobody waits for a compiler."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np

from kvstore.conductor.explained import explain
from kvstore.conductor.warm_up import compiled
from kvstore.core.fingerprints import IN_DRAM
from kvstore.kernels import (
    crowd,
    decision,
    expected,
    fairness,
    fitting,
    pool_index,
    pool_word,
    roles,
    room,
    stored_prints,
)
from kvstore.wire.prints import asked, packed, unpacked
from tests.conductor.crews import WHOSE, Rig, ask, chain
from tests.conductor.test_reports import Streams, prefill, step, transfer
from tests.nodes import prompt

COMPILES_SECONDS = 400.0  # minutes, where nothing was compiled yet and others want the cores
MODULES = (
    *(crowd, decision, expected, fairness, fitting),
    *(pool_index, pool_word, roles, room, stored_prints),
)


def signatures(module: ModuleType) -> dict[str, int]:
    """How many types of arguments each loop that Python calls was compiled for."""
    found = {name: getattr(one, "signatures", None) for name, one in vars(module).items()}
    return {name: len(some) for name, some in found.items() if some}


def test_what_a_conductor_does_was_compiled_before_it_serves() -> None:
    # In a process of its own: others that ran in this one have compiled what they use.
    command = [sys.executable, "-m", "tests.conductor.test_warm_up"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMPILES_SECONDS)
    assert ran.returncode == 0, ran.stderr


def do_what_a_conductor_does() -> None:
    compiled()
    before = [signatures(module) for module in MODULES]
    assert before[1].keys() >= {"choose", "decoder", "wait_in_line", "rank_of", "move"}
    assert before[1].keys() >= {"begin", "end", "leave_line", "owe", "lately_busy", "fade"}
    assert before[2].keys() >= {"expect", "settle", "move"}
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
    rig.in_flight.drop("2", rig.now)
    _prefill_here_and_decode_there()
    _hear_of_a_node(rig)
    rig.check()
    rig.scheduler.sweep(rig.now)
    streams = Streams()
    measured = {"prefills": [prefill()], "steps": [step()], "transfers": [transfer()]}
    streams.say(streams.begin(), held=prompt(1).hashes, cleared=True, **measured)
    assert [signatures(module) for module in MODULES] == before


def _prefill_here_and_decode_there() -> None:
    rig = Rig()
    prefills, _ = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.schedule("r", chain(1))
    assert rig.in_flight.prompts["r"].hand > 0
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.ended("r", prefills, rig.now + 1)
    rig.scheduler.place(WHOSE, ask("r", chain(1)), rig.now)
    rig.check()


def _hear_of_a_node(rig: Rig) -> None:
    """As it comes over the wire, and as others ask of it."""
    said = packed(chain(2), np.full(len(chain(2)), IN_DRAM, np.uint8))
    rig.table.begin("heard of")
    rig.table.add("heard of", *unpacked(said))
    rig.table.finish("heard of")
    rig.table.change("heard of", *unpacked(said))
    prints = asked(said.fingerprints)
    assert rig.table.holding(prints) == {"heard of": len(prints)}
    rig.table.tiers("heard of", prints)


if __name__ == "__main__":
    do_what_a_conductor_does()
