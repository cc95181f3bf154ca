"""What an engine's price knows of the way of KV: to who decodes it, and from whom it is fetched."""

from __future__ import annotations

import pytest

from kvstore.kernels.fleet import (
    NONE,
    UNLABELLED,
    Fleet,
    Found,
    mark_roles,
    nothing,
    prefill_seconds,
)
from kvstore.kernels.prefill_choice import price_all
from kvstore.kernels.prefill_price import BLOCKS, COST, FETCHED, FIRST_TOKEN, HAND, HANDED
from tests.kernels.fleets import ASKED, RULES, SCARCE, chosen, fleet, labelled, rows


def handing_over(engines: int, hand: float) -> tuple[Fleet, Found]:
    """Engines of which only the last decodes; a prompt takes so long to leave the others' hosts."""
    made, found = fleet(engines), nothing(engines, engines)
    made.engines["prefills"] = [True] * (engines - 1) + [False]
    made.engines["decodes"] = ~made.engines["prefills"]
    mark_roles(made)
    made.hosts["link_seconds"] = hand / (ASKED.tokens * ASKED.token_bytes)
    return made, found


def test_kv_leaves_layer_by_layer_behind_its_prefill() -> None:
    made, found = handing_over(2, hand=0.5)
    work = prefill_seconds(made.engines[0], ASKED.tokens, 0.0)
    _, _, row = chosen(made, found)
    assert (row[HAND], row[HANDED]) == (pytest.approx(0.5), pytest.approx(work)), "it is hidden"
    made, found = handing_over(2, hand=5.0)
    _, _, row = chosen(made, found)
    assert work < 5.0 and row[HANDED] == pytest.approx(5.0)
    assert row[FIRST_TOKEN] == pytest.approx(work)


@pytest.mark.parametrize("column", ["leaves", "owed"])
def test_a_host_with_much_to_send_gets_no_more_to_prefill(column: str) -> None:
    made, found = handing_over(3, hand=2.0)
    found.dram[0] = found.local[0] = 10  # it would be the first choice
    assert chosen(made, found)[0] == 0
    made.hosts[column][0] = 9.0 + (ASKED.now if column == "leaves" else 0.0)
    engine, _, row = chosen(made, found, crowding=10.0)
    assert engine == 1
    made.engines["prefills"][1] = False
    _, _, row = chosen(made, found)
    assert row[HANDED] == pytest.approx(11.0), "behind all that goes before it"


def test_within_a_domain_what_its_wires_carry_is_waited_for_and_not_the_link() -> None:
    made, found = handing_over(2, hand=9.0)
    made = labelled(made, [0, 0], [UNLABELLED] * 2)
    made.hosts["domain_seconds"] = 4.0 / (ASKED.tokens * ASKED.token_bytes)
    made.hosts["leaves"][0] = ASKED.now + 20.0
    mark_roles(made)
    assert chosen(made, found)[2][HANDED] == pytest.approx(4.0)
    made.hosts["domain_leaves"][0] = ASKED.now + 5.0
    assert chosen(made, found)[2][HANDED] == pytest.approx(9.0)


def test_wires_of_a_domain_in_which_nobody_decodes_are_no_way_there() -> None:
    made, found = handing_over(2, hand=9.0)
    made = labelled(made, [0, 1], [UNLABELLED] * 2)
    made.hosts["domain_seconds"] = 4.0 / (ASKED.tokens * ASKED.token_bytes)
    made.hosts["domain_leaves"][0], made.hosts["leaves"][0] = ASKED.now + 20.0, ASKED.now + 1.0
    mark_roles(made)
    row = chosen(made, found)[2]
    assert (row[HAND], row[HANDED]) == (pytest.approx(9.0), pytest.approx(10.0))


