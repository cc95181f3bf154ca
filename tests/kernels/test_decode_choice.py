from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.decode_choice import (
    choose_decode,
    fits,
)
from kvstore.kernels.fleet import NONE, Fleet, decode_seconds, prefill_seconds
from tests.kernels.fleets import fleet, labelled

TPOT = 0.1


def chosen_of(
    made: Fleet, tokens: float, reserve: float, first: int, source: int, token_bytes: float,
    held: dict[int, int] | None = None, now: float = 0.0, whole: float = 0.0,
) -> tuple[int, bool]:  # fmt: skip
    blocks = np.zeros(len(made.hosts), np.int32)
    for host, count in (held or {}).items():
        blocks[host] = count
    return choose_decode(
        made, blocks, tokens, whole, 16.0, token_bytes, reserve, TPOT, first, source, now
    )  # fmt: skip


def test_the_engine_whose_steps_stay_the_shortest_is_chosen() -> None:
    made = fleet(3)
    made.engines["batch"], made.engines["context"] = (8, 2, 4), (90_000, 50_000, 20_000)
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0) == (2, True)


def test_an_engine_without_room_is_chosen_only_where_none_has_any() -> None:
    made = fleet(2)
    made.engines["batch"], made.engines["context"] = (1, 90), (399_500, 390_000)
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0) == (1, True)
    made.engines[1]["context"] = 399_900
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0) == (0, False)


def test_no_engine_is_chosen_that_could_never_hold_the_longest_answer() -> None:
    made = fleet(2)
    made.engines["room"], made.engines["batch"] = (4_000, 400_000), (0, 90)
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0, whole=4_000.0) == (0, True)
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0, whole=4_001.0) == (1, True)
    made.engines["context"][1] = 400_000
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0, whole=4_001.0) == (1, False), "not yet"
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0, whole=400_001.0) == (NONE, False)


def test_an_idle_engine_takes_what_it_has_place_for_and_nothing_larger() -> None:
    """Though that leaves less for the answer than most have: nowhere will there ever be more."""
    made = fleet(1)
    assert chosen_of(made, 400_000.0, 300.0, 0, NONE, 0.0) == (0, True)
    assert chosen_of(made, 400_001.0, 300.0, 0, NONE, 0.0) == (0, False)


def test_nobody_is_chosen_where_nobody_decodes() -> None:
    made = fleet(2)
    made.engines["decodes"] = False
    assert chosen_of(made, 1_000.0, 300.0, 0, NONE, 0.0) == (NONE, False)


def test_of_equals_the_first_that_is_looked_at_is_chosen() -> None:
    chosen = [chosen_of(fleet(3), 1.0, 0.0, first, NONE, 0.0)[0] for first in range(3)]
    assert chosen == [0, 1, 2]


def test_what_is_prefilled_where_decoding_is_as_fast_stays_there() -> None:
    for source in range(3):
        assert chosen_of(fleet(3), 1_000.0, 300.0, 0, source, 1e5) == (source, True)


def test_kv_is_moved_where_that_costs_less_than_slower_steps() -> None:
    made = fleet(2)
    made.engines["batch"][0] = 10
    slower = 10 * float(made.engines[0]["decode_b"])
    enough = 300 * slower * 20e9 / 1_000  # bytes a token, whose way takes as long as 300 such steps
    assert chosen_of(made, 1_000.0, 300.0, 0, 0, 0.9 * enough) == (1, True)
    assert chosen_of(made, 1_000.0, 300.0, 0, 0, 1.1 * enough) == (0, True)
    made.hosts["link_seconds"][1] *= 10
    assert chosen_of(made, 1_000.0, 300.0, 0, 0, 0.9 * enough) == (0, True), "its link"


@settings(deadline=None)
@given(st.integers(0, 200), st.floats(0, 400_000), st.floats(1, 100_000))
def test_a_sequence_fits_where_it_has_place_and_the_step_stays_within_the_target(
    batch: int, context: float, tokens: float
) -> None:
    engine = fleet(1).engines[0]
    engine["batch"], engine["context"] = batch, context
    has_place = context + tokens + 300 <= engine["room"]
    quick = decode_seconds(engine, batch + 1.0, context + tokens) <= TPOT
    assert fits(engine, tokens, 0.0, 300.0, TPOT) == (has_place and (quick or batch == 0))


