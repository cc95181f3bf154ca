"""A ratio says how far what is measured is from its floor, and its goal says so too.

What each bench times is done once, so that it finds what it made; seconds are given here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from bench import first_token, full, local, noreuse, publish, ssd, strips, tcp, ucx, verify, warm
from bench.engine import Shape
from bench.report import Goal, Report
from bench.rounds import Rounds, Way
from kvstore.limits import KiB

FEW: dict[str, Any] = {"blocks": 4, "block_bytes": 64 * KiB, "strip_bytes": (8 * KiB,)}
SHAPE = Shape(2, 64, 4, 4, 16, 128)


def quiet(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Given:
    """What `measure` finds: seconds in each round, of ours and of everything else."""

    ours: str
    seconds: float

    def __call__(
        self,
        ways: Mapping[str, Way],
        runs: int,
        say: Callable[[str], None],
        *,
        before: Callable[[int], None] | None = None,
    ) -> Rounds:
        assert self.ours in ways
        for _ in range(runs):
            if before is not None:
                before(0)
            for way in ways.values():
                way()
        seconds = {name: self.seconds if name == self.ours else 1.0 for name in ways}
        return Rounds({name: [each, each] for name, each in seconds.items()})


# The bench, a small one of it, and the name of the way that is ours.
AT_LEAST: dict[Any, tuple[Any, str]] = {
    local: (local.Sizes(**FEW, dram="48MiB"), "call"),
    tcp: (tcp.Sizes(**FEW, dram="48MiB"), "call"),
    ucx: (ucx.Sizes(**FEW, dram="48MiB"), "call"),
    strips: (strips.Sizes(1 << 18, 2, 2, 64, block_tokens=(16,)), "move"),
}
AT_MOST: dict[Any, tuple[Any, str]] = {
    full: (full.Sizes(40, 64 * KiB, "8MiB", "1MiB"), "full"),
    publish: (publish.Sizes(SHAPE, 130, 70), "with"),
}
SHARE: dict[Any, tuple[Any, str]] = {
    verify: (verify.Sizes(2, 2, 16, blocks=8, dram="128MiB", first_token=False), "fetch")
}
RATIOS = [
    *((bench, seconds, 1 / seconds) for bench in AT_LEAST for seconds in (2.0, 1.0)),
    *((bench, seconds, seconds) for bench in AT_MOST for seconds in (2.0, 1.0)),
    *((bench, seconds, 1 - 1 / seconds) for bench in SHARE for seconds in (2.0, 1.0)),
]


@pytest.mark.parametrize(
    ("bench", "seconds", "ratio"),
    RATIOS,
    ids=[f"{bench.__name__} {seconds:g}" for bench, seconds, _ in RATIOS],
)
def test_who_takes_twice_as_long_as_the_floor_misses_the_goal_and_who_is_as_quick_has_it(
    monkeypatch: pytest.MonkeyPatch, bench: Any, seconds: float, ratio: float
) -> None:
    sizes, ours = (AT_LEAST | AT_MOST | SHARE)[bench]
    monkeypatch.setattr(bench, "measure", Given(ours, seconds))
    only = {"only": "cpu"} if bench is publish else {}
    report: Report = bench.run(1, quiet, sizes, **only)
    counted = [row for row in report.rows if row.counted]
    assert counted and {row.ratio for row in counted} == {ratio} and report.ratio == ratio
    assert all(row.spread is not None and row.spread.median == ratio for row in counted)
    assert report.holds == (seconds == 1.0)
    assert (report.sense is Goal.AT_LEAST) == (bench in AT_LEAST)
    for row in counted:  # in milliseconds; a share is of the whole
        value = seconds - 1 if bench is verify else seconds
        assert (row.value, row.limit) == (1e3 * value, 1e3 * (seconds if bench is verify else 1))


def test_a_disk_that_takes_twice_as_long_as_fio_has_half_of_its_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssd, "measure", Given("ours", 2.0))
    fio: Any = SimpleNamespace(fastest=lambda _: "psync", seconds=lambda *_: 1.0)
    sizes = ssd.Sizes(file_bytes=10**9)
    row = ssd._row("write", lambda: 2.0, fio, "write", sizes, 1, quiet)
    assert (row.counted, row.value, row.limit, row.ratio) == (True, 0.5, 1.0, 0.5)


def test_a_vllm_that_takes_twice_as_long_with_its_connector_has_half_of_its_throughput(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noreuse, "measure", Given("with", 2.0))
    figures = [{"saved_blocks": each, "hit_tokens": 0, "late_saves": 0} for each in (0, 9)]
    left = iter(figures)
    vllm: Any = SimpleNamespace(
        figures=lambda: next(left), run=lambda *_: 1.0, run_without=lambda *_: 1.0
    )
    load = noreuse.Load("replies", 2, 60, 40)
    rows = noreuse._rows(vllm, vllm, load, SHAPE, 1, quiet)
    assert [(row.counted, row.value, row.limit, row.ratio) for row in rows] == [
        (True, 100.0, 200.0, 0.5),
        (False, 100.0, 200.0, 0.5),
    ]


FOUND = {"query_tokens": 9.0, "hit_tokens": 8.0, "failed_tokens": 0.0}
PATIENT = Rounds({"without": [1.0, 1.0], "warm": [2.0, 2.0], "slow": [2.0, 2.0]})


@pytest.mark.parametrize("pool", ["warm", "slow"])
def test_a_first_token_that_takes_twice_as_long_with_the_pool_is_twice_as_late(pool: str) -> None:
    row = warm._row(pool, PATIENT, FOUND, warm.Sizes(), 1.0)
    assert (row.counted, row.value, row.limit, row.ratio) == (True, 2e3, 1e3, 2.0)


@pytest.mark.parametrize("pool", ["warm", "slow"])
def test_a_pool_of_which_nothing_was_loaded_is_no_row(pool: str) -> None:
    with pytest.raises(RuntimeError, match=f"nothing was loaded from the {pool} pool"):
        warm._row(pool, PATIENT, FOUND | {"hit_tokens": 0.0}, warm.Sizes(), 1.0)


def test_what_verification_is_of_a_first_token_is_taken_within_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the medians of either it would be 0.75 here."""
    rounds = Rounds({"verified": [2.0, 4.0, 10.0], "unverified": [1.0, 3.0, 1.0]})
    monkeypatch.setattr(first_token, "SHAPE", replace(first_token.SHAPE, layers=2, hidden=64))
    monkeypatch.setattr(first_token, "TOKENS", 128)
    monkeypatch.setattr(first_token, "measure", lambda *_: rounds)
    row = first_token.first_token(3, quiet)
    assert row.spread and row.ratio == row.spread.median == 0.5
