from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels.fleet import LATELY_SECONDS, NONE, OVERDUE, UNLABELLED, Fleet, Found, nothing
from kvstore.kernels.prefill_choice import price_all
from kvstore.kernels.prefill_price import (
    BLOCKS,
    COST,
    FETCHED,
    FIRST_TOKEN,
    HANDED,
    READ,
    READY,
    SOURCE,
    WAIT,
    WORK,
)
from kvstore.kernels.rules import Rules
from kvstore.kernels.source_choice import choose_source
from tests.kernels.fleets import (
    ASKED,
    RULES,
    SCARCE,
    busy_fleets,
    chosen,
    fleet,
    labelled,
    labelled_fleets,
    parted_fleets,
    rows,
    wait_behind,
)


def seconds(made: Fleet, engine: int, blocks: float) -> float:
    """A prefill behind so many blocks, by the formula."""
    cost, new = made.engines[engine], max(1.0, ASKED.tokens - blocks * ASKED.block_tokens)
    pairs = new * (2 * ASKED.tokens - new)
    return float(cost["prefill_a"] + cost["prefill_b"] * new + cost["prefill_c"] * pairs)


SIZE_STARTS = [2.0**octave * quarter / 4 for octave in range(-10, 6) for quarter in range(4, 8)]


def sources(made: Fleet, found: Found, host: int) -> set[int]:
    """Hosts that a taker may fetch from: who has the longest prefix of all, of its domain and of
    its rack, and of several of these whose wires are free first."""
    best = choose_source(made, found)[1]
    if best in (NONE, host):
        return set()
    some = {int(best)}
    for label, column in (("domain", "domain_leaves"), ("rack", "leaves")):
        mine = made.hosts[host][label]
        alike = np.flatnonzero((made.hosts[label] == mine) & (found.local > 0))
        if mine != UNLABELLED and len(alike):
            order = [(-found.local[one], made.hosts[one][column], one) for one in alike]
            some.add(int(min(order)[2]))
    return some - {host}


def way(giver: Any, taker: Any) -> tuple[float, float, str]:
    """Seconds of a byte from one to the other, of its taker's end, and the prefix of columns that
    say when its wires are free."""
    same_domain = giver["domain"] == taker["domain"] != UNLABELLED
    slower = max(giver["domain_seconds"], taker["domain_seconds"])
    if same_domain and slower < np.inf:
        return float(slower), float(taker["domain_seconds"]), "domain_"
    hosts = giver, taker
    ends = [float(one["link_seconds"]) for one in hosts]
    if UNLABELLED not in (giver["rack"], taker["rack"]) and giver["rack"] != taker["rack"]:
        ends = [max(float(one["far_seconds"]), end) for one, end in zip(hosts, ends, strict=True)]
    return max(ends), ends[1], ""


def every_split(made: Fleet, found: Found, engine: int, rules: Rules) -> list[list[float]]:
    """What each number of blocks costs, brought in every way: none of them, then all from none on
    of the SSD's, then of each source's."""
    row = made.engines[engine]
    host = int(row["host"])
    there = max(int(found.dram[host]), int(found.coming[engine]))
    block = ASKED.block_tokens * ASKED.token_bytes
    from_ssd = []
    for blocks in range(there + 1, int(found.local[host]) + 1):
        begins = max(0.0, float(made.hosts[host]["reads"]) - ASKED.now) + rules.latency
        each = float(made.hosts[host]["ssd_seconds"]) * block
        from_ssd.append((blocks, begins + each * (blocks - there), 0.0))
    options = [[(there, 0.0, 0.0)], from_ssd]
    for source in sources(made, found, host):
        giver, taker, best = made.hosts[source], made.hosts[host], int(found.local[source])
        each, end, wires = way(giver, taker)
        leaves, arrives = giver[f"{wires}leaves"], taker[f"{wires}arrives"]
        begins = max(0.0, leaves - ASKED.now, arrives - ASKED.now) + rules.latency
        if best > found.dram[source]:
            each = max(each, giver["ssd_seconds"])
        fetched = []
        for blocks in range(there + 1, best + 1):
            moved = blocks - there
            crowded = charge_of(float(giver["sent"]) / LATELY_SECONDS)
            fetched.append((blocks, begins + each * block * moved, crowded * moved * block * end))
        options.append(fetched)
    return [[_cost(made, engine, rules, *one) for one in some] for some in options if some]


