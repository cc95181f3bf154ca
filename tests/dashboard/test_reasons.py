"""Each reason for a miss, made to happen in real processes and read as the dashboard reads it."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvstore.block import Miss
from kvstore.dashboard.expressions import Rate
from kvstore.dashboard.panels import PANELS
from kvstore.dashboard.scrape import read
from kvstore.telemetry import ENGINE, NODE
from tests.gateway.http.conftest import House, client_of
from tests.nodes import LAYOUT, SPEC, Caller, eventually, mapped, prompt, running

ROOM = 16 << 20 >> 13  # slots of 8 KiB in a node's 16 MiB
CHARTED = {
    line.is_.metric for panel in PANELS for line in panel.lines if isinstance(line.is_, Rate)
}
COUNTED = {NODE["match_miss"], NODE["open_miss_blocks"], ENGINE["prompts"]}


def never_put(caller: Caller) -> None:
    caller.match(prompt(1))


def while_it_is_written(caller: Caller) -> None:
    caller.reserve(prompt(1))
    caller.match(prompt(1))


def behind_one_that_is_gone(caller: Caller) -> None:
    blocks = prompt(1, 3)
    caller.put(blocks)
    caller.ask("Remove", namespace=SPEC.digest, hashes=[blocks.hashes[1]])
    caller.ask("Open", namespace=SPEC.digest, hashes=[blocks.hashes[2]])


def for_others_room(caller: Caller) -> None:
    caller.put(prompt(1))
    for first in range(100, 100 + 2 * ROOM, 512):
        caller.put(prompt(first, 512))
    caller.match(prompt(1))


def taken_away(caller: Caller) -> None:
    caller.put(prompt(1))
    caller.ask("Remove", **caller.about(prompt(1)))
    caller.match(prompt(1))


def with_a_bit_flipped(caller: Caller) -> None:
    blocks = prompt(1)
    caller.put(blocks)
    opened = caller.ask("Open", **caller.about(blocks))
    with mapped(caller) as arena:
        arena.bytes[opened.slot_offsets[0] + LAYOUT.head_bytes] ^= 0x10
    caller.get(blocks)
    caller.match(blocks)


def found_to_be_wrong(caller: Caller) -> None:
    caller.put(prompt(1))
    caller.ask("Quarantine", namespace=SPEC.digest, reason="a test says so")
    caller.match(prompt(1))


def on_ssd_while_memory_is_held(caller: Caller) -> None:
    blocks = prompt(1)
    caller.put(blocks)
    eventually(lambda: caller.counters()["stored_blocks"])
    others = [prompt(first, 256) for first in range(100, 100 + ROOM, 256)]
    for one in others:
        caller.put(one)
        caller.ask("Pin", **caller.about(one), pin_ms=60_000)
    caller.ask("Open", **caller.about(blocks))


def of_a_writer_that_says_it_is_over(caller: Caller) -> None:
    caller.ask("Abort", writer_group="g")
    caller.ask("Open", **caller.about(prompt(1)), writer_group="g")


AT_A_NODE: dict[Miss, Callable[[Caller], None]] = {
    Miss.ABSENT: never_put,
    Miss.UNSEALED: while_it_is_written,
    Miss.UNLISTED: behind_one_that_is_gone,
    Miss.EVICTED: for_others_room,
    Miss.REMOVED: taken_away,
    Miss.DAMAGED: with_a_bit_flipped,
    Miss.NO_ROOM: on_ssd_while_memory_is_held,
    Miss.QUARANTINED: found_to_be_wrong,
    Miss.FORGONE: of_a_writer_that_says_it_is_over,
}


def counted(metrics: str) -> set[str]:
    """The reasons that a process has counted, by all that charts of misses are made of."""
    names = {one.exposed: one.label for one in COUNTED}
    return {
        dict(one.labels)[names[one.name]]
        for one in read(metrics)
        if one.name in names and one.value
    }


def test_each_reason_that_there_is_has_a_test() -> None:
    late = Miss.LATE  # of a disk that is slow, in tests/node/test_promotion.py
    assert {*AT_A_NODE, Miss.UNREACHABLE, late} == {*Miss}
    assert COUNTED <= CHARTED, "what is counted is charted"


@pytest.mark.parametrize("reason", AT_A_NODE, ids=str)
def test_a_miss_for_each_reason_is_counted_under_it(reason: Miss) -> None:
    ssd = "64MiB" if reason is Miss.NO_ROOM else None
    with running(ssd=ssd, options=["--metrics", "127.0.0.1:0"]) as node:
        caller = node.caller()
        caller.register()
        assert reason not in counted(node.metrics)
        AT_A_NODE[reason](caller)
        assert reason in counted(node.metrics)


def test_an_engine_counts_that_its_node_is_gone(model_dir: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        house = House(model_dir, Path(directory))
        try:
            with house.serving("serve", *house.knows) as gateway, client_of(gateway) as ai:
                psutil.Process(house.node.pid).send_signal(signal.SIGSTOP)
                try:
                    ai.completions.create(model="tiny", prompt=[*range(200)], max_tokens=2)
                finally:
                    os.kill(house.node.pid, signal.SIGCONT)
                told = set().union(*(counted(one.metrics) for one in house.engines))
                assert Miss.UNREACHABLE in told
        finally:
            house.close()
