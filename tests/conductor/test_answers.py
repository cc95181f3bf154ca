"""How many tokens an answer comes to."""

from __future__ import annotations

import pytest

from kvstore.conductor.answers import ENOUGH, TOKENS, Answers
from tests.conductor.crews import WHOSE, Rig, ask


def test_before_any_is_over_answers_come_to_what_callers_let_them() -> None:
    answers = Answers()
    assert answers.tokens == TOKENS
    for most in (8, 24):
        answers.wanted(most)
    assert answers.tokens == 16.0


def test_callers_that_do_not_say_or_let_them_be_very_long_are_taken_for_the_usual() -> None:
    answers = Answers()
    for most in (0, 100_000):
        answers.wanted(most)
        assert answers.tokens == TOKENS


def test_the_first_to_end_are_the_short_ones_and_count_for_little() -> None:
    answers = Answers()
    answers.over(1, 2)
    assert TOKENS * (1 - 1 / ENOUGH) < answers.tokens < TOKENS
    for _ in range(int(ENOUGH)):
        answers.over(1, 40)
    assert 38 < answers.tokens < 40


def test_what_answers_came_to_long_ago_is_forgotten() -> None:
    answers = Answers()
    answers.over(1_000, 400_000)
    assert answers.tokens == 400.0
    for _ in range(300):
        answers.over(2, 40)
    assert answers.tokens == pytest.approx(20.0, rel=0.1)


def test_no_answer_is_thought_longer_than_its_caller_lets_it_be() -> None:
    answers = Answers()
    answers.over(100, 4_000)
    assert answers.of(8) == 8.0
    assert answers.of(0) == answers.of(1_000) == 40.0


def test_answers_of_nothing_come_to_one_token() -> None:
    answers = Answers()
    answers.over(1_000, 0)
    assert answers.tokens == 1.0


def test_a_short_answer_is_placed_where_a_long_one_has_no_room_to_grow() -> None:
    rig = Rig()
    engine = rig.engine("a", room_tokens=2_300)
    engine.batch, engine.context_tokens = 1, 1_000
    rig.scheduler.crew(WHOSE)[0].load(engine)

    def fits(request: str, **fields: int) -> bool:
        asked = ask(request, tokens=1_000, **fields)
        return rig.scheduler.consider_place(WHOSE, asked, rig.now).refusal is None

    assert not fits("long")
    assert fits("short", max_new_tokens=64)


def test_where_all_want_short_answers_room_is_soon_free_for_the_next() -> None:
    def waits(most: int) -> float:
        rig = Rig()
        engine = rig.engine("a", room_tokens=10_000)
        rig.schedule(tokens=1_000, max_new_tokens=most)
        engine.batch, engine.context_tokens = 10, 10_000
        rig.scheduler.crew(WHOSE)[0].load(engine)
        return rig.in_flight.room.seconds("another", 1_000, 0, rig.scheduler._rules, False)

    assert waits(8) == pytest.approx(waits(0) * 8 / TOKENS)
