"""Made-up prompts that grow: each has the one before in it, whole, and its answer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from kvstore.errors import ConfigError
from kvstore.planner import turns
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.lengths import Uniform
from kvstore.planner.load import Load
from kvstore.planner.synthetic_turns import Agentic, MultiTurn

BUSY = Arrivals(rate=20, duration_s=300)


def by_text(load: Load, place: int) -> list[list[int]]:
    """Requests with the same block at a place, which no two texts share, in order of arrival."""
    texts: dict[int, list[int]] = {}
    for i in range(len(load)):
        texts.setdefault(int(load.blocks[load.first[i] + place]), []).append(i)
    return list(texts.values())


def whole(load: Load, request: int) -> list[int]:
    begin = int(load.first[request])
    return load.blocks[begin : begin + load.input_tokens[request] // load.block_tokens].tolist()


def each_turn_has_the_one_before_in_it(load: Load, texts: list[list[int]]) -> None:
    for text in texts:
        for before, after in itertools.pairwise(text):
            grown = load.input_tokens[after] - load.input_tokens[before]
            assert grown > load.output_tokens[before]
            assert whole(load, after)[: len(whole(load, before))] == whole(load, before)


def test_a_turn_has_the_one_before_in_it_and_conversations_share_the_system_prompt() -> None:
    made = MultiTurn(BUSY, system_tokens=40, user=Uniform(16, 64), think_s=20, block_tokens=16)
    load = made.load(seed=1)
    assert len(set(load.blocks[load.first[:-1]].tolist())) == 1
    assert len(set(load.blocks[load.first[:-1] + 1].tolist())) == 1
    texts = by_text(load, place=2)  # the block the system prompt ends in
    assert max(map(len, texts)) > 8
    each_turn_has_the_one_before_in_it(load, texts)
    seen: set[int] = set()
    for text in texts:
        mine = {block for i in text for block in whole(load, i)[2:]}
        assert not mine & seen, "two conversations share more than the system prompt"
        seen |= mine


def test_conversations_are_as_long_and_as_slow_as_asked() -> None:
    made = MultiTurn(
        Arrivals(rate=50, duration_s=2_000),
        system_tokens=0,
        turns_mean=5,
        think_s=10,
        user=Uniform(16, 64),
        block_tokens=16,
    )
    load = made.load(seed=1)
    texts = by_text(load, place=0)
    # Those that begin in the load's middle are in it from their first turn to their last.
    lives = [text for text in texts if 500 < load.arrival[text[0]] < 1_000]
    assert np.mean([len(text) for text in lives]) == pytest.approx(5, rel=0.05)
    gaps = np.concatenate([np.diff(load.arrival[text]) for text in lives])
    assert gaps.mean() == pytest.approx(10, rel=0.05)
    assert gaps.std() == pytest.approx(10, rel=0.08)


def test_turns_that_come_at_one_time_come_in_their_order() -> None:
    made = MultiTurn(BUSY, system_tokens=0, think_s=0, user=Uniform(16, 64), block_tokens=16)
    texts = by_text(made.load(seed=1), place=0)
    assert max(map(len, texts)) > 8
    each_turn_has_the_one_before_in_it(made.load(seed=1), texts)


def test_a_task_begins_with_its_tools_and_grows_by_what_is_answered() -> None:
    made = Agentic(
        BUSY,
        tools=Uniform(100, 100),
        task=Uniform(50, 50),
        output=Uniform(3, 3),
        result=Uniform(7, 7),
    )
    tokens = made.load(seed=1).input_tokens
    assert tokens.min() == 100 + 50
    assert set((tokens - 150).tolist()) >= {0, 10, 20, 30}
    assert not ((tokens - 150) % (3 + 7)).any()


def test_a_conversation_ends_before_its_context_is_full() -> None:
    made = MultiTurn(BUSY, turns_mean=50, think_s=1, context_tokens_max=3_000)
    load = made.load(seed=1)
    load.check()
    assert 2_000 < load.input_tokens.max() <= 3_000


def test_agents_of_one_kind_share_its_tools_and_calls_of_one_task_all_before() -> None:
    made = Agentic(
        BUSY,
        kinds=3,
        skew=0,
        tools=Uniform(1_000, 1_010),  # 62 whole blocks, and some
        task=Uniform(32, 64),
        block_tokens=16,
    )
    load = made.load(seed=1)
    kinds = by_text(load, place=0)
    assert len(kinds) == 3
    for kind in kinds:
        tools = {tuple(load.blocks[load.first[i] : load.first[i] + 62].tolist()) for i in kind}
        assert len(tools) == 1
        assert len(kind) == pytest.approx(len(load) / 3, rel=0.25)
    tasks = by_text(load, place=63)
    assert len(tasks) > 300
    each_turn_has_the_one_before_in_it(load, tasks)


def test_kinds_of_agents_are_used_as_zipf_has_it() -> None:
    made = Agentic(Arrivals(rate=200, duration_s=500), kinds=4, skew=1.0, calls_mean=1)
    kinds = by_text(made.load(seed=1), place=0)
    uses = np.array(sorted(map(len, kinds), reverse=True))
    assert uses / uses[0] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], rel=0.05)


def test_bursty_beginnings_make_a_burstier_load() -> None:
    def dispersion(burstiness: float) -> float:
        made = Agentic(Arrivals(rate=20, duration_s=2_000, burstiness=burstiness))
        counts = np.bincount(made.load(seed=1).arrival.astype(int) // 10)
        return float(counts.var() / counts.mean())

    assert dispersion(5.0) > 2 * dispersion(1.0)


@pytest.mark.parametrize(
    "kind, settings, story",
    [
        (MultiTurn, {"system_tokens": -1}, "MultiTurn.system_tokens = -1"),
        (MultiTurn, {"turns_mean": 0.5}, "MultiTurn.turns_mean = 0.5: wants a number from 1"),
        (MultiTurn, {"think_s": float("inf")}, "MultiTurn.think_s = inf"),
        (MultiTurn, {"context_tokens_max": 1_000}, "MultiTurn.context_tokens_max = 1000: .* 1,001"),
        (MultiTurn, {"block_tokens": 0}, "MultiTurn.block_tokens = 0"),
        (Agentic, {"kinds": 0}, "Agentic.kinds = 0"),
        (Agentic, {"skew": -1}, "Agentic.skew = -1"),
        (Agentic, {"calls_mean": 0}, "Agentic.calls_mean = 0"),
        (Agentic, {"gap_s": -1}, "Agentic.gap_s = -1"),
        (Agentic, {"context_tokens_max": 0}, "Agentic.context_tokens_max = 0"),
        (Agentic, {"block_tokens": 1 << 20}, "Agentic.block_tokens = 1048576"),
    ],
)
def test_a_setting_that_cannot_be_is_named(kind: Any, settings: dict[str, Any], story: str) -> None:
    with pytest.raises(ConfigError, match=story):
        kind(**settings)


def test_more_texts_at_a_time_than_can_be_held_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"texts of 10000 turns, 1e.06 s apart, are too many"):
        MultiTurn(turns_mean=1e4, think_s=1e6).load(seed=1)


def test_no_prompt_that_fits_is_an_error_that_names_the_context() -> None:
    with pytest.raises(ConfigError, match="context_tokens_max = 900"):
        Agentic(BUSY, context_tokens_max=900).load(seed=1)


def test_a_load_that_begins_cold_turns_the_suite_red(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MultiTurn(Arrivals(rate=50, duration_s=300), think_s=60)

    def first_minute() -> float:
        return float(np.count_nonzero(made.load(seed=1).arrival < 60)) / 60

    assert first_minute() == pytest.approx(50, rel=0.15)
    monkeypatch.setattr(turns, "_LEAD", 0)
    assert first_minute() < 30
