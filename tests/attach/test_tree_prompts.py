"""SGLang's answers are told of whole and late, a prompt's pieces as they come."""

from __future__ import annotations

from kvstore.attach.kinds import SGLANG
from kvstore.attach.tree_prompts import ANSWER_TOKEN_SECONDS
from tests.attach.test_prompts import BLOCK, Told

SOON = 0.5 * ANSWER_TOKEN_SECONDS * BLOCK  # for a block


def test_what_comes_behind_a_prompt_is_its_answer_and_what_is_behind_that_the_next_turn() -> None:
    told = Told(SGLANG)
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 9), after=5.0)
    told.step((1_000, 9, 12))
    assert (told.uses, told.answers, told.filled) == ([(0, 4), (9, 12)], 5, 12)


def test_a_prompt_in_pieces_is_one_use() -> None:
    told = Told(SGLANG)
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 8), after=4 * SOON)
    told.step((1_000, 8, 12), (1_000, 12, 13), after=5 * SOON)
    assert (told.uses, told.answers, told.filled) == ([(0, 13)], 0, 13)


def test_a_piece_comes_with_the_batch_behind_the_one_before() -> None:
    told = Told(SGLANG)
    told.step((1_000, 0, 4))
    told.step((2_000, 0, 1), after=0.0)
    told.step((1_000, 4, 5), after=SOON)
    assert (told.uses, told.answers) == ([(0, 4), (0, 1)], 1)


def test_two_answers_of_one_prompt_are_not_of_one_request() -> None:
    told = Told(SGLANG)
    told.step((1_000, 0, 4))
    told.step((1_000, 4, 5), after=1.0)
    told.step((1_000, 4, 5), after=0.5)
    assert (told.uses, told.answers) == ([(0, 4), (4, 5)], 1)


def test_who_has_said_nothing_for_long_has_ended() -> None:
    told = Told(SGLANG)
    told.step((1_000, 0, 3))
    told.step((1_000, 3, 4), after=60.0)
    assert (told.uses, told.answers) == ([(0, 3), (3, 4)], 0)
