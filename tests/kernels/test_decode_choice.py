from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.decode_choice import (
    DEMAND,
    FREED_SECONDS,
    choose_decode,
    fits,
    freed,
    room_seconds,
    want_room,
)
from kvstore.kernels.fleet import decode_seconds
from kvstore.kernels.prefill_choice import NONE
from tests.kernels.fleets import fleet

TPOT = 0.1


def test_the_engine_whose_steps_stay_the_shortest_is_chosen() -> None:
    made = fleet(3)
    made.engines["batch"], made.engines["context"] = (8, 2, 4), (90_000, 50_000, 20_000)
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, NONE, 0.0) == (2, True)


def test_an_engine_without_room_is_chosen_only_where_none_has_any() -> None:
    made = fleet(2)
    made.engines["batch"], made.engines["context"] = (1, 90), (399_500, 390_000)
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, NONE, 0.0) == (1, True)
    made.engines[1]["context"] = 399_900
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, NONE, 0.0) == (0, False)


def test_nobody_is_chosen_where_nobody_decodes() -> None:
    made = fleet(2)
    made.engines["decodes"] = False
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, NONE, 0.0) == (NONE, False)


def test_of_equals_the_first_that_is_looked_at_is_chosen() -> None:
    chosen = [choose_decode(fleet(3), 1.0, 0.0, TPOT, first, NONE, 0.0)[0] for first in range(3)]
    assert chosen == [0, 1, 2]


def test_what_is_prefilled_where_decoding_is_as_fast_stays_there() -> None:
    for source in range(3):
        assert choose_decode(fleet(3), 1_000.0, 300.0, TPOT, 0, source, 1e5) == (source, True)


def test_kv_is_moved_where_that_costs_less_than_slower_steps() -> None:
    made = fleet(2)
    made.engines["batch"][0] = 10
    slower = 10 * float(made.engines[0]["decode_b"])
    enough = 300 * slower * 20e9 / 1_000  # bytes a token, whose way takes as long as 300 such steps
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, 0, 0.9 * enough) == (1, True)
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, 0, 1.1 * enough) == (0, True)
    made.hosts["link_seconds"][1] *= 10
    assert choose_decode(made, 1_000.0, 300.0, TPOT, 0, 0, 0.9 * enough) == (0, True), "its link"


@settings(deadline=None)
@given(st.integers(0, 200), st.floats(0, 400_000), st.floats(1, 100_000))
def test_a_sequence_fits_where_it_has_place_and_the_step_stays_within_the_target(
    batch: int, context: float, tokens: float
) -> None:
    engine = fleet(1).engines[0]
    engine["batch"], engine["context"] = batch, context
    has_place = context + tokens + 300 <= engine["room"]
    quick = decode_seconds(engine, batch + 1.0, context + tokens) <= TPOT
    assert fits(engine, tokens, 300.0, TPOT) == (has_place and (quick or batch == 0))


def demand() -> np.void:
    return np.zeros(1, DEMAND)[0]


def test_there_is_no_wait_for_room_while_all_that_want_it_have_it() -> None:
    made, wanted = fleet(2), demand()
    want_room(wanted, 300_000.0, 1.0)
    assert room_seconds(made, wanted, 100_000.0, 1.0, False) == 0.0


def test_a_wait_for_room_is_what_lacks_over_what_becomes_free() -> None:
    made, wanted = fleet(1), demand()
    made.engines["context"] = 400_000
    freed(wanted, 30_000.0, 10.0)
    want_room(wanted, 20_000.0, 1.0)
    assert wanted["rate"] == pytest.approx(30_000 / FREED_SECONDS)
    assert room_seconds(made, wanted, 40_000.0, 1.0, False) == pytest.approx(60_000 / 1_000)


def test_there_is_no_room_where_a_step_would_take_too_long_for_one_more() -> None:
    made, wanted = fleet(1), demand()
    made.engines["batch"], made.engines["context"] = 100, 50_000
    step = float(decode_seconds(made.engines[0], 100.0, 50_000.0))
    assert room_seconds(made, wanted, 500.0, step + 0.1, False) == 0.0
    assert room_seconds(made, wanted, 500.0, step, False) == np.inf, "and nothing becomes free"


def test_the_smaller_ones_go_first_so_nobody_waits_for_the_larger() -> None:
    made, wanted = fleet(1), demand()
    made.engines["context"] = 390_000
    freed(wanted, 30_000.0, 10.0)
    want_room(wanted, 80_000.0, 1.0)
    assert room_seconds(made, wanted, 5_000.0, 1.0, False) == 0.0


def test_in_a_crowd_all_that_came_before_go_first() -> None:
    made, wanted = fleet(1), demand()
    made.engines["context"] = 390_000
    freed(wanted, 30_000.0, 10.0)
    want_room(wanted, 80_000.0, 1.0)
    assert room_seconds(made, wanted, 5_000.0, 1.0, True) == pytest.approx(75_000 / 1_000)


def test_a_full_pool_that_nothing_was_seen_to_leave_is_waited_for_without_end() -> None:
    made, wanted = fleet(1), demand()
    made.engines["context"] = 400_000
    assert room_seconds(made, wanted, 1.0, 1.0, False) == np.inf


@settings(deadline=None)
@given(st.lists(st.floats(1, 200_000), max_size=20))
def test_who_wanted_room_and_has_it_is_counted_no_more(prompts: list[float]) -> None:
    wanted = demand()
    for tokens in prompts:
        want_room(wanted, tokens, 1.0)
    for tokens in prompts:
        want_room(wanted, tokens, -1.0)
    assert wanted["ahead"] == pytest.approx(np.zeros(64), abs=1e-6)
