"""The ceiling is what one works out by hand, request by request."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from kvstore.core.cost import PrefillCost
from kvstore.core.hardware import RDMA_400, TCP_10, Fabric
from kvstore.core.model_shape import LLAMA3_8B
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.ceiling import ceiling
from kvstore.planner.load import Load
from kvstore.planner.synthetic import Bimodal
from kvstore.planner.synthetic_turns import MultiTurn

COST = PrefillCost(0.01, 1e-4, 1e-9)
BLOCK = 4
# The second has two whole blocks of the first, and the third all of the second and a half more.
PROMPTS = [[1, 2, 3], [1, 2, 4], [1, 2, 4, 5]]
TOKENS = [12, 12, 14]
FOUND = [0, 8, 12]


def made(prompts: list[list[int]], tokens: list[int]) -> Load:
    names = {one: number for number, one in enumerate(dict.fromkeys(chain(*prompts)))}
    first = np.cumsum([0, *map(len, prompts)])
    load = Load(
        BLOCK,
        10.0 * np.arange(len(prompts)),
        np.array(tokens, np.int32),
        np.ones(len(prompts), np.int32),
        np.array([names[one] for prompt in prompts for one in prompt]),
        first,
    )
    load.check()
    return load


def test_what_is_found_is_the_leading_whole_blocks_of_earlier_prompts() -> None:
    assert made(PROMPTS, TOKENS).found_tokens_max().tolist() == FOUND


def test_the_least_is_prefilling_what_is_not_found() -> None:
    most = ceiling(made(PROMPTS, TOKENS), LLAMA3_8B, COST, ())
    whole = [COST.seconds(n, 0) for n in TOKENS]
    rest = [COST.seconds(n - f, f) for n, f in zip(TOKENS, FOUND, strict=True)]
    assert most.prefill_s == pytest.approx(sum(whole))
    assert most.prefill_least_s == pytest.approx(sum(rest))
    assert most.engines == pytest.approx(sum(whole) / 3 / 10.0), "one comes every 10 s"
    assert most.engines_least == pytest.approx(sum(rest) / 3 / 10.0)
    assert (most.reusing, most.fetches) == (2, ())


def test_of_a_prompt_that_was_there_before_one_token_is_computed_all_the_same() -> None:
    most = ceiling(made([[1, 2], [1, 2]], [8, 8]), LLAMA3_8B, COST, ())
    assert most.prefill_least_s == pytest.approx(COST.seconds(8, 0) + COST.seconds(1, 7))


def test_at_the_break_even_a_fetch_takes_as_long_as_what_it_saves() -> None:
    load = made(PROMPTS[:2], TOKENS[:2])
    found = ceiling(load, LLAMA3_8B, COST, ()).break_even
    assert found is not None
    saved = COST.seconds(12, 0) - COST.seconds(4, 8)
    assert 8 * LLAMA3_8B.kv_bytes_per_token / found == pytest.approx(saved)
    for faster, pays in ((1.01, 1.0), (0.99, 0.0)):
        (fetch,) = ceiling(load, LLAMA3_8B, COST, [Fabric("one", faster * found, 0.0)]).fetches
        assert fetch.pays_share == pays
        assert (fetch.saved_share > 0) == bool(pays)


def test_a_slow_link_never_saves_more_than_a_fast_one_nor_more_than_there_is() -> None:
    load = MultiTurn(Arrivals(rate=5.0, duration_s=200.0)).load(1)
    most = ceiling(load, LLAMA3_8B, COST, (TCP_10, RDMA_400))
    slow, fast = most.fetches
    assert 0 <= slow.saved_share <= fast.saved_share
    assert fast.saved_share < 1 - most.prefill_least_s / most.prefill_s


def test_where_no_prompt_begins_as_another_did_there_is_nothing_to_fetch() -> None:
    most = ceiling(Bimodal(Arrivals(duration_s=20.0)).load(1), LLAMA3_8B, COST, (RDMA_400,))
    assert most.prefill_s == most.prefill_least_s and most.reusing == 0
    assert most.break_even is None and most.fetches[0].saved_share == 0


def test_requests_that_all_arrive_at_once_keep_engines_busy_for_no_known_time() -> None:
    load = made([[1]], [4])
    assert ceiling(load, LLAMA3_8B, COST, ()).engines == 0
