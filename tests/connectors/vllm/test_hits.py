"""The scheduler's half by itself: what is loaded of a hit, and how it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvstore.engine.connectors.vllm import scheduler as module
from kvstore.engine.connectors.vllm.lookup import Found
from kvstore.engine.connectors.vllm.price import Prices
from kvstore.engine.connectors.vllm.scheduler import SchedulerSide
from tests.connectors.vllm.test_scheduler import Late, ready, request, side


def hit_of_two_blocks(
    monkeypatch: pytest.MonkeyPatch, reuse: str = "always", policy: str = "recompute"
) -> tuple[SchedulerSide, Any]:
    """A side, and a request of vLLM's to which it has offered 32 tokens."""
    found = Found(chain_blocks=2, windows=(), miss=None, tokens=32)
    monkeypatch.setattr(module, "Lookups", lambda *_: Late())
    monkeypatch.setattr(Late, "result", lambda *_: found)
    here = side(reuse=reuse, self_test=False, audit_rate=0.0)
    here.ready({rank: replace(one, policy=policy) for rank, one in ready().items()})
    one = request("a")
    one.num_preemptions = one.num_output_tokens = 0
    here.arrived(one)
    assert here.matched(one, 0) == (32, True)
    return here, one


def test_of_a_hit_that_vllm_takes_in_part_what_comes_last_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may want whole pages of a size of its own."""
    here, one = hit_of_two_blocks(monkeypatch)
    here.allocated(one, ([7, 8, 9],), 16)
    [load] = here._loads
    assert (load.begin, load.end) == (0, 16)
    [part] = load.parts
    assert (part.first, part.hashes) == (0, here._here.tracked["a"].chains()[0].hashes[:1])


def test_a_hit_that_vllm_does_not_take_is_in_no_estimate_of_what_loading_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another connector had as much: it was neither loaded nor computed for us."""
    here, one = hit_of_two_blocks(monkeypatch)
    here.allocated(one, ([7, 8, 9],), 0)
    here._audits.scheduled(here._here.tracked["a"], here.stats)
    one.num_output_tokens = 1
    here._audits.first_token(here._here.tracked["a"], here.stats)
    assert (here._audits._waited.loaded, here._audits._waited.computed) == (0, 0)


@pytest.mark.parametrize(("policy", "budget"), [("recompute", 0.5), ("fail", 0.0)])
def test_a_load_is_cut_short_only_where_vllm_computes_what_is_missing_then(
    monkeypatch: pytest.MonkeyPatch, policy: str, budget: float
) -> None:
    monkeypatch.setattr(Prices, "budget_seconds", lambda *_: 0.5)
    monkeypatch.setattr(Prices, "pays", lambda *_: True)
    here, one = hit_of_two_blocks(monkeypatch, "priced", policy)
    here.allocated(one, ([7, 8, 9],), 32)
    assert [load.budget_seconds for load in here._loads] == [budget]
