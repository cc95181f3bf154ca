"""An arena's ranges: whole slabs, nothing left out, and as equal as whole slabs can be."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvstore.core.spread import ALIKE, Range, Spread

SLAB = 64


@pytest.mark.parametrize("nodes", [[0, 1], [0, 2, 5], [1, 3, 4, 6, 7, 8, 10]])
@pytest.mark.parametrize("slabs", [7, 8, 24, 1_001])
def test_ranges_are_whole_slabs_and_equal_as_far_as_those_go(nodes: list[int], slabs: int) -> None:
    spread = Spread.over(nodes, slabs * SLAB, SLAB)
    assert [one.numa_node for one in spread.ranges] == nodes
    assert (spread.ranges[0].first, spread.ranges[-1].last) == (0, slabs * SLAB)
    assert all(one.last == other.first for one, other in pairwise(spread.ranges))
    sizes = [one.last - one.first for one in spread.ranges]
    assert all(size % SLAB == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= SLAB
    assert spread.of_slabs(SLAB) == [
        node for node, size in zip(nodes, sizes, strict=True) for _ in range(size // SLAB)
    ]


def test_what_fills_no_slab_is_in_no_range() -> None:
    assert Spread.over([0, 1], 4 * SLAB + 1, SLAB).ranges[-1].last == 4 * SLAB


@pytest.mark.parametrize("nodes", [[], [0], [3]])
def test_of_one_numa_node_or_none_nothing_is_said(nodes: list[int]) -> None:
    assert Spread.over(nodes, 8 * SLAB, SLAB) == ALIKE
    assert ALIKE.of_slabs(SLAB) == [] and ALIKE.on(0) == []


def test_an_arena_of_fewer_slabs_has_fewer_numa_nodes() -> None:
    three = Spread.over([0, 1, 2, 3], 3 * SLAB, SLAB)
    assert three.of_slabs(SLAB) == [1, 2, 3]
    assert Spread.over([0, 1], SLAB, SLAB) == ALIKE, "of one slab there is nothing to choose"


def test_it_is_the_same_again_from_what_is_told_of_it() -> None:
    told = [(2, 3 * SLAB), (5, 4 * SLAB)]
    spread = Spread.of(told)
    assert spread.ranges == (Range(2, 0, 3 * SLAB), Range(5, 3 * SLAB, 7 * SLAB))
    assert spread == Spread.over([2, 5], 7 * SLAB, SLAB)


def test_a_caller_is_told_where_its_own_bytes_are_and_who_is_elsewhere_of_none() -> None:
    spread = Spread.over([2, 5], 8 * SLAB, SLAB)
    assert spread.on(5) == [(4 * SLAB, 8 * SLAB)]
    assert spread.on(3) == [] and spread.on(None) == []
