"""Blocks of one prompt are one use, in however many pieces; an answer's are none."""

from __future__ import annotations

import numpy as np

from kvstore.attach.fleet import Fleet
from kvstore.attach.kinds import VLLM, Kind
from kvstore.attach.prompts import STEP_SECONDS, Filled, Use
from kvstore.client.kv_events.messages import Event, Stored

BLOCK = 4


class Told:
    """One engine's steps, of 16 tokens at most; a text is told by its first token."""

    def __init__(self, kind: Kind = VLLM) -> None:
        self.fleet = Fleet([kind])
        self.now = 0.0

    def step(self, *pieces: tuple[int, int, int], after: float = 0.1) -> None:
        """Of each text blocks from one to another."""
        self.now += after
        events: list[Event] = []
        for text, begin, end in pieces:
            ids = np.arange(text + BLOCK * begin, text + BLOCK * end, dtype=np.uint32)
            names = tuple(text + at + 1 for at in range(begin, end))
            events.append(Stored(names, text + begin if begin else None, ids, BLOCK))
        self.fleet.take(0, self.now, events)

    @property
    def uses(self) -> list[tuple[int, int]]:
        """Blocks that each prompt had at first, and in all."""
        blocks = self.fleet.blocks
        return [
            (one.found, blocks.depth(one.last)) for one in self.fleet.steps if isinstance(one, Use)
        ]

    @property
    def filled(self) -> int:
        return sum(one.count for one in self.fleet.steps if isinstance(one, Filled))

    @property
    def answers(self) -> int:
        return self.fleet.seen[0].answers.total()


def test_a_prompt_in_pieces_is_one_use() -> None:
    told = Told()
    for begin in range(0, 12, 4):
        told.step((1_000, begin, begin + 4))
    told.step((1_000, 12, 13), after=0.05)
    assert (told.uses, told.answers, told.filled) == ([(0, 13)], 0, 13)


def test_pieces_of_two_prompts_in_the_same_steps_are_two_uses() -> None:
    told = Told()
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 7), (2_000, 0, 1))
    told.step((2_000, 1, 5))
    told.step((2_000, 5, 6), after=0.05)
    assert (told.uses, told.answers) == ([(0, 7), (0, 6)], 0)


def test_a_single_block_behind_a_prompt_s_end_is_its_answer_s() -> None:
    told = Told()
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 7))
    for end in (8, 9):
        told.step((1_000, end - 1, end), after=0.4)
    assert (told.uses, told.answers, told.filled) == ([(0, 7)], 2, 9)


def test_one_that_comes_late_behind_a_full_step_is_the_answer_s_too() -> None:
    told = Told()
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 8))
    told.step((1_000, 8, 9), after=0.5)
    assert (told.uses, told.answers) == ([(0, 8)], 1)


def test_the_next_turn_is_a_use_of_its_own() -> None:
    told = Told()
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 8), after=2 * STEP_SECONDS)
    told.step((1_000, 8, 9), after=0.4)
    told.step((1_000, 9, 12), after=0.4)
    assert (told.uses, told.answers) == ([(0, 4), (4, 8), (9, 12)], 1)


def test_who_has_said_nothing_for_long_has_ended() -> None:
    told = Told()
    told.step((1_000, 0, 3))
    told.step((1_000, 3, 4), after=60.0)
    assert (told.uses, told.answers) == ([(0, 3), (3, 4)], 0)


def test_what_does_not_fit_is_counted_and_not_recorded() -> None:
    told = Told()
    told.fleet = Fleet([VLLM], steps_max=3)
    for text in range(1_000, 4_000, 1_000):
        told.step((text, 0, 2))
    assert len(told.fleet.steps) == 2 and told.fleet.unrecorded == 4
    assert told.fleet.seen[0].prompts.total() == 6, "why is counted all the same"
