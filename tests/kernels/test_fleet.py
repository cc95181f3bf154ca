from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.decision import fade, move, owe
from kvstore.kernels.fleet import (
    DOMAIN,
    FAR,
    LATELY_SECONDS,
    LINK,
    NONE,
    SIZES,
    UNLABELLED,
    decode_seconds,
    dequeue,
    enqueue,
    kept_by_decoders,
    mark_roles,
    nothing,
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
    lines = fleet(1).lines
    line = lines[:, 0]
    for seconds, _ in works:
        enqueue(lines, 0, size_of(seconds), seconds)
    for seconds, leaves in works:
        if leaves:
            dequeue(lines, 0, size_of(seconds), seconds)
    left = [seconds for seconds, leaves in works if not leaves]
    for size in range(SIZES):
        up_to = [seconds for seconds in left if size_of(seconds) <= size]
        assert line["waiting"][size] == len(up_to)
        assert line["ahead"][size] == pytest.approx(sum(up_to), abs=1e-9)
        assert up_to or line["ahead"][size] == 0.0


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


@pytest.mark.parametrize("column", ["placed", "sent"])
def test_what_a_host_was_given_and_sent_fades_and_no_clock_goes_back(column: str) -> None:
    made = fleet(3)
    made.hosts[column] = [8.0, 2.0, 0.0]
    for passed in (LATELY_SECONDS, -5.0):
        fade(made.hosts, passed)
        assert made.hosts[column] == pytest.approx([8.0 / np.e, 2.0 / np.e, 0.0])


def test_each_end_of_a_way_carries_one_byte_after_another_and_holds_up_no_other() -> None:
    made = fleet(3)
    made.hosts["link_seconds"] = 1e-9
    move(made.hosts, 0, 1, 2e9, 10.0)
    assert (made.hosts["leaves"][0], made.hosts["arrives"][1]) == (12.0, 12.0)
    move(made.hosts, 2, 1, 1e9, 10.0)
    assert made.hosts["arrives"][1] == 13.0, "behind the first"
    assert made.hosts["leaves"][2] == 11.0, "it has left, though it waits at the other end"
    move(made.hosts, 2, 0, 1e9, 10.5)
    assert (made.hosts["leaves"][2], made.hosts["arrives"][0]) == (12.0, 11.5)
    assert made.hosts["sent"].tolist() == [2.0, 0.0, 2.0]
    before = made.hosts.copy()
    move(made.hosts, 1, 1, 1e9, 10.0)
    assert (made.hosts == before).all(), "what stays takes no way"


def test_within_a_domain_bytes_take_its_own_wires() -> None:
    made = labelled(fleet(2), [0, 0], [0, 0])
    made.hosts["domain_seconds"] = 1e-9
    move(made.hosts, 0, 1, 3e9, 1.0)
    assert (made.hosts["domain_leaves"][0], made.hosts["domain_arrives"][1]) == (4.0, 4.0)
    assert not made.hosts["leaves"].any() and not made.hosts["arrives"].any()


def test_what_is_owed_is_never_less_than_nothing() -> None:
    made = fleet(1)
    owe(made.hosts, 0, 2.0)
    owe(made.hosts, 0, -0.5)
    assert made.hosts["owed"][0] == 1.5
    owe(made.hosts, 0, -9.0)
    assert made.hosts["owed"][0] == 0.0


def test_of_hosts_where_somebody_decodes_the_most_that_one_has_of_a_prompt_is_known() -> None:
    made, found = fleet(4), nothing(4, 4)
    made.engines["decodes"], found.dram[:] = (False, True, True, False), (9, 2, 5, 7)
    mark_roles(made)
    assert kept_by_decoders(made, found) == 5
    assert made.hosts["decodes"].tolist() == [False, True, True, False]
    made.engines["decodes"] = False
    mark_roles(made)
    assert made.hosts["decodes"].all(), "whoever will"
    assert kept_by_decoders(made, found) == 9


def test_of_each_host_the_first_engine_that_prefills_is_known() -> None:
    made = fleet(4)
    made.engines["host"], made.engines["prefills"] = (2, 0, 2, 1), (False, True, True, False)
    mark_roles(made)
    assert made.hosts["prefills"].tolist() == [1, NONE, 2, NONE]


def test_of_each_host_it_is_known_by_which_ways_who_decodes_is_reached() -> None:
    made = labelled(fleet(5), [0, 0, 1, -1, -1], [0, 0, 1, 1, -1])
    made.engines["decodes"], made.hosts["domain_seconds"] = (True, *[False] * 4), 1 / 700e9
    mark_roles(made)
    assert made.hosts["domain_decodes"].tolist() == [True, True, False, False, False]
    assert made.hosts["rack_decodes"].tolist() == [True, True, False, False, True]
    made.hosts["domain_seconds"][0] = np.inf
    mark_roles(made)
    assert not made.hosts["domain_decodes"].any(), "its wires reach nobody"
    made.hosts["rack"][0] = UNLABELLED
    mark_roles(made)
    assert made.hosts["rack_decodes"].all(), "it may be in any rack"
    made.engines["decodes"] = False
    mark_roles(made)
    assert made.hosts["domain_decodes"].tolist() == [True, True, True, False, False], "whoever will"
