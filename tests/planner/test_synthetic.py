"""Made-up prompts that stand alone: as many, as long, and as alike as was asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from kvstore.errors import ConfigError
from kvstore.planner import bounds, spans
from kvstore.planner.arrivals import Arrivals
from kvstore.planner.lengths import LogNormal, Uniform
from kvstore.planner.load import Load
from kvstore.planner.synthetic import Bimodal, PrefixTree
from kvstore.planner.synthetic_turns import Agentic, MultiTurn

SHORT = Arrivals(rate=10, duration_s=100)
KINDS = (Bimodal, PrefixTree, MultiTurn, Agentic)
MADE = [
    Bimodal(SHORT),
    Bimodal(SHORT, system_tokens=700, block_tokens=16),
    Bimodal(SHORT, long_share=1.0, system_tokens=1, block_tokens=1, long=Uniform(1, 9)),
    PrefixTree(SHORT),
    PrefixTree(SHORT, depth=0, node_tokens=5, block_tokens=16),
    PrefixTree(SHORT, depth=4, branching=3, node_tokens=37, block_tokens=16),
    PrefixTree(SHORT, depth=4, branching=1, node_tokens=3, block_tokens=16, suffix=Uniform(1, 40)),
    MultiTurn(SHORT),
    MultiTurn(SHORT, system_tokens=0, turns_mean=20, think_s=1, block_tokens=16),
    MultiTurn(SHORT, turns_mean=1, think_s=0),
    Agentic(SHORT),
    Agentic(SHORT, kinds=1, gap_s=0, block_tokens=64, context_tokens_max=20_000),
]


def hit_tokens_by_ids(load: Load) -> int:
    """Tokens of each request's leading whole blocks that were used before it."""
    seen: set[int] = set()
    found = 0
    for i, tokens in enumerate(load.input_tokens.tolist()):
        blocks = load.blocks[load.first[i] : load.first[i + 1]].tolist()
        whole = blocks[: tokens // load.block_tokens]
        for block in whole:
            if block not in seen:
                break
            found += load.block_tokens
        seen.update(whole)
    return found


@pytest.mark.parametrize("made", MADE, ids=str)
def test_a_made_up_load_is_sound_and_its_seed_decides(made: Any) -> None:
    load = made.load(seed=1)
    load.check()
    assert load == made.load(seed=1)
    assert load != made.load(seed=2)


@pytest.mark.parametrize("made", MADE, ids=str)
def test_the_largest_hit_rate_is_what_looking_at_one_request_after_another_gives(made: Any) -> None:
    load = made.load(seed=3)
    share = hit_tokens_by_ids(load) / int(load.input_tokens.sum())
    assert load.describe().hit_rate_max == pytest.approx(share)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_is_as_asked_from_the_beginning_to_the_end(kind: Any) -> None:
    load = kind(Arrivals(rate=50, duration_s=2_000)).load(seed=4)
    assert load.describe().rate == pytest.approx(50, rel=0.05)
    quarters = np.histogram(load.arrival, bins=4, range=(0, 2_000))[0]
    assert quarters == pytest.approx(25_000, rel=0.1)


@pytest.mark.parametrize("kind", [Bimodal, PrefixTree])
def test_burstiness_is_that_of_all_requests(kind: Any) -> None:
    load = kind(Arrivals(rate=50, duration_s=2_000, burstiness=3)).load(seed=5)
    gaps = np.diff(load.arrival)
    assert gaps.std() / gaps.mean() == pytest.approx(3, rel=0.1)


def test_so_many_prompts_are_long() -> None:
    load = Bimodal(
        Arrivals(rate=100, duration_s=100),
        long_share=0.2,
        short=Uniform(10, 20),
        long=Uniform(1_000, 2_000),
        system_tokens=5,
    ).load(seed=1)
    short, long = load.input_tokens <= 25, load.input_tokens >= 1_005
    assert (short | long).all()
    assert long.mean() == pytest.approx(0.2, abs=0.02)


def test_prompts_that_stand_alone_share_the_whole_blocks_of_the_system_prompt_only() -> None:
    load = Bimodal(SHORT, system_tokens=1_100).load(seed=1)
    often = np.bincount(load.blocks)
    assert often[:2].tolist() == [len(load)] * 2
    assert often[2:].max() == 1
    assert Bimodal(SHORT).load(seed=1).describe().hit_rate_max == 0


def test_prompts_share_with_the_leaves_beside_theirs_what_is_above_both() -> None:
    tree = PrefixTree(
        Arrivals(rate=100, duration_s=100),
        depth=2,
        branching=3,
        node_tokens=1_000,
        skew=0,
        suffix=Uniform(1, 500),
        block_tokens=512,
    )
    load = tree.load(seed=1)
    # tokens   0 ... root ... 1,000 ... level 1 ... 2,000 ... level 2 ... 3,000 ... suffix
    # blocks   |   root   | level 1  | level 1 | level 2 |  level 2  | own
    place = spans.positions(load.first)
    kinds = [len(set(load.blocks[place == i].tolist())) for i in range(6)]
    assert kinds[:5] == [1, 3, 3, 9, 9]
    assert kinds[5] == len(load), "what a leaf's last tokens share a block with differs"


def test_leaves_are_used_as_zipf_has_it() -> None:
    tree = PrefixTree(
        Arrivals(rate=1_000, duration_s=100), depth=2, branching=4, node_tokens=512, skew=1.0
    )
    load = tree.load(seed=1)
    uses = Counter(load.blocks[load.first[:-1] + 2].tolist())  # of the leaf's block
    shares = np.array([count for _, count in uses.most_common()]) / len(load)
    harmonic = sum(1 / rank for rank in range(1, 17))
    assert shares[:4] == pytest.approx([1 / rank / harmonic for rank in range(1, 5)], rel=0.05)


@pytest.mark.parametrize(
    "kind, settings, story",
    [
        (Bimodal, {"long_share": 1.5}, "Bimodal.long_share = 1.5: wants a number from 0 to 1"),
        (Bimodal, {"long_share": float("nan")}, "Bimodal.long_share = nan"),
        (Bimodal, {"system_tokens": -1}, "Bimodal.system_tokens = -1"),
        (Bimodal, {"block_tokens": 0}, "Bimodal.block_tokens = 0: wants a whole number from 1"),
        (Bimodal, {"block_tokens": True}, "Bimodal.block_tokens = True"),
        (PrefixTree, {"depth": -1}, "PrefixTree.depth = -1"),
        (PrefixTree, {"branching": 0}, "PrefixTree.branching = 0"),
        (PrefixTree, {"node_tokens": 0}, "PrefixTree.node_tokens = 0"),
        (PrefixTree, {"skew": -1}, "PrefixTree.skew = -1"),
        (PrefixTree, {"block_tokens": 0}, "PrefixTree.block_tokens = 0"),
        (PrefixTree, {"depth": 64, "branching": 9}, "PrefixTree.depth = 64: 9 .* are too many"),
    ],
)
def test_a_setting_that_cannot_be_is_named(kind: Any, settings: dict[str, Any], story: str) -> None:
    with pytest.raises(ConfigError, match=story):
        kind(**settings)


def test_prompts_longer_than_can_be_planned_with_are_refused() -> None:
    most = bounds.TOKENS_MAX
    long = LogNormal(most, sigma=0, most=most)
    with pytest.raises(ConfigError, match="input_tokens: a prompt of 16,777,226 was drawn"):
        Bimodal(SHORT, long_share=1, long=long, system_tokens=10).load(seed=1)


def test_more_blocks_than_can_be_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "BLOCKS_MAX", 1_000)
    with pytest.raises(ConfigError, match=r"block_tokens = 512: .*, at most 1,000 are held"):
        Bimodal(SHORT).load(seed=1)
