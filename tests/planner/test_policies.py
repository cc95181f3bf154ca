"""Policies are found by name, gated or raw, and tuned by grids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore.errors import ConfigError
from kvstore.kernels import rivals
from kvstore.planner.policies import OURS, POLICIES, RIVALS, ROUTERS, grid, named


def test_there_are_ours_and_nine_rivals_numbered_as_the_kernels_have_them() -> None:
    assert [*POLICIES] == [*ROUTERS] and len(RIVALS) == 9
    for number, name in enumerate(ROUTERS):
        assert getattr(rivals, name.upper().replace("-", "_")) == number


def test_a_rival_by_name_has_the_gate_and_raw_it_has_not() -> None:
    for rival in RIVALS:
        gated, raw = named(rival.name), named(f"raw-{rival.name}")
        assert (gated.gated, gated.check, raw.gated, raw.check) == (1, 1, 0, 0)
        assert gated.early == (rival.name == "mooncake")
        assert raw == replace(rival, name=f"raw-{rival.name}"), "told apart wherever both are"
    assert named("ours") is OURS
    with pytest.raises(ConfigError, match="--policy fifo: is one of ours, random"):
        named("fifo")
    with pytest.raises(ConfigError, match="--policy raw-ours: ours is its gate"):
        named("raw-ours")


def test_a_grid_begins_with_what_it_is_given_and_repeats_nothing() -> None:
    assert grid(OURS) == (OURS,)
    for rival in RIVALS:
        some = grid(rival.with_gate())
        assert some[0] == rival.with_gate()
        assert len(set(some)) == len(some) >= 2
        assert {(one.router, one.gated, one.check) for one in some} == {(rival.router, 1.0, 1.0)}
        assert all(len(one.knobs) <= rivals.KNOBS for one in some)