def charge_of(busy: float) -> float:
    """What others wait for a second of what is busy for such a share of them."""
    return min(min(1.0, busy) / (1.05 - min(1.0, busy)), 20.0)


def _cost(made: Fleet, engine: int, rules: Rules, blocks: int, ready: float, moved: float) -> float:
    row, line, work = made.engines[engine], made.lines[:, engine], seconds(made, engine, blocks)
    size = max(0, np.searchsorted(np.array(SIZE_STARTS), work, side="right") - 1)
    if not rules.shortest_first:
        size = len(SIZE_STARTS) - 1
    left = float(row["busy_until"]) - ASKED.now
    late = min(OVERDUE * max(0.0, -left), float(row["running"]))
    wait = max(late, left) + float(line["ahead"][size])
    overtaken = int(line["waiting"][-1] - line["waiting"][size])
    imposed = work * (SCARCE + overtaken) + moved
    return max(wait, ready) + work + rules.charge * imposed


def a_block(made: Fleet, engine: int, rules: Rules) -> float:
    """The most that one block more or less is worth."""
    blocks = int(ASKED.tokens // ASKED.block_tokens)
    work = np.array([seconds(made, engine, one) for one in range(blocks + 1)])
    return float(-np.diff(work).min()) * (1 + rules.charge * SCARCE)


@settings(max_examples=600, deadline=None)
@given(parted_fleets(), st.integers(0, 5), st.sampled_from([0.0, 0.4, 2.0]))
def test_the_choice_is_the_cheapest_of_those_in_time(
    made: tuple[Fleet, Found], first: int, crowding: float
) -> None:
    engines, found = made
    count = len(engines.engines)
    engine, _, row = chosen(engines, found, first % count, crowding=crowding)
    priced, rules = rows(count), RULES._replace(crowding=crowding)
    price_all(engines, found, ASKED, rules, SCARCE, priced)
    begins = rules.margin * np.maximum(priced[:, WAIT], priced[:, READY])
    in_time = (begins + priced[:, WORK] <= rules.ttft) & engines.engines["prefills"]
    in_time &= priced[:, HANDED] <= rules.ttft
    if engine == NONE:
        assert not in_time.any()
    else:
        assert in_time[engine]
        assert row[COST] <= priced[in_time, COST].min() * (1 + 1e-9)


@settings(max_examples=200, deadline=None)
@given(busy_fleets() | labelled_fleets())
def test_without_a_gate_somebody_is_found_while_anybody_prefills(
    made: tuple[Fleet, Found],
) -> None:
    engine, _, _ = chosen(*made, gated=0.0)
    assert (engine != NONE) == made[0].engines["prefills"].any()


@settings(max_examples=200, deadline=None)
@given(busy_fleets() | labelled_fleets())
def test_first_come_no_split_is_cheaper_than_the_one_found_by_more_than_a_block(
    made: tuple[Fleet, Found],
) -> None:
    engines, found = made
    rules, priced = RULES._replace(shortest_first=0.0), rows(len(engines.engines))
    price_all(engines, found, ASKED, rules, SCARCE, priced)
    for number in np.flatnonzero(engines.engines["prefills"]):
        least = min(map(min, every_split(engines, found, int(number), rules)))
        # The block that is on its way when the wait is over is not waited for.
        most = least + a_block(engines, int(number), rules)
        assert least - 1e-9 <= priced[number, COST] <= most + 1e-9


@settings(max_examples=200, deadline=None)
@given(busy_fleets() | labelled_fleets())
def test_shortest_first_the_split_that_is_found_is_one_and_no_end_is_cheaper(
    made: tuple[Fleet, Found],
) -> None:
    engines, found = made
    priced = rows(len(engines.engines))
    price_all(engines, found, ASKED, RULES, SCARCE, priced)
    for number in np.flatnonzero(engines.engines["prefills"]):
        costs = every_split(engines, found, int(number), RULES)
        # Sizes of work are steps, so one between the ends may be a little cheaper.
        ends = min(some[-1] for some in costs)
        assert min(map(min, costs)) - 1e-9 <= priced[number, COST] <= ends + 1e-9


@settings(max_examples=100, deadline=None)
@given(busy_fleets() | labelled_fleets(), st.floats(0.01, 10), st.integers(0, 5))
def test_more_work_at_an_engine_never_makes_it_cheaper(
    made: tuple[Fleet, Found], work: float, number: int
) -> None:
    engines, found = made
    number %= len(engines.engines)
    before, after = rows(len(engines.engines)), rows(len(engines.engines))
    price_all(engines, found, ASKED, RULES, SCARCE, before)
    wait_behind(engines, number, work)
    price_all(engines, found, ASKED, RULES, SCARCE, after)
    # But for a block: the one that is on its way when the wait is over is not waited for.
    least = before[number, COST] - a_block(engines, number, RULES)
    assert after[number, COST] >= least


def test_what_is_there_is_not_fetched_and_not_computed() -> None:
    made, found = fleet(3), nothing(3, 3)
    found.dram[1] = found.local[1] = 20
    engine, _, row = chosen(made, found)
    assert engine == 1
    assert (row[BLOCKS], row[FETCHED], row[READ]) == (20, 0, 0)
    assert row[FIRST_TOKEN] == pytest.approx(seconds(made, 1, 20))


def test_a_prefix_is_fetched_where_its_host_is_busy() -> None:
    made, found = fleet(2), nothing(2, 2)
    found.dram[1] = found.local[1] = 20
    made.engines[1]["busy_until"] = ASKED.now + 20
    engine, source, row = chosen(made, found)
    assert (engine, source) == (0, 1)
    assert (row[BLOCKS], row[FETCHED]) == (20, 20)
    assert row[READY] == pytest.approx(RULES.latency + 20 * 512 * 327_680 / 20e9)


def near_and_far() -> tuple[Fleet, Found]:
    """Racks with slow uplinks: the first host has some of a prompt and the third, of another rack,
    more; the second is of the first one's rack and the fourth of its domain as well."""
    made, found = fleet(4), nothing(4, 4)
    made = labelled(made, [0, -1, -1, 0], [0, 0, 1, 0])
    made.hosts["far_seconds"], made.hosts["domain_seconds"] = 1 / 200e6, 1 / 700e9
    made.engines["prefills"] = (False, True, False, True)
    found.dram[:] = found.local[:] = (20, 0, 24, 0)
    return made, found


def test_a_shorter_prefix_that_is_near_beats_a_longer_one_of_another_rack() -> None:
    made, found = near_and_far()
    priced = rows(4)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    for engine in (1, 3):
        assert (priced[engine, SOURCE], priced[engine, FETCHED]) == (0, 20)
    bytes_of_it = 20 * 512 * 327_680
    assert priced[1, READY] == pytest.approx(RULES.latency + bytes_of_it / 20e9)
    assert priced[3, READY] == pytest.approx(RULES.latency + bytes_of_it / 700e9)
    assert chosen(made, found)[:2] == (3, 0), "where NVLink brings it is the sooner"
    made.hosts["far_seconds"] = 0.0
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[1, SOURCE] == 2, "what is as quick to come is taken where there is most"


def test_who_stands_apart_fetches_from_wherever_there_is_most() -> None:
    made, found = near_and_far()
    made.hosts["rack"][1] = UNLABELLED
    priced = rows(4)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert (priced[1, SOURCE], priced[1, FETCHED]) == (2, 24)
    assert (priced[3, SOURCE], priced[3, FETCHED]) == (0, 20)


def test_what_comes_over_nvlink_does_not_wait_for_the_link() -> None:
    made, found = near_and_far()
    made.hosts["leaves"][0] = ASKED.now + 60
    priced = rows(4)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[3, READY] < 0.02
    made.hosts["domain_leaves"][0] = ASKED.now + 60
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[3, FETCHED] == 0, "and is computed where NVLink is busy too"


@settings(max_examples=100, deadline=None)
@given(busy_fleets(), st.integers(0, 5))
def test_one_rack_for_all_and_slower_uplinks_change_nothing(
    made: tuple[Fleet, Found], first: int
) -> None:
    engines, found = made
    count = len(engines.engines)
    before = chosen(engines, found, first % count)
    engines.hosts["far_seconds"] = 1.0
    after = chosen(labelled(engines, [UNLABELLED] * count, [0] * count), found, first % count)
    if before[0] != NONE:
        assert before[:2] == after[:2] and before[2].tolist() == after[2].tolist()


def test_the_later_an_engine_is_with_its_prefill_the_longer_it_is_expected_to_take() -> None:
    made, found = fleet(2), nothing(2, 2)
    made.engines["busy_until"] = ASKED.now - 6, ASKED.now + 2
    made.engines["running"] = 4.0
    engine, _, row = chosen(made, found)
    assert (engine, row[WAIT]) == (1, 2.0)
    made.engines["busy_until"][0] = ASKED.now - 2
    engine, _, row = chosen(made, found)
    assert (engine, row[WAIT]) == (0, 2 * OVERDUE)


def test_a_prefill_of_whose_end_no_word_came_counts_for_no_longer_than_it_was_to_take() -> None:
    made, found = fleet(1), nothing(1, 1)
    made.engines["busy_until"], made.engines["running"] = ASKED.now - 1_000, 4.0
    engine, _, row = chosen(made, found)
    assert (engine, row[WAIT]) == (0, 4.0)


def test_an_engine_that_ended_sooner_than_was_expected_is_free() -> None:
    made, found = fleet(1), nothing(1, 1)
    made.engines["busy_until"] = ASKED.now - 3
    assert chosen(made, found)[2][WAIT] == 0.0


def test_over_a_slow_link_a_prefix_is_computed_anew() -> None:
    made, found = fleet(2), nothing(2, 2)
    found.dram[1] = found.local[1] = 20
    made.engines[1]["busy_until"] = ASKED.now + 20
    made.hosts["link_seconds"] = 1 / 100e6
    engine, _, row = chosen(made, found)
    assert (engine, row[BLOCKS], row[FETCHED]) == (0, 0, 0)


def test_as_much_is_fetched_over_a_slow_link_as_comes_while_the_prompt_waits() -> None:
    made, found = fleet(2), nothing(2, 2)
    found.dram[1] = found.local[1] = 30
    made.engines[1]["prefills"] = False
    made.engines[0]["busy_until"] = ASKED.now + 10
    made.hosts["link_seconds"] = 1 / 250e6  # 0.67 s a block, 0.05 s to compute it
    engine, source, row = chosen(made, found)
    assert (engine, source) == (0, 1)
    assert 0 < row[FETCHED] < 30
    assert row[WAIT] - 0.7 < row[READY] <= row[WAIT]


def test_what_is_being_computed_is_waited_for_only_with_foresight() -> None:
    made, found = fleet(2), nothing(2, 2)
    found.coming[1] = 25
    made.engines[1]["busy_until"] = ASKED.now + 0.3
    assert chosen(made, found)[0] == 1
    assert chosen(made, found, foresight=0.0)[0] == 0


def test_who_cannot_be_in_time_is_refused_only_by_a_gate() -> None:
    made, found = fleet(2), nothing(2, 2)
    made.engines["busy_until"] = ASKED.now + 29
    assert chosen(made, found)[:2] == (NONE, NONE)
    assert chosen(made, found, gated=0.0)[0] != NONE


def test_a_prompt_that_an_idle_engine_just_does_in_time_is_not_refused() -> None:
    made, found = fleet(1), nothing(1, 1)
    made.engines["prefill_a"] = 27.0
    assert chosen(made, found)[0] == 0


def test_of_equals_the_first_that_is_looked_at_is_chosen() -> None:
    made, found = fleet(4), nothing(4, 4)
    assert [chosen(made, found, first)[0] for first in range(4)] == [0, 1, 2, 3]


def test_a_small_prompt_does_not_wait_behind_large_ones() -> None:
    made, found = fleet(1), nothing(1, 1)
    wait_behind(made, 0, 20.0)
    assert chosen(made, found)[2][WAIT] == 0.0
    assert chosen(made, found, shortest_first=0.0, margin=1.0)[2][WAIT] == 20.0


def test_of_hosts_that_have_as_much_of_it_each_is_chosen_where_chance_begins_there() -> None:
    made, found = fleet(64), nothing(64, 64)
    found.dram[[5, 20, 41]] = found.local[[5, 20, 41]] = BLOCKS
    assert {chosen(made, found, first=first)[0] for first in (0, 6, 30)} == {5, 20, 41}
