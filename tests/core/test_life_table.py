"""A life table counts who came to an age and who was used there, and says what waiting is worth."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvstore.core import life_table
from kvstore.core.life_table import LifeTable
from kvstore.kernels.keeping import AGES, KNOWN, STARTS, TICK, TICKS_MAX


def passed(table: LifeTable, ticks: int) -> None:
    for _ in range(ticks):
        table.pass_tick()


def test_ages_are_ever_longer_and_begin_with_single_ticks() -> None:
    assert STARTS[:4] == [0, 1, 2, 3] and sorted(set(STARTS)) == STARTS
    assert STARTS[-1] < TICKS_MAX
    table = LifeTable(1)
    passed(table, STARTS[9])
    assert [table.age(table.tick - start) for start in STARTS[:10]] == list(range(10))
    assert table.age(1) == 8


def test_while_nothing_was_used_nothing_is_worth_anything() -> None:
    table = LifeTable(3)
    for _ in range(500):
        table.wait(1)
        table.pass_tick()
    assert not table.worth().any()


def test_counts_are_those_of_a_list_of_lives() -> None:
    """Beside a table that keeps each life and counts from the start."""
    dice = random.Random(3)
    table, kinds = LifeTable(2), (0, 1)
    waiting: list[tuple[int, int]] = []
    came, used = np.zeros((2, AGES)), np.zeros((2, AGES))
    for _ in range(4_000):
        action = dice.random()
        if action < 0.4:
            kind = dice.choice(kinds)
            table.wait(kind)
            came[kind, 0] += 1
            waiting.append((kind, table.tick))
        elif action < 0.7 and waiting:
            kind, since = waiting.pop(dice.randrange(len(waiting)))
            if dice.random() < 0.5:
                table.use(kind, since)
                used[kind, table.age(since)] += 1
            else:
                assert table.lose(kind, since)
        else:
            table.pass_tick()
            for kind, since in waiting:
                if table.tick - since in STARTS:
                    came[kind, STARTS.index(table.tick - since)] += 1
        table.check()
    assert (table._came == came).all() and (table._used == used).all()


def test_worth_is_the_best_chance_for_its_time_over_all_waits() -> None:
    """Half are used right away and the others never: 1/2, for half of a tick or a whole one."""
    table = LifeTable(1)
    for _ in range(10_000):
        table.wait(0)
        table.wait(0)
        table.use(0, table.tick)
        table.pass_tick()
    table.worth()
    chance = table._used[0, 0] / table._came[0, 0]
    assert chance == pytest.approx(0.5)
    worth = table.worth()[0]
    assert worth[0] == pytest.approx(0.5 / (TICK * 0.75), rel=0.01)
    assert worth[1:20].max() < worth[0] / 100, "once unused, it never is"


def test_a_block_that_will_be_used_later_is_worth_more_the_nearer_that_is() -> None:
    table = LifeTable(1)
    late = STARTS[12]
    for tick in range(5_000):
        table.wait(0)
        if tick >= late:
            table.use(0, table.tick - late)
        table.pass_tick()
    worth = table.worth()[0]
    assert (np.diff(worth[:13]) > 0).all()
    assert worth[13] < worth[0]


def test_a_kind_that_is_hardly_known_is_taken_for_half_as_good_as_all() -> None:
    table = LifeTable(2)
    for _ in range(1_000):
        table.wait(0)
        table.use(0, table.tick) if table.tick % 2 else None
        table.pass_tick()
    known, unknown = table.worth()[:, 0]
    assert unknown == pytest.approx(known / 2, rel=0.25)
    assert KNOWN > 1


def test_old_counts_fade() -> None:
    table = LifeTable(1)
    table.wait(0)
    table.pass_tick()
    before = table._came[0, 0]
    assert before == 1
    table.worth()
    assert table._came[0, 0] == before * life_table.FADE


def test_what_waited_too_long_is_not_counted() -> None:
    table = LifeTable(1)
    table.wait(0)
    passed(table, TICKS_MAX)
    assert not table.lose(0, 0)
    table.use(0, 0)
    assert not table._used.any()
    table.check()
