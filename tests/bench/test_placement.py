"""What the bench of placement counts, on traces made for it."""

from __future__ import annotations

import random

import pytest

from bench.placement import Replay
from tests.bench.adversaries import ADVERSARIES, prompt


def test_a_block_asked_for_again_while_it_is_in_dram_counts_for_both() -> None:
    replay = Replay(40)
    for name in (1, 1, 1):
        replay.ask(prompt(name, 3))
    assert (replay.hits, replay.in_dram, replay.in_recent) == (6, 6, 6)


def test_dram_and_ssd_hold_no_more_than_they_have_room_for() -> None:
    replay = Replay(40)
    for name in range(100):
        replay.ask(prompt(name % 30, 3))
        assert len(replay.index) <= 40 and len(replay.lanes) <= 4 and len(replay.recent) <= 4
        assert all(slot.key in replay.index for slot in replay.lanes)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_dram_finds_nearly_what_lru_finds_or_more(name: str) -> None:
    replay = Replay(400)
    for request in ADVERSARIES[name](random.Random(7)):
        replay.ask(request)
    assert replay.in_dram >= 0.95 * replay.in_recent
