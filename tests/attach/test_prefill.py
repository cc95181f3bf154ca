"""What a token costs is found in sums over several prompts."""

from __future__ import annotations

import random

import pytest

from kvstore.attach.prefill import LOOKS_MIN, PrefillTime, PrefillTimes


def looked_at(each: float, token: float, looks: int, lengths: tuple[int, int]) -> PrefillTime:
    dice, found = random.Random(1), PrefillTime()
    for _ in range(looks):
        some = [dice.randint(*lengths) for _ in range(dice.randint(1, 5))]
        seconds = sum((each + token * one) * dice.uniform(0.95, 1.05) for one in some)
        found.observe(len(some), sum(some), seconds)
    return found


def test_what_a_prompt_costs_is_told_apart_from_what_its_tokens_do() -> None:
    found = looked_at(0.05, 1e-4, 200, (50, 4_000))
    assert found.per_token == pytest.approx(1e-4, rel=0.05)
    assert found.per_prompt == pytest.approx(0.05, rel=0.1)


def test_tokens_alone_are_found_to_cost_and_prompts_nothing() -> None:
    found = looked_at(0.0, 1e-4, 200, (50, 4_000))
    assert found.per_token == pytest.approx(1e-4, rel=0.05)
    assert 0.0 <= found.per_prompt < 5e-3


@pytest.mark.parametrize(("looks", "lengths"), [(LOOKS_MIN - 1, (50, 4_000)), (100, (500, 500))])
def test_where_nothing_tells_them_apart_it_is_the_mean(
    looks: int, lengths: tuple[int, int]
) -> None:
    found = looked_at(0.05, 1e-4, looks, lengths)
    assert found.per_prompt == 0.0
    assert found.per_token > 1e-4


def test_longer_prompts_that_took_less_are_not_believed() -> None:
    found = PrefillTime()
    for tokens in range(100, 1_000, 50):
        found.observe(1, tokens, 1 / tokens)
    assert found.per_token > 0.0 and found.per_prompt == 0.0


def test_nothing_is_known_of_nothing() -> None:
    found = PrefillTime()
    for one in ((0, 0, 0.0), (1, 0, 1.0), (0, 5, 1.0), (1, 5, 0.0)):
        found.observe(*one)
    assert (found.looks, found.per_token, found.per_prompt) == (0, 0.0, 0.0)


def test_tokens_count_with_the_prompt_at_whose_end_its_seconds_do() -> None:
    """SGLang counts a long prompt's tokens piece by piece, and its seconds once."""
    found = PrefillTimes(1)
    for _ in range(20):
        for piece in range(4):
            found.observe(0, piece == 3, 8_192, 4.0 * (piece == 3))
    assert found.per_token == [pytest.approx(4.0 / (4 * 8_192))]


def test_of_servers_that_are_not_alike_each_has_its_own_time() -> None:
    found = PrefillTimes(3)
    for tokens in range(500, 1_000, 50):
        for server, each in enumerate((5e-5, 1e-3)):
            found.observe(server, 1, tokens, tokens * each)
    first, second, untold = found.per_token
    assert (first, second) == (pytest.approx(5e-5), pytest.approx(1e-3))
    assert first < untold < second, "of which nothing is known, that is as the others"
