"""One call decides as its parts would: who has what, who is cheapest, and what then waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from kvstore.kernels import decision, expected
from kvstore.kernels.fleet import NONE, Fleet, empty, nothing, seconds_of
from kvstore.kernels.prefill_price import (
    COST,
    FETCHED,
    HANDED,
    PRICED,
    READY,
    SOURCE,
    WAIT,
    WORK,
    unpriced,
)
from kvstore.kernels.room import DEMAND
from kvstore.kernels.rules import OURS, Rules

ENGINES, HOSTS = 24, 12
ANSWER = 500.0  # tokens at most
RULES = OURS._replace(ttft=5.0, aging=0.1, charge=1.0, margin=1.0, latency=1e-3, crowding=0.0)


@njit
def rules_of(row: NDArray[np.float64]) -> Rules:
    return decision.rules_of(row)


def fleet(seed: int) -> Fleet:
    """Engines of several speeds, two on each host, with work that waits or runs."""
    dice, made = np.random.default_rng(seed), empty(ENGINES, HOSTS)
    engines = made.engines
    engines["prefills"] = dice.random(ENGINES) < 0.8
    engines["decodes"] = dice.random(ENGINES) < 0.8
    engines["host"] = np.arange(ENGINES) // 2
    engines["prefill_a"], engines["prefill_b"] = 0.01, dice.choice([1e-4, 3e-4], ENGINES)
    engines["decode_a"], engines["decode_b"] = 0.01, 1e-3
    engines["busy_until"] = dice.choice([0.0, 1.0, 3.0], ENGINES)
    engines["batch"], engines["room"] = (
        dice.integers(0, 50, ENGINES),
        dice.choice([9e3, 1e6], ENGINES),
    )
    engines["alone"] = dice.random(ENGINES) < 0.3
    made.hosts["link_seconds"], made.hosts["ssd_seconds"] = 1e-9, 3e-9
    for number in range(ENGINES):
        for _ in range(int(dice.integers(0, 5))):
            decision.wait_in_line(made.lines, number, float(dice.uniform(0.01, 3.0)), True)
    decision.mark_roles(made)
    return made


class Choice:
    """`decision.choose`, and what it left behind."""

    def __init__(
        self, made: Fleet, seed: int, tokens: float, whole: bool, ttft: float, spare: float = 0.0
    ) -> None:
        dice, blocks = np.random.default_rng(seed), int(tokens // 16)
        self.lengths = np.sort(dice.integers(0, blocks + 1, 8)).astype(np.int64)
        self.in_dram = (self.lengths * dice.random(8)).astype(np.int64)
        self.host_of = np.full(40, -1, np.int32)
        self.host_of[:8] = dice.permutation(HOSTS)[:8]
        self.host_of[3] = -1  # it may not be named
        self.found, self.best = nothing(ENGINES, HOSTS), np.empty(decision.BEST, np.int64)
        self.rows, self.owns = np.empty((decision.BEST, PRICED)), np.empty(decision.BEST, np.int32)
        self.priced: NDArray[Any] = unpriced(ENGINES)
        self.priced[:] = 7.0
        chain = dice.integers(1, 1 << 64, blocks, np.uint64)
        table = expected.empty(1 << 12)
        expected.expect(*table, expected.marked(chain[: blocks // 2]), 5)
        self.own_lengths = np.sort(dice.integers(0, blocks + 1, 4)).astype(np.int64)
        self.of_holder = np.full(10, -1, np.int32)
        self.of_holder[:4] = dice.permutation(ENGINES)[:4]
        self.of_holder[2] = -1  # it is an engine of others
        self.own = np.full(ENGINES, 7, np.int32)
        self.chosen, self.way, self.room, self.decodes, self.step = decision.choose(
            *made, *self.found, *table, expected.marked(chain),
            np.arange(8), self.lengths, self.in_dram, self.host_of, np.arange(4), self.own_lengths,
            self.of_holder, self.own, self.priced, self.best, self.rows, self.owns,
            np.zeros(1, DEMAND), np.array(RULES._replace(ttft=ttft)), 0.5, tokens, ANSWER, 16.0,
            1e4, 0.0, int(dice.integers(ENGINES)), whole, 300.0, 300.0, False, 0.3,
            spare,
        )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), tokens=st.integers(16, 30_000), ttft=st.floats(0.01, 12.0))
def test_the_cheapest_of_those_that_keep_the_target_is_chosen(
    seed: int, tokens: int, ttft: float
) -> None:
    made = fleet(seed)
    choice = Choice(made, seed, float(tokens), True, ttft)
    rows = choice.priced
    needs = tokens + np.where(made.engines["alone"], ANSWER, 0.0)
    may = made.engines["prefills"] & (needs <= made.engines["room"])
    assert (np.isfinite(rows[:, COST]) == may).all()
    begins = np.maximum(rows[:, WAIT], rows[:, READY])
    in_time = np.isfinite(rows[:, COST]) & (begins + RULES.margin * rows[:, WORK] <= ttft)
    if not in_time.any():
        assert choice.chosen == NONE
    else:
        assert in_time[choice.chosen]
        assert rows[choice.chosen, COST] == rows[in_time, COST].min()
    order = np.argsort(rows[:, COST], kind="stable")[: may.sum()]
    wanted = rows[order[: decision.BEST], COST].tolist()
    named = choice.best[choice.best != NONE]
    assert rows[named, COST].tolist() == wanted and len(set(named.tolist())) == len(wanted)
    assert (choice.rows[: len(named)] == rows[named]).all(), "they are explained by other rows"
    assert (choice.owns[: len(named)] == choice.own[named]).all()
    part = Choice(made, seed, float(tokens), False, ttft)
    assert part.chosen == choice.chosen or (rows[part.chosen, COST] == rows[choice.chosen, COST]), (
        "who is explained to changes who is chosen"
    )


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000), tokens=st.integers(16, 30_000), ttft=st.floats(0.01, 3.0),
    spare=st.floats(0.0, 9.0),
)  # fmt: skip
def test_where_nobody_keeps_the_target_it_is_longer_at_who_is_idle(
    seed: int, tokens: int, ttft: float, spare: float
) -> None:
    made = fleet(seed)
    short = Choice(made, seed, float(tokens), True, ttft)
    choice, rows = Choice(made, seed, float(tokens), True, ttft, spare), short.priced
    if short.chosen != NONE:
        assert choice.chosen == short.chosen, "those that keep the shorter one go before"
        return
    comes = np.maximum(RULES.margin * rows[:, READY] + rows[:, WORK], rows[:, HANDED])
    idle = np.isfinite(rows[:, COST]) & (rows[:, WAIT] == 0.0) & (comes <= ttft + spare)
    if not idle.any():
        assert choice.chosen == NONE
    else:
        assert idle[choice.chosen] and rows[choice.chosen, COST] == rows[idle, COST].min()


def test_what_holders_have_is_what_their_hosts_have_or_their_engine() -> None:
    choice = Choice(fleet(1), 1, 1_600.0, True, 9.0)
    local, dram = np.zeros(HOSTS, int), np.zeros(HOSTS, int)
    for holder in range(8):
        if holder != 3:
            local[choice.host_of[holder]] = choice.lengths[holder]
            dram[choice.host_of[holder]] = choice.in_dram[holder]
    assert (choice.found.local == local).all() and (choice.found.dram == dram).all()
    own, coming = np.zeros(ENGINES, int), np.zeros(ENGINES, int)
    coming[5] = 50
    for holder in (0, 1, 3):
        own[choice.of_holder[holder]] = choice.own_lengths[holder]
    assert (choice.own == own).all() and own.any()
    assert (choice.found.coming == np.maximum(coming, own)).all()
    rows = choice.priced[np.isfinite(choice.priced[:, COST])]
    fetched = rows[rows[:, FETCHED] > 0]
    assert len(fetched) and (local[fetched[:, SOURCE].astype(int)] == local.max()).all()


@pytest.mark.parametrize("shortest_first", [True, False])
def test_what_left_a_line_has_left_nothing(shortest_first: bool) -> None:
    made, dice = empty(1, 1), np.random.default_rng(3)
    works = [float(one) for one in 10 ** dice.uniform(-4, 2, 200)]
    sizes = [decision.wait_in_line(made.lines, 0, one, shortest_first) for one in works]
    count, seconds = decision.waiting(made, 0)
    assert count == 200 and seconds == pytest.approx(sum(works))
    for at in dice.permutation(200):
        decision.leave_line(made.lines, 0, sizes[at], works[at])
    assert decision.waiting(made, 0) == (0, 0.0)
    assert not made.lines["ahead"].any() and not made.lines["waiting"].any()


def test_a_line_ranks_work_by_the_least_of_its_size() -> None:
    for work in (1e-5, 0.01, 0.37, 12.0):
        rank = decision.rank_of(work)
        assert rank == seconds_of(0) or rank <= work < 1.26 * rank


def test_who_decodes_is_priced_with_the_request_and_what_it_has_of_it_is_not_moved() -> None:
    made, holders = fleet(2), np.arange(2)
    host_of = made.engines["host"][:2].astype(np.int32)
    found = nothing(ENGINES, HOSTS)

    def decoder(lengths: list[int], in_dram: list[int]) -> tuple[int, bool, float, float]:
        return decision.decoder(
            *made, *found, holders, np.array(lengths), np.array(in_dram), host_of,
            100.0, 200.0, 16.0, 1e4, 512.0, 1.0, 3, NONE, 0.0,
        )  # fmt: skip

    chosen, good, step, size = decoder([0, 0], [0, 0])
    row = made.engines[chosen]
    assert good and row["decodes"] and step == pytest.approx(0.01 + 1e-3 * (row["batch"] + 1))
    assert size == 1e6
    host_of[:] = row["host"]
    assert decoder([5, 5], [3, 3])[3] == 1e6 - 3 * 16e4, "what is on its SSD is not there yet"
    made.engines["decodes"] = False
    assert decoder([0, 0], [0, 0]) == (NONE, False, 0.0, 0.0)


def test_rules_are_what_their_row_says_in_order() -> None:
    rules = Rules(*(1.5 * number for number in range(len(Rules._fields))))
    assert rules_of(np.array(rules)) == rules
