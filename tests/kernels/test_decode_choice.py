from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.decode_choice import (
    choose_decode,
    fits,
)
from kvstore.kernels.fleet import decode_seconds
from kvstore.kernels.prefill_choice import NONE
from tests.kernels.fleets import fleet, labelled

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


def test_of_engines_alike_the_nearest_to_the_kv_decodes_it() -> None:
    made = labelled(fleet(4), [-1, -1, 0, 0], [0, 1, 0, 0])
    made.hosts["domain_seconds"], made.hosts["far_seconds"] = 1 / 700e9, 1 / 1e9
    made.engines["decodes"] = (True, True, False, True)
    for first in range(4):
        assert choose_decode(made, 1_000.0, 300.0, TPOT, first, 2, 1e5) == (3, True)
    made.engines["decodes"][3] = False
    for first in range(4):
        assert choose_decode(made, 1_000.0, 300.0, TPOT, first, 2, 1e5) == (0, True), "the rack's"