def test_kv_goes_from_rack_to_rack_where_nobody_decodes_in_its_own() -> None:
    made, found = handing_over(3, hand=1.0)
    made = labelled(made, [UNLABELLED] * 3, [0, 1, 1])
    made.hosts["far_seconds"] = 12.0 / (ASKED.tokens * ASKED.token_bytes)
    mark_roles(made)
    priced = rows(3)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[:2, HAND] == pytest.approx([12.0, 1.0])
    found.dram[0] = found.local[0] = 10
    assert chosen(made, found)[0] == 1, "however much is there"
    made.hosts["rack"][2] = UNLABELLED
    mark_roles(made)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[:2, HAND] == pytest.approx([1.0, 1.0]), "it may be in either"


def test_one_that_would_be_with_who_decodes_it_too_late_is_refused() -> None:
    made, found = handing_over(2, hand=2.0)
    made.hosts["owed"][0] = RULES.ttft - 1.9
    assert chosen(made, found)[0] == NONE
    made.hosts["owed"][0] = RULES.ttft - 2.1
    assert chosen(made, found)[0] == 0
    made.hosts["owed"][0], made.hosts["decodes"][0] = 99.0, True
    assert chosen(made, found)[0] == 0, "it goes to nobody else"


def test_what_a_host_that_decodes_has_is_not_sent_there() -> None:
    made, found = handing_over(2, hand=4.0)
    priced = rows(2)
    for kept, hand in ((0.0, 4.0), (16.0, 4.0 * (1 - 16 * 512 / ASKED.tokens)), (31.5, None)):
        asked = ASKED._replace(kept=kept)
        price_all(made, found, asked, RULES, SCARCE, priced)
        least = made.hosts["link_seconds"][0] * ASKED.token_bytes
        assert priced[0, HAND] == pytest.approx(least if hand is None else hand)


def test_of_hosts_alike_the_one_that_sent_less_lately_prefills() -> None:
    made, found = handing_over(4, hand=2.0)
    made.hosts["sent"] = (40.0, 20.0, 30.0, 0.0)
    for first in range(3):
        assert chosen(made, found, first)[0] == 1


def test_a_copy_costs_what_it_displaces() -> None:
    """Fetching pays by less than the blocks are worth that its own put out of memory."""
    made, found = fleet(2), nothing(2, 2)
    made.engines["prefills"] = (True, False)
    found.dram[1] = found.local[1] = 20
    priced = rows(2)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    free = priced[0, COST]
    assert priced[0, FETCHED] == 20
    rules = RULES._replace(crowding=0.4)
    price_all(made, found, ASKED, rules, SCARCE, priced)
    displaced = 0.4 * 20 * 512 * 1.1e-4 * (1 + rules.charge * SCARCE)
    assert priced[0, FETCHED] == 20 and priced[0, COST] > free + 0.9 * displaced
    price_all(made, found, ASKED, RULES._replace(crowding=2.0), SCARCE, priced)
    assert priced[0, FETCHED] == 0, "it is computed anew"


def test_what_an_engine_prefills_whose_node_is_gone_is_computed_again_where_it_is_decoded() -> None:
    made, found = handing_over(3, hand=0.5)
    found.dram[2] = found.local[2] = 20
    made.hosts["away"][0], found.coming[0] = True, 10  # in memory of its own
    priced = rows(3)
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    whole = float(prefill_seconds(made.engines[0], ASKED.tokens, 0.0))
    row = priced[0]
    assert (row[BLOCKS], row[FETCHED], row[HAND]) == (10, 0, 0)
    assert row[HANDED] == pytest.approx(row[FIRST_TOKEN] + whole)
    assert priced[1, FETCHED] == 20 and chosen(made, found)[0] == 1
    made.engines["decodes"][0] = True
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[0, HANDED] == priced[0, FIRST_TOKEN], "it decodes it itself"
    made.engines["decodes"][0], made.engines["alone"][0] = False, True
    price_all(made, found, ASKED, RULES, SCARCE, priced)
    assert priced[0, HANDED] == priced[0, FIRST_TOKEN]
