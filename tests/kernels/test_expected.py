"""What is on its way is counted as a dictionary of sets would, and found as plain loops find it."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from kvstore.kernels import expected

ENGINES = 6


@njit
def coming(table: expected.Expected, prints: np.ndarray, found: np.ndarray) -> None:
    expected.coming(table, prints, found)


def chains() -> np.ndarray:
    """Two trunks, each with branches at several depths."""
    dice = np.random.default_rng(5)
    trunks = dice.integers(1, 1 << 64, (2, 16), np.uint64)
    made = np.repeat(trunks, 5, axis=0)
    for number, one in enumerate(made):
        branch = 3 * (number % 5)
        one[branch:] = dice.integers(1, 1 << 64, 16 - branch, np.uint64)
    return np.concatenate([trunks, made])


CHAINS = chains()
PROMPTS = st.tuples(
    st.integers(0, len(CHAINS) - 1), st.integers(0, 16), st.integers(0, ENGINES - 1)
)


@settings(max_examples=200, deadline=None)
@given(prompts=st.lists(PROMPTS, max_size=14), kept=st.integers(0, 14), grown=st.booleans())
def test_each_engine_is_named_with_the_longest_prefix_that_is_on_its_way(
    prompts: list[tuple[int, int, int]], kept: int, grown: bool
) -> None:
    table, model = expected.empty(1 << 11), Counter[tuple[int, int]]()
    for chain, blocks, engine in prompts:
        expected.expect(*table, CHAINS[chain, :blocks], engine)
    if grown:
        wider = expected.empty(1 << 12)
        expected.move(table, wider)
        table = wider
    for chain, blocks, engine in prompts[kept:]:
        expected.settle(*table, CHAINS[chain, :blocks], engine)
    for chain, blocks, engine in prompts[:kept]:
        model.update((int(one), engine) for one in CHAINS[chain, :blocks])
    engines = Counter(one for one, _ in model)
    places = sum(1 if count == 1 else 1 + count for count in engines.values())
    assert table.state[expected.USED] == places
    for chain in CHAINS:
        found, wanted = np.zeros(ENGINES, np.int32), []
        coming(table, chain, found)
        for engine in range(ENGINES):
            there = [(int(one), engine) in model for one in chain]
            wanted.append(there.index(False) if False in there else len(there))
        # Of more lengths than it tells apart it may leave the shortest out.
        lengths = sorted(set(wanted) - {0}, reverse=True)[: expected.LOOKS]
        assert found.tolist() == [one if one in lengths else 0 for one in wanted]
    for chain, blocks, engine in prompts[:kept]:
        expected.settle(*table, CHAINS[chain, :blocks], engine)
    for name in expected.PLACE.names or ():
        assert not table.places[name].any() and table.state[expected.USED] == 0


def test_of_long_prompts_what_is_shared_is_known_to_an_eighth() -> None:
    dice = np.random.default_rng(7)
    trunk = dice.integers(1, 1 << 64, 3_000, np.uint64)
    for shared in (*range(70), 100, 127, 128, 999, 1_000, 2_999, 3_000):
        table = expected.empty(1 << 9)
        other = np.concatenate([trunk[:shared], dice.integers(1, 1 << 64, 40, np.uint64)])
        expected.expect(*table, expected.marked(other), 3)
        found = np.zeros(ENGINES, np.int32)
        coming(table, expected.marked(trunk), found)
        assert shared * 7 / 8 <= found[3] <= shared and not found[:3].any()
        if shared <= 16:
            assert found[3] == shared
    assert len(expected.marked(trunk[:1_024])) == 64


def test_what_was_never_counted_in_is_not_counted_out() -> None:
    table = expected.empty(1 << 8)
    expected.expect(*table, CHAINS[0], 1)
    places, used = table.places.copy(), int(table.state[expected.USED])
    expected.settle(*table, CHAINS[1], 1)
    expected.settle(*table, CHAINS[0], 2)
    assert (table.places == places).all() and table.state[expected.USED] == used
