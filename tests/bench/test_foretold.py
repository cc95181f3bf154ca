"""What the simulator says of a small pool whose engines were measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import chats
from bench.engine import VOCAB, Shape
from bench.fleet import Plan
from bench.foretold import foretell
from bench.listening import Costs
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.engine.namespace import spec_of

MODEL = Shape(2, 64, 2, 2, 32, 176)
COSTS = Costs(PrefillCost(0.02, 4e-4, 5e-8), DecodeCost(0.01, 2e-3, 1e-6))
LOAD = chats.Shape(documents=2, document_tokens=512, chats=8, rate=0.05, pause_seconds=60.0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = MODEL.make(tmp_path_factory.mktemp("model"))
    return SimpleNamespace(plan=Plan(), spec=spec_of(folder))


def test_a_pool_that_forgets_nothing_is_foretold_to_find_all_that_came_before(fleet: Any) -> None:
    coming = chats.load(LOAD, seed=1)
    told = foretell(fleet, MODEL, VOCAB, 1 << 30, coming, COSTS)
    block_tokens = fleet.spec.groups[0].block_tokens
    assert told.hit_share() == pytest.approx(chats.hit_share_max(coming, block_tokens), abs=0.02)


def test_less_memory_is_foretold_to_find_less_and_later(fleet: Any) -> None:
    coming = chats.load(LOAD, seed=1)
    ample, scarce = (
        foretell(fleet, MODEL, VOCAB, size, coming, COSTS) for size in (1 << 30, 1 << 19)
    )
    assert scarce.hit_share() < ample.hit_share() - 0.1
    assert scarce.ttft_seconds() > ample.ttft_seconds()


def test_routers_know_what_engines_cost_and_fetch_what_is_dear_to_compute(fleet: Any) -> None:
    """Who took the engines for the data sheet's would find half of that."""
    block_bytes = 64 * 1_024
    told = foretell(fleet, MODEL, VOCAB, 40 * block_bytes, chats.load(chats.Shape(), 1), COSTS)
    assert told.hit_share() > 0.5
