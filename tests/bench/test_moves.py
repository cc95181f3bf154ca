"""The benches that move bytes on one machine, small ones: each has its rows."""

from __future__ import annotations

from typing import Any

import pytest

from bench import local, overlap, tcp, ucx, verify
from bench.overlap import Shape
from bench.report import Report
from kvstore.limits import KiB

FEW: dict[str, Any] = {
    "blocks": 8,
    "block_bytes": 64 * KiB,
    "strip_bytes": (8 * KiB, 4 * KiB),
    "dram": "48MiB",
}
SMALL: dict[Any, Any] = {
    local: local.Sizes(**FEW),
    tcp: tcp.Sizes(**FEW),
    ucx: ucx.Sizes(**FEW),
    verify: verify.Sizes(2, 2, 16, blocks=8, dram="128MiB", first_token=False),
    overlap: (overlap.Sizes(Shape(2, 64, 4, 4, 16, 128), 256, 128, "64MiB"),),
}


@pytest.mark.parametrize("bench", SMALL, ids=lambda one: one.__name__)
def test_a_small_one_ends_with_its_rows_of_so_many_runs(bench: Any) -> None:
    report: Report = bench.run(2, lambda text: None, SMALL[bench])
    assert f"bench.{report.name}" == bench.__name__
    assert {row.runs for row in report.rows} == {2}
    for row in report.rows:
        assert row.sizes and (row.spread or row.ratio is None)
        assert not row.spread or row.ratio == pytest.approx(row.spread.median)
    assert any(row.counted and row.limit for row in report.rows)


def test_a_hand_off_that_nobody_followed_counts_as_one_of_which_nothing_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other process is told of each prompt when its prefill is over."""
    told: list[Any] = []
    follow, answer = overlap._Follower.follow, overlap._Follower.answer

    def late(follower: Any) -> Any:
        if told:
            follow(follower, *told.pop())
        return answer(follower)

    monkeypatch.setattr(overlap._Follower, "follow", lambda _, *what: told.append(what))
    monkeypatch.setattr(overlap._Follower, "answer", late)
    (row,) = overlap.run(2, lambda text: None, SMALL[overlap]).rows
    assert (row.runs, row.ratio, row.also["not_followed"]) == (2, 0.0, 2)
    assert row.limit and row.spread and row.spread.max == 0.0
