"""Verdicts over simulated cells are the worst of them, and a bench of the planner runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import goodput, simulate
from bench.goodput_cells import CLUSTERS, CONVERSATION, MADE, MEMORY, Cell, Setup

CELL = Cell(
    name="a",
    tpot_s=0.1,
    same_as_s=None,
    seed=1,
    rates={"ours": 12.0, "mooncake": 10.0, "random": 4.0},
    limit=15.0,
    tuned={},
    overload_ttft_s=5.0,
    overload_ttft_mooncake_s=20.0,
    overload_goodput=110.0,
    overload_goodput_mooncake=100.0,
    lie_cost=0.01,
    doubt_cost=0.02,
    lengths=(0.0, 0.01, -0.01, 0.0),
)
OTHER = replace(
    CELL,
    name="b",
    rates={"ours": 11.0, "mooncake": 8.0, "random": 10.0},
    overload_ttft_s=10.0,
    overload_goodput=90.0,
)


def test_the_worst_cell_is_told_against_its_own_best_rival() -> None:
    assert [CELL.best_rival, OTHER.best_rival] == ["mooncake", "random"]
    assert goodput.ratio_rate([CELL, OTHER]) == pytest.approx(1.1)
    assert goodput.ttft_overload([CELL, OTHER]) == pytest.approx(2.0)
    assert goodput.goodput_overload([CELL, OTHER]) == pytest.approx(0.9)


def test_one_fixed_rival_is_compared_by_the_geometric_mean_over_cells() -> None:
    found = goodput.fixed((CELL, OTHER))
    assert found["mooncake"] == pytest.approx((1.2 * 11 / 8) ** 0.5)
    assert found["random"] == pytest.approx((3 * 1.1) ** 0.5)
    without = replace(OTHER, rates={"ours": 11.0, "mooncake": 8.0})
    assert goodput.fixed((CELL, without)).keys() == {"mooncake"}, "random was nowhere near"


def test_setups_are_every_workload_on_every_cluster() -> None:
    made = [*goodput.setups(None, 1)]
    assert len(made) == len(MADE) * len(CLUSTERS) * len(MEMORY)
    assert Setup("bimodal", "8+8", "250 GB", 1, None) in made
    assert all(one.workload != CONVERSATION for one in made)


def test_a_million_requests_are_simulated_in_proportion() -> None:
    report = simulate.run(1, lambda _: None, requests=1_000)
    first, *others = report.rows
    assert first.counted and not any(one.counted for one in others)
    assert first.limit == pytest.approx(0.06) and first.sizes["requests"] == 1_000
    assert first.also["share_in_time"] == 1.0 and first.also["peak_bytes"] > 1 << 20
