from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvstore.kernels.fleet import NONE, decode_seconds
from kvstore.kernels.room import DEMAND, PARKED, first_that_fits, room_seconds, want_room
from tests.kernels.fleets import fleet


def demand() -> np.void:
    return np.zeros(1, DEMAND)[0]


def test_there_is_no_wait_for_room_while_all_that_want_it_have_it() -> None:
    made, wanted = fleet(2), demand()
    want_room(wanted, 300_000.0, 1.0)
    assert room_seconds(made, wanted, 100_000.0, 0.0, 500.0, 1.0, False) == 0.0


def test_a_wait_for_room_is_what_lacks_over_what_full_engines_free() -> None:
    """By Little's law: all that they have room for, in the time of one sequence."""
    made, wanted = fleet(1), demand()
    made.engines["context"], made.engines["batch"] = 400_000, 30
    want_room(wanted, 20_000.0, 1.0)
    lifetime = 500 * float(decode_seconds(made.engines[0], 30.0, 400_000.0))
    waits = room_seconds(made, wanted, 40_000.0, 0.0, 500.0, 1.0, False)
    assert waits == pytest.approx(60_000 / (400_000 / lifetime))


def test_an_idle_fleet_s_burst_is_waited_for_and_not_for_ever() -> None:
    made, wanted = fleet(1), demand()
    want_room(wanted, 400_000.0, 1.0)
    assert 0.0 < room_seconds(made, wanted, 20_000.0, 0.0, 500.0, 1.0, True) < 5.0


def test_there_is_no_room_where_a_step_would_take_too_long_for_one_more() -> None:
    made, wanted = fleet(1), demand()
    made.engines["batch"], made.engines["context"] = 100, 50_000
    step = float(decode_seconds(made.engines[0], 100.0, 50_000.0))
    assert room_seconds(made, wanted, 500.0, 0.0, 500.0, step + 0.1, False) == 0.0
    assert room_seconds(made, wanted, 500.0, 0.0, 500.0, step, False) > 0.0


def test_the_smaller_ones_go_first_so_nobody_waits_for_the_larger() -> None:
    made, wanted = fleet(1), demand()
    made.engines["context"] = 390_000
    want_room(wanted, 80_000.0, 1.0)
    assert room_seconds(made, wanted, 5_000.0, 0.0, 500.0, 1.0, False) == 0.0
    crowded = room_seconds(made, wanted, 5_000.0, 0.0, 500.0, 1.0, True)
    assert crowded > 0.0, "in a crowd all that came before go first"


def test_where_nobody_decodes_there_is_no_wait_and_where_nothing_fits_it_has_no_end() -> None:
    made, wanted = fleet(1), demand()
    made.engines["room"] = 0
    assert room_seconds(made, wanted, 1.0, 0.0, 500.0, 1.0, False) == np.inf
    made.engines["decodes"] = False
    assert room_seconds(made, wanted, 1.0, 0.0, 500.0, 1.0, False) == 0.0


def test_what_no_engine_has_place_for_waits_for_ever_however_much_all_have_together() -> None:
    made, wanted = fleet(3), demand()
    made.engines["room"] = 100_000, 250_000, 100_000
    assert room_seconds(made, wanted, 250_000.0, 0.0, 500.0, 1.0, False) == 0.0
    assert room_seconds(made, wanted, 250_001.0, 0.0, 500.0, 1.0, False) == np.inf
    assert room_seconds(made, wanted, 1_000.0, 250_000.0, 500.0, 1.0, False) == 0.0
    assert room_seconds(made, wanted, 1_000.0, 250_001.0, 500.0, 1.0, False) == np.inf, "its answer"


def test_an_engine_that_says_that_steps_take_no_time_is_no_reason_to_fail() -> None:
    made, wanted = fleet(1), demand()
    for name in "abc":
        made.engines[f"decode_{name}"] = 0.0
    want_room(wanted, 900_000.0, 1.0)
    waits = room_seconds(made, wanted, 1_000.0, 0.0, 500.0, 1.0, True)
    assert waits == pytest.approx(0.0, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.integers(1, 200_000), max_size=20), st.randoms(use_true_random=False))
def test_who_wanted_room_and_has_it_is_counted_no_more(prompts: list[int], dice: Random) -> None:
    wanted = demand()
    for tokens in prompts:
        want_room(wanted, float(tokens), 1.0)
    dice.shuffle(prompts)
    for tokens in prompts:
        want_room(wanted, float(tokens), -1.0)
    assert not wanted["ahead"].any()


def parked(*waiting: tuple[float, float]) -> NDArray[np.void]:
    """Those who wait: tokens, and when they came."""
    found = np.zeros(len(waiting), PARKED)
    for row, (tokens, came) in zip(found, waiting, strict=True):
        row["tokens"], row["grows"], row["came"], row["tpot"] = tokens, 300.0, came, 1.0
    return found


def test_the_smallest_that_fits_is_served_first_and_in_a_crowd_the_first_that_came() -> None:
    engine, waiting = fleet(1).engines[0], parked((900.0, 0.0), (500.0, 1.0), (800.0, 0.5))
    assert first_that_fits(engine, waiting, 2.0, 100.0, False) == 1
    assert first_that_fits(engine, waiting, 2.0, 100.0, True) == 0
    engine["batch"], engine["context"] = 1, engine["room"] - 1_150.0
    assert first_that_fits(engine, waiting, 2.0, 100.0, True) == 2, "it is what fits"
    engine["context"] = engine["room"]
    assert first_that_fits(engine, waiting, 2.0, 100.0, True) == NONE


def test_who_waited_long_is_served_before_one_who_takes_a_little_less() -> None:
    engine, waiting = fleet(1).engines[0], parked((900.0, 0.0), (500.0, 5.0))
    assert first_that_fits(engine, waiting, 6.0, 100.0, False) == 0
    assert first_that_fits(engine, waiting, 6.0, 50.0, False) == 1


def test_one_whose_own_target_is_missed_there_is_left_to_other_engines() -> None:
    engine, waiting = fleet(1).engines[0], parked((900.0, 0.0), (500.0, 1.0))
    waiting["tpot"][1] = 1e-6
    engine["batch"] = 1
    assert first_that_fits(engine, waiting, 2.0, 100.0, False) == 0


def test_one_whose_answer_may_be_too_long_for_an_engine_is_left_to_larger_ones() -> None:
    engine, waiting = fleet(1).engines[0], parked((900.0, 0.0), (500.0, 1.0))
    waiting["whole"] = 900.0 + 300.0, engine["room"] + 1.0
    assert first_that_fits(engine, waiting, 2.0, 100.0, False) == 0
    waiting["whole"][1] -= 1.0
    assert first_that_fits(engine, waiting, 2.0, 100.0, False) == 1
