"""Costs by a few measured steps: right where those are clean, and of a sane shape where not."""

from __future__ import annotations

import math
import random

import pytest

from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.measured import APART, decode_cost, prefill_cost
from kvstore.core.model_shape import LLAMA3_8B, QWEN25_7B
from kvstore.errors import Invalid

RATIO = LLAMA3_8B.attention_flops / (2 * LLAMA3_8B.layer_parameters)
PREFILL = PrefillCost(0.02, 1.1e-4, 3 * RATIO * 1.1e-4)
DECODE = DecodeCost(0.014, 1e-4, 0.5 * 2 * RATIO * 1e-4)
PROMPTS = [(16 << power, 0) for power in range(9)]
BATCHES = [(1, 16 << power) for power in range(9)] + [(8, 160), (64, 8_000)]


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e4])
def test_clean_steps_say_what_steps_cost_on_machines_of_any_speed(factor: float) -> None:
    prompts = [(n, p, factor * PREFILL.seconds(n, p)) for n, p in PROMPTS]
    batches = [(b, c, factor * DECODE.seconds(b, c)) for b, c in BATCHES]
    prefill, decode = prefill_cost(LLAMA3_8B, prompts), decode_cost(LLAMA3_8B, batches)
    for work in [*PROMPTS, (100, 1_000), (4_000, 4_000)]:
        assert prefill.seconds(*work) == pytest.approx(factor * PREFILL.seconds(*work), rel=0.1)
    for work in [*BATCHES, (32, 4_000)]:
        assert decode.seconds(*work) == pytest.approx(factor * DECODE.seconds(*work), rel=0.1)


@pytest.mark.parametrize("seed", range(40))
def test_times_that_others_stretched_by_half_mislead_by_little_more(seed: int) -> None:
    dice = random.Random(seed)
    prompts = [(n, p, PREFILL.seconds(n, p) * dice.uniform(1.0, 1.5)) for n, p in PROMPTS]
    found = prefill_cost(LLAMA3_8B, prompts)
    for *work, most in [(200, 0, 1.8), (4_096, 0, 1.8), (100, 4_000, 2.0), (16_384, 0, 2.5)]:
        assert 0.65 < found.seconds(*work) / PREFILL.seconds(*work) < most


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_free_and_attention_costs_what_its_flops_may_whatever_was_measured(
    seed: int,
) -> None:
    dice = random.Random(seed)
    count = dice.randint(1, 5)
    runs = [
        (1 << dice.randint(0, 16), dice.choice([0, 1_000]), math.exp(dice.uniform(-9, 5)))
        for _ in range(count)
    ]
    prefill = prefill_cost(LLAMA3_8B, runs)
    assert min(prefill.a, prefill.b, prefill.c) > 0
    assert 1 / APART <= prefill.c / (prefill.b * RATIO) * (1 + 1e-9) <= APART * (1 + 1e-6)
    decode = decode_cost(QWEN25_7B, runs)
    assert min(decode.a, decode.b, decode.c) > 0


def test_one_step_alone_is_what_it_took() -> None:
    assert prefill_cost(LLAMA3_8B, [(64, 0, 0.5)]).seconds(64, 0) == pytest.approx(0.5, rel=0.2)


def test_without_a_step_nothing_is_known() -> None:
    with pytest.raises(Invalid, match="no step was measured"):
        prefill_cost(LLAMA3_8B, [])
    with pytest.raises(Invalid, match="no step was measured"):
        decode_cost(LLAMA3_8B, [])
