"""A pool's replay finds what a pool would have had, and no more than fits."""

from __future__ import annotations

import random

import pytest

from kvstore.attach.fleet import Fleet
from kvstore.attach.gain import Found, gain, pool_block_tokens, replay
from kvstore.attach.kinds import SGLANG, VLLM
from kvstore.attach.pool import Held, Pool, Size
from kvstore.core.cost import TransferCost
from tests.attach.replica import Replica, replicas

BLOCK, EACH = 32, 64  # tokens of a block of the engines', and of the pool's
TOKEN = 1 << 10
SLOT = (EACH * TOKEN) + 4_096
LARGE = Size(1_000 * SLOT, 0, TOKEN)


def fleet_of(some: list[Replica], prompts: list[tuple[int, list[int], int]]) -> Fleet:
    """What is seen of these prompts, by one who has seen what pieces an engine makes of them."""
    fleet = Fleet([VLLM] * len(some))
    for one in some:
        one.serve(made(300, 50_000), 1, fleet)
    fleet.begin()
    for engine, tokens, answer in prompts:
        some[engine].serve(tokens, answer, fleet)
    return fleet


def found(fleet: Fleet, size: Size = LARGE) -> list[int]:
    said, pool = replay(fleet, size)
    pool.check()
    return [one.tokens for one in said]


def made(count: int, begin: int = 0) -> list[int]:
    return list(range(begin, begin + count))


@pytest.mark.parametrize(("engine", "pool"), [(16, 64), (32, 64), (48, 96), (64, 64), (128, 128)])
def test_a_pool_s_block_is_whole_blocks_of_the_engine_s(engine: int, pool: int) -> None:
    assert pool_block_tokens(engine) == pool


def test_what_one_engine_computed_is_there_for_another() -> None:
    prompts = [(0, made(300), 1), (1, made(300), 1)]
    assert found(fleet_of(replicas(2, 50, BLOCK, 128), prompts)) == [0, 256]


def test_what_an_engine_of_another_kind_computed_is_no_gain() -> None:
    prompts = [(0, made(300), 1), (1, made(300), 1), (0, made(300, 900), 1)]
    fleet = fleet_of(replicas(2, 50, BLOCK, 128), prompts)
    fleet.kinds = [VLLM, SGLANG]
    assert found(fleet) == [0, 0, 0]
    fleet.kinds = [SGLANG, SGLANG]
    assert found(fleet) == [0, 256, 0]


def test_what_an_engine_has_itself_is_no_gain() -> None:
    prompts = [(0, made(96), 1), (0, made(300), 1), (1, made(300), 1)]
    some = replicas(2, 50, BLOCK, 128)
    assert found(fleet_of(some, [*prompts, (1, made(256) + made(64, 900), 1)])) == [0, 0, 256, 0]


def test_the_half_of_a_block_that_an_engine_has_is_not_counted() -> None:
    prompts = [(0, made(300), 1), (1, made(96) + made(40, 900), 1), (1, made(300), 1)]
    assert found(fleet_of(replicas(2, 50, BLOCK, 128), prompts)) == [0, 64, 256 - 96]


def test_an_answer_is_there_for_the_next_turn_elsewhere() -> None:
    answer = [7_000 + one for one in range(99)]
    prompts = [(0, made(100), 100), (1, made(100) + answer + made(50, 900), 1)]
    assert found(fleet_of(replicas(2, 50, BLOCK, 128), prompts))[-1] == 192


def test_a_prompt_s_last_token_is_computed_whatever_is_there() -> None:
    prompts = [(0, made(256), 1), (0, made(256), 1)]
    assert found(fleet_of(replicas(1, 50, BLOCK, 512), prompts)) == [0, 0]


def test_a_larger_pool_finds_more_until_all_is_there() -> None:
    dice = random.Random(3)
    begins = [made(64 * dice.randint(2, 6), 1_000 * one) for one in range(8)]
    prompts = [
        (dice.randrange(2), dice.choice(begins) + made(dice.randint(5, 90), 10_000 + 100 * one), 1)
        for one in range(120)
    ]
    fleet = fleet_of(replicas(2, 40, BLOCK, 128), prompts)
    gained = [sum(found(fleet, Size(slots * SLOT, 0, TOKEN))) for slots in (0, 20, 60, 1_000)]
    assert gained[0] == 0
    assert 0 < gained[1] < gained[2] <= gained[3]
    # SSD holds what DRAM does not, and is read for it.
    size = Size(20 * SLOT, 1_000 * SLOT, TOKEN)
    said, pool = replay(fleet, size)
    assert sum(one.tokens for one in said) == gained[3]
    assert 0 < sum(one.on_ssd for one in said) < gained[3]
    assert pool.evicted == 0


def test_a_pool_keeps_what_is_used_and_holds_no_more_than_fits() -> None:
    pool = Pool(Size(4 * SLOT, 0, TOKEN), EACH)
    pool.store([1, 2, 3], 3)
    pool.store([10], 1)
    assert pool.look_up([1, 2, 3]) == Held(3, 0)
    pool.store([20], 1)
    assert (pool.look_up([10]), pool.look_up([1, 2, 3])) == (Held(0, 0), Held(3, 0))
    pool.store([1, 2, 3, 4, 5], 2)
    assert pool.look_up([1, 2, 3, 4, 5]) == Held(4, 0), "what is behind a hole is not there"
    pool.check()


def test_a_fetch_is_taken_off_and_none_is_made_at_a_loss() -> None:
    pool = Pool(LARGE, EACH)
    slow, fast = TransferCost(0.0, 1e6), TransferCost(0.0, 1e9)
    some = [Found(0, 1_000, 0), Found(0, 0, 0), Found(0, 500, 500)]
    said = gain(some, pool, 1_000, [1e-3], fast, fast)
    assert (said.tokens, said.prompts, said.fetched_bytes) == (1_500, 2, 1_500_000)
    assert said.prefill_seconds == pytest.approx(1.5)
    assert said.first_token_seconds == pytest.approx(1.5 - 1.5e-3 - 0.5e-3)
    lost = gain(some, pool, 10_000, [1e-3], slow, slow)
    assert (lost.first_token_seconds, lost.prefill_seconds, lost.fetched_bytes) == (0.0, 0.0, 0)
    assert (lost.tokens, lost.prompts) == (1_500, 2), "it had them all the same"


def test_what_is_fetched_is_worth_what_its_own_server_would_have_taken() -> None:
    some = [Found(0, 1_000, 0), Found(1, 1_000, 0)]
    link = TransferCost(0.0, 1e7)  # which takes 0.1 s
    said = gain(some, Pool(LARGE, EACH), 1_000, [1e-3, 1e-5], link, link)
    assert said.tokens == 2_000 and said.prefill_seconds == pytest.approx(1.0)
    assert said.fetched_bytes == 1_000_000, "the quick one computes sooner than it fetches"
