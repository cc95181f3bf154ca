"""Whose turn is next at a simulated engine: the shortest prompt's, but for what it begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from kvstore.kernels import sim_line
from kvstore.kernels.fleet import NONE, SIZES, seconds_of
from kvstore.kernels.inner import BORROWED
from kvstore.kernels.sim_world import REQUEST
from kvstore.planner import spans
from kvstore.planner.policies import OURS
from kvstore.planner.replay import ran
from kvstore.planner.world import Doubt
from tests.planner import clusters
from tests.planner.loads import load_of

BLOCK = 512
LONG = ((1, 40),)  # so many blocks of one kind of token
Prompt = tuple[int, ...]  # its blocks
PROMPTS: tuple[Prompt, ...] = (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 4), (5,)
FEW = 1, 2, 40  # sizes
PROVEN = settings(derandomize=True, deadline=None, max_examples=300)  # the machine may be busy


def _began(*prompts: tuple[tuple[int, int], ...], **changes: Any) -> list[int]:
    """In which order they begin at one engine, of which one comes 10 ms after the other."""
    tokens = [
        tuple(one for one, blocks in parts for _ in range(blocks * BLOCK)) for parts in prompts
    ]
    load = load_of(tokens, [0.01 * at for at in range(len(tokens))], BLOCK)
    cluster = clusters.cluster(dram_bytes=64 << 30)
    done = ran(load, cluster, replace(OURS, **changes), 1, Doubt(noise=0.0))
    return np.argsort(done.requests["began"]).tolist()


def test_the_shortest_has_its_turn_first() -> None:
    assert _began(LONG, ((2, 30),), ((3, 10),), ((4, 2),)) == [0, 3, 2, 1]


def test_what_a_prompt_begins_with_has_its_turn_before_it_the_shortest_first() -> None:
    turns = ((2, 30),), ((2, 30), (3, 4)), ((2, 30), (3, 4), (4, 1))
    assert _began(LONG, *turns, ((5, 10),)) == [0, 1, 2, 3, 4]


def test_where_the_first_that_came_is_first_it_is_so_whatever_others_begin_with() -> None:
    prompts = LONG, ((2, 30), (3, 1)), ((4, 1),), ((2, 30),)
    assert _began(*prompts, shortest_first=0.0) == [0, 1, 2, 3]


class Line(NamedTuple):
    """Of a world what `sim_line` looks at: all of it takes half a minute to compile."""

    requests: Any
    heads: Any
    tails: Any
    blocks: Any
    first: Any
    rules: Any


class Turns(NamedTuple):
    shortest_first: float
    aging: float


@njit(**BORROWED)
def _join(w: Any, r: Any) -> None:
    sim_line.join(w, r, 0)


@njit(**BORROWED)
def _take(w: Any, now: Any) -> Any:
    r = sim_line.next_in_line(w, 0, now)
    if r != NONE:
        sim_line.take_out(w, r, 0)
    return r


def _expected(w: Line, prompts: list[Prompt], waiting: list[int], now: float) -> int:
    """The same, worked out from all that wait."""
    if not waiting:
        return NONE
    sizes, arrival = w.requests["size"], w.requests["arrival"]

    def rank(r: int) -> tuple[float, int]:
        return seconds_of(sizes[r]) - w.rules.aging * (now - arrival[r]), sizes[r]

    def begins(r: int) -> bool:
        shorter = 0 < len(prompts[r]) < len(prompts[first])
        return shorter and prompts[first][: len(prompts[r])] == prompts[r]

    # Of each size the first that came stands for all of it.
    first = min(
        (r for r in waiting if not any(sizes[o] == sizes[r] for o in waiting if o < r)), key=rank
    )
    before = [r for r in waiting if r < first and sizes[r] > sizes[first] and begins(r)]
    return min(before, key=lambda r: (len(prompts[r]), sizes[r]), default=first)


COMES = st.tuples(st.sampled_from(PROMPTS), st.sampled_from(FEW), st.integers(0, 2))


@PROVEN
@given(st.lists(COMES, min_size=8))
def test_turns_are_those_worked_out_from_all_that_wait(some: list[tuple[Prompt, int, int]]) -> None:
    """Behind each that comes so many have their turn, and in the end all."""
    prompts, count = [prompt for prompt, _, _ in some], len(some)
    w = Line(
        requests=np.zeros(count, REQUEST),
        heads=np.full((1, SIZES), NONE, np.int32),
        tails=np.full((1, SIZES), NONE, np.int32),
        blocks=np.array([one for prompt in prompts for one in prompt], np.int32),
        first=spans.offsets(np.array([len(prompt) for prompt in prompts], np.int64)),
        rules=Turns(shortest_first=1.0, aging=0.03),
    )
    w.requests["size"], w.requests["arrival"] = [size for _, size, _ in some], np.arange(count)
    waiting: list[int] = []
    for r, (_, _, turns) in enumerate(some):
        _join(w, r)
        waiting.append(r)
        for _ in range(turns if r < count - 1 else count + 1):
            expected = _expected(w, prompts, waiting, float(r))
            assert _take(w, float(r)) == expected
            if expected != NONE:
                waiting.remove(expected)
    assert (w.heads == NONE).all() and not waiting
