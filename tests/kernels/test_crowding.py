"""What new blocks displace: of engines that are nearly equal, that whose host was given less."""

from __future__ import annotations

import pytest

from kvstore.kernels.fleet import Fleet, Found, mark_roles, nothing
from kvstore.kernels.prefill_choice import choose_prefill, price_all
from kvstore.kernels.prefill_price import COST, FIRST_TOKEN
from kvstore.kernels.rules import OURS
from tests.kernels.fleets import ASKED, BLOCKS, RULES, fleet, rows

SCARCE = 1.5


def given_to(made: Fleet, found: Found, scarce: float = 0.0) -> list[int]:
    """How many of a thousand prompts each engine gets, none of which has been seen before."""
    counts = [0] * len(made.engines)
    for _ in range(1_000):
        priced = rows(len(made.engines))
        engine, _ = choose_prefill(made, found, ASKED, OURS, scarce, 0, priced)
        made.hosts[made.engines[engine]["host"]]["placed"] += BLOCKS - found.dram[engine]
        counts[engine] += 1
    return counts


def test_an_idle_fleet_uses_the_memory_of_those_too_that_are_a_little_slower() -> None:
    made = fleet(4)
    made.engines["prefill_b"][1:] *= 1.01
    assert all(240 < count < 260 for count in given_to(made, nothing(4, 4)))


@pytest.mark.parametrize("slower", [1.1, 1.2, 1.3])
def test_the_slower_an_engine_is_the_less_of_what_is_new_it_gets(slower: float) -> None:
    made = fleet(2)
    made.engines["prefill_a"] = made.engines["prefill_c"] = 0.0
    made.engines["prefill_b"][1] *= slower
    more, less = given_to(made, nothing(2, 2))
    # In balance both cost the same: 1 + crowding = slower (1 + crowding less / more).
    share = ((1 + OURS.crowding) / slower - 1) / OURS.crowding
    assert less / more == pytest.approx(share, rel=0.02)


def test_what_is_much_slower_gets_nothing_that_is_new() -> None:
    made = fleet(4)
    made.engines["prefill_b"][3] *= 2
    assert given_to(made, nothing(4, 4))[3] == 0


def test_a_prompt_goes_where_its_blocks_are_however_much_came_there() -> None:
    made, found = fleet(4), nothing(4, 4)
    found.dram[2] = found.local[2] = BLOCKS
    made.hosts["link_seconds"] = 1e-15
    made.hosts["placed"][2] = 1e6
    assert given_to(made, found) == [0, 0, 1_000, 0]


def test_what_new_blocks_displace_is_charged_by_what_others_were_given() -> None:
    made, found = fleet(3), nothing(3, 3)
    made.hosts["placed"] = [10.0, 40.0, 90.0]
    made.engines[2]["prefills"] = False  # it decodes, and what it has is no measure of theirs
    mark_roles(made)
    found.dram[:] = found.local[:] = 5
    plain, charged = rows(3), rows(3)
    price_all(made, found, ASKED, RULES, SCARCE, plain)
    price_all(made, found, ASKED, OURS, SCARCE, charged)
    more = charged[:2, COST] - plain[:2, COST]
    new = ASKED.tokens - 5 * ASKED.block_tokens
    b, c = made.engines[0]["prefill_b"], made.engines[0]["prefill_c"]
    worth = OURS.crowding * (b * new + c * new * (2 * ASKED.tokens - new))
    after = 10 + BLOCKS - 5, 40 + BLOCKS - 5
    assert more == pytest.approx([worth * after[0] / after[1], worth])
    assert (charged[:, FIRST_TOKEN] == plain[:, FIRST_TOKEN]).all()
    choose_prefill(made, found, ASKED, OURS, SCARCE, 0, plain)
    assert plain[0, COST] == pytest.approx(charged[0, COST]), "the choice says the same"
