from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.decision import fade_placed
from kvstore.kernels.fleet import (
    DOMAIN,
    FAR,
    LINK,
    PLACED_SECONDS,
    SIZES,
    decode_seconds,
    dequeue,
    enqueue,
    prefill_seconds,
    seconds_of,
    size_of,
    way_between,
    way_seconds,
    work_after,
)
from tests.kernels.fleets import fleet, labelled


@settings(deadline=None)
@given(st.floats(2.0**-10, 60.0))
def test_work_is_of_the_size_that_begins_at_most_a_fifth_below_it(seconds: float) -> None:
    least = seconds_of(size_of(seconds))
    assert least <= seconds
    assert seconds < least * 1.25 or size_of(seconds) == SIZES - 1


def test_sizes_ascend_and_the_first_and_the_last_take_all_that_is_beyond() -> None:
    starts = [seconds_of(size) for size in range(SIZES)]
    assert starts == sorted(starts)
    assert size_of(0.0) == size_of(1e-9) == 0
    assert size_of(1e9) == SIZES - 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 100.0), st.booleans()), max_size=30))
def test_what_waits_is_summed_by_size_and_nothing_is_left_of_what_went(
    works: list[tuple[float, bool]],
) -> None:
    engine = fleet(1).engines[0]
    for seconds, _ in works:
        enqueue(engine, size_of(seconds), seconds)
    for seconds, leaves in works:
        if leaves:
            dequeue(engine, size_of(seconds), seconds)
    left = [seconds for seconds, leaves in works if not leaves]
    for size in range(SIZES):
        up_to = [seconds for seconds in left if size_of(seconds) <= size]
        assert engine["waiting"][size] == len(up_to)
        assert engine["ahead"][size] == pytest.approx(sum(up_to), abs=1e-9)
        assert up_to or engine["ahead"][size] == 0.0


def test_prefill_and_decode_take_what_their_formulas_say() -> None:
    engine = fleet(1).engines[0]
    engine["prefill_a"], engine["prefill_b"], engine["prefill_c"] = 1.0, 0.5, 0.25
    engine["decode_a"], engine["decode_b"], engine["decode_c"] = 1.0, 0.5, 0.25
    assert prefill_seconds(engine, 4.0, 3.0) == 1 + 0.5 * 4 + 0.25 * 4 * (4 + 6)
    assert decode_seconds(engine, 2.0, 8.0) == 1 + 0.5 * 2 + 0.25 * 8


def test_a_prompt_that_is_all_there_still_computes_one_token() -> None:
    engine = fleet(1).engines[0]
    assert work_after(engine, 1_024.0, 2, 512.0) == prefill_seconds(engine, 1.0, 1_023.0)
    assert np.isfinite(work_after(engine, 1_000.0, 2, 512.0))


def test_a_byte_takes_the_domain_s_way_then_the_rack_s_and_else_the_link() -> None:
    hosts = labelled(fleet(6), [0, 0, 1, -1, -1, 0], [0, 1, 0, 1, -1, 0]).hosts
    hosts["link_seconds"], hosts["far_seconds"] = (1, 2, 3, 4, 5, 6), (9, 8, 0, 7, 70, 60)
    hosts["domain_seconds"] = (0.1, 0.2, 0.3, np.inf, np.inf, np.inf)
    ways = {
        (0, 1): (DOMAIN, 0.2),  # the slower end, though their racks differ
        (0, 2): (LINK, 3.0),  # another domain, the same rack
        (0, 3): (FAR, 9.0),
        (2, 3): (FAR, 7.0),  # never quicker than a link
        (0, 4): (LINK, 5.0),  # nobody knows where that one stands
        (0, 5): (LINK, 6.0),  # nobody says what the domain carries there
    }
    for (one, other), (way, seconds) in ways.items():
        for giver, taker in ((hosts[one], hosts[other]), (hosts[other], hosts[one])):
            assert way_between(giver, taker) == way and way_seconds(giver, taker) == seconds


def test_what_a_host_was_given_fades_and_no_clock_goes_back() -> None:
    made = fleet(3)
    made.hosts["placed"] = [8.0, 2.0, 0.0]
    for passed in (PLACED_SECONDS, -5.0):
        fade_placed(made.hosts, passed)
        assert made.hosts["placed"] == pytest.approx([8.0 / np.e, 2.0 / np.e, 0.0])
