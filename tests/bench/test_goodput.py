"""Verdicts over simulated cells are the worst of them, and a bench of the planner runs."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from bench import __main__ as command
from bench import goodput, goodput_cells, simulate
from bench.goodput_cells import (
    CLUSTERS,
    CONVERSATION,
    MADE,
    MEMORY,
    Cell,
    Overload,
    Setup,
    overload,
)
from kvstore.kernels.rules import OURS
from kvstore.kernels.sim_world import REFUSED, REQUEST, SERVED
from kvstore.planner import replay

CELL = Cell(
    name="a",
    tpot_s=0.1,
    same_as_s=None,
    seed=1,
    rates={"ours": 12.0, "mooncake": 10.0, "random": 4.0},
    limit=15.0,
    tuned={},
    overload=Overload(5.0, 4.0, 95.0, 110.0),
    overload_mooncake=Overload(20.0, 6.0, 100.0, 100.0),
    lie_cost=0.01,
    doubt_cost=0.02,
    lengths=(0.0, 0.01, -0.01, 0.0),
)
OTHER = replace(
    CELL,
    name="b",
    rates={"ours": 11.0, "mooncake": 8.0, "random": 10.0},
    overload=Overload(10.0, 3.0, 105.0, 90.0),
)


def test_the_worst_cell_is_told_against_its_own_best_rival() -> None:
    assert [CELL.best_rival, OTHER.best_rival] == ["mooncake", "random"]
    assert goodput.ratio_rate([CELL, OTHER]) == pytest.approx(1.1)
    assert goodput.ttft_overload([CELL, OTHER]) == pytest.approx(2.0)
    assert goodput.goodput_overload([CELL, OTHER]) == pytest.approx(0.9)
    assert goodput.goodput_overload_of_all([CELL, OTHER]) == pytest.approx(0.95)
    assert goodput.ttft_overload_filled([CELL, OTHER]) == pytest.approx(1.5)


def test_what_must_hold_counts_with_its_goal_and_the_rest_is_told() -> None:
    rows = {row.name: row for row in goodput._verdicts([CELL, replace(OTHER, doubt_cost=0.03)])}
    counted = {name: row.goal for name, row in rows.items() if row.counted}
    assert counted == {
        "rate, worst cell": 1.05,
        "rate, mean to mooncake": 1.10,
        "overload, TTFT of Mooncake's to ours": 3.0,
        "overload, goodput to Mooncake's": 1.0,
        "predictions 30 % low, share kept": 0.98,
        "predictions up to 30 % off either way, share kept": 0.98,
        "worst quartile of length, against the best rival": 0.98,
    }
    assert rows["predictions 30 % low, share kept"].ratio == pytest.approx(0.99)
    assert rows["predictions up to 30 % off either way, share kept"].ratio == pytest.approx(0.97)
    assert not rows["overload, goodput from the first request on"].counted


def test_one_fixed_rival_is_compared_by_the_geometric_mean_over_cells() -> None:
    found = goodput.fixed((CELL, OTHER))
    assert found["mooncake"] == pytest.approx((1.2 * 11 / 8) ** 0.5)
    assert found["random"] == pytest.approx((3 * 1.1) ** 0.5)
    without = replace(OTHER, rates={"ours": 11.0, "mooncake": 8.0})
    assert goodput.fixed((CELL, without)).keys() == {"mooncake"}, "random was nowhere near"


@pytest.mark.parametrize(("filled_s", "since"), [(4.0, 4), (100.0, 5)])
def test_of_far_too_many_those_count_that_come_once_lines_have_filled(
    filled_s: float, since: int
) -> None:
    requests = np.zeros(11, REQUEST)  # one a second, every second of them in time
    requests["arrival"] = np.arange(11)
    requests["first_token"] = requests["arrival"] + np.where(np.arange(11) < since, 9.0, 2.0)
    requests["finished"], requests["tokens"] = requests["first_token"] + 0.5, 100
    requests["output"], requests["status"] = 10, np.where(np.arange(11) % 2, SERVED, REFUSED)
    world: Any = SimpleNamespace(requests=requests, rules=OURS)
    found = overload(world, filled_s)
    assert found.ttft_filled_s == 2.0 and found.ttft_s == pytest.approx((2 * 9.0 + 3 * 2.0) / 5)
    assert found.goodput_filled == pytest.approx(110 * 3 / (10 - since))  # those at 5, 7 and 9
    assert found.goodput == pytest.approx(110 * 5 / 10)


def begun(setup: Setup) -> list[Cell]:
    """Stands for what takes minutes, but for the first. A file says that it began."""
    assert setup.trace, "where to say it"
    (setup.trace / setup.name).touch()
    time.sleep(0.0 if setup == next(iter(goodput.setups(setup.trace, 1))) else 60.0)
    return [CELL]


@pytest.mark.parametrize("stopped", [KeyboardInterrupt, SystemExit])
def test_who_stops_the_bench_stops_its_processes_and_no_other_cell_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stopped: type[BaseException]
) -> None:
    monkeypatch.setattr(goodput_cells, "cells", begun)
    monkeypatch.setattr(replay, "compiled", lambda: True)
    monkeypatch.setattr(goodput, "_check", lambda _: None)

    def stop(_: str) -> None:
        raise stopped

    with pytest.raises(stopped):
        goodput.run(1, stop, trace=tmp_path)
    assert not any(psutil.pid_exists(one.pid or 0) for one in multiprocessing.active_children())
    assert len([*tmp_path.iterdir()]) <= 1 + goodput.PROCESSES


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{}\n", "mooncake (timestamp, ")],
    ids=["absent", "no trace"],
)
def test_a_trace_that_is_none_is_told_before_anything_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text)
    assert command.main(["goodput", "--trace", str(path)]) == 2
    assert said in capsys.readouterr().err


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