def test_of_engines_alike_the_nearest_to_the_kv_decodes_it() -> None:
    made = labelled(fleet(4), [-1, -1, 0, 0], [0, 1, 0, 0])
    made.hosts["domain_seconds"], made.hosts["far_seconds"] = 1 / 700e9, 1 / 1e9
    made.engines["decodes"] = (True, True, False, True)
    for first in range(4):
        assert chosen_of(made, 1_000.0, 300.0, first, 2, 1e5) == (3, True)
    made.engines["decodes"][3] = False
    for first in range(4):
        assert chosen_of(made, 1_000.0, 300.0, first, 2, 1e5) == (0, True), "the rack's"


def test_who_asks_again_goes_to_the_host_that_has_what_it_was_handed() -> None:
    made = fleet(3)
    made.engines["decodes"][0] = False
    assert chosen_of(made, 1_600.0, 300.0, 1, 0, 1e5) == (1, True)
    assert chosen_of(made, 1_600.0, 300.0, 1, 0, 1e5, held={2: 90}) == (2, True)
    made.engines["batch"][2] = 100
    assert chosen_of(made, 1_600.0, 300.0, 1, 0, 1e5, held={2: 90}) == (1, True), "steps are slow"


def test_a_host_with_much_on_its_way_there_is_passed_over() -> None:
    made = fleet(3)
    made.engines["decodes"][0] = False
    made.hosts["arrives"][1] = 50.0
    assert chosen_of(made, 1_600.0, 300.0, 1, 0, 1e5, now=49.0) == (2, True)
    assert chosen_of(made, 1_600.0, 300.0, 1, 0, 1e5, now=50.0) == (1, True), "that is there by now"


def test_who_would_have_to_compute_it_again_for_a_node_is_gone_is_passed_over() -> None:
    made = fleet(3)
    made.hosts["away"][1], made.engines["batch"][2] = True, 10
    work = float(prefill_seconds(made.engines[1], 1_000.0, 0.0))
    slower = 10 * float(made.engines[0]["decode_b"])
    for first in range(3):
        assert chosen_of(made, 1_000.0, 300.0, first, NONE, 0.0) == (0, True)
    made.engines["decodes"][0] = False
    assert chosen_of(made, 1_000.0, 0.9 * work / slower, 0, NONE, 0.0) == (2, True)
    assert chosen_of(made, 1_000.0, 1.1 * work / slower, 0, NONE, 0.0) == (1, True)
    made.engines["batch"] = (0, 10, 20)  # and ten others wait for it
    assert chosen_of(made, 1_000.0, 10.9 * work / slower, 0, NONE, 0.0) == (2, True)
    assert chosen_of(made, 1_000.0, 11.1 * work / slower, 0, NONE, 0.0) == (1, True)
    made.engines["batch"] = (0, 0, 10)
    made.engines["prefill_a"][1] = made.engines["prefill_b"][1] = made.engines["prefill_c"][1] = 0
    for prefilled in (NONE, 0):  # it only decodes: as long as others take
        assert chosen_of(made, 1_000.0, 0.9 * work / slower, 0, prefilled, 0.0) == (2, True)
        assert chosen_of(made, 1_000.0, 1.1 * work / slower, 0, prefilled, 0.0) == (1, True)


def test_what_was_prefilled_where_the_node_is_gone_stays_there_or_goes_to_who_has_the_most() -> (
    None
):
    made = fleet(3)
    made.hosts["away"][0] = True
    for first in range(3):
        assert chosen_of(made, 1_600.0, 300.0, first, 0, 1e5, held={2: 90}) == (0, True)
    made.engines["decodes"][0] = False
    for first in range(3):
        assert chosen_of(made, 1_600.0, 300.0, first, 0, 1e5, held={2: 90}) == (2, True)
    made.engines["host"][1] = 0  # beside it, which is no nearer
    made.engines["decodes"][2], made.engines["batch"][1] = False, 0
    assert chosen_of(made, 1_600.0, 300.0, 0, 0, 1e5) == (1, True), "there is nobody else"
    made.engines["decodes"][2] = True
    assert chosen_of(made, 1_600.0, 300.0, 0, 0, 1e5, held={2: 90}) == (2, True)
