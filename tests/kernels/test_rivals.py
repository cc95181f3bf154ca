"""Each rival on a case where its rule decides, and on one where it decides the other way."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.kernels import rivals
from kvstore.kernels.fleet import NONE, Fleet, Found, nothing
from kvstore.kernels.prefill_price import BLOCKS, FETCHED, FIRST_TOKEN, READ, READY
from tests.kernels.fleets import ASKED, RULES, fleet, rows, wait_behind

PLAIN = RULES._replace(
    gated=0.0, shortest_first=0.0, aging=0.0, charge=0.0, margin=1.0, foresight=0.0
)
KNOBS = {
    rivals.SGLANG: (0.5, 32.0, 1.1),
    rivals.MOONCAKE: (1.0,),
    rivals.DYNAMO: (1.0, 1.0, 0.25),
    rivals.LLM_D: (3.0, 2.0, 2.0),
    rivals.PREBLE: (1.5, 0.3),
}


class Case:
    """Four idle engines that know nothing, and what a test makes of them."""

    def __init__(self) -> None:
        self.fleet: Fleet = fleet(4)
        self.found: Found = nothing(4, 4)
        self.tally = rivals.tally(4)
        self.priced = rows(4)

    def has(self, engine: int, blocks: int) -> None:
        self.found.dram[engine] = self.found.local[engine] = blocks

    def queue(self, engine: int, prompts: int, seconds: float = 1.0) -> None:
        self.tally.engines[engine]["queued"] += prompts
        self.tally.engines[engine]["blocks"] += 30 * prompts
        self.tally.engines[engine]["uncached"] += 30 * prompts
        for _ in range(prompts):
            wait_behind(self.fleet, engine, seconds)

    def choice(self, policy: int, first: int = 0, **rules: float) -> int:
        knobs = np.zeros(rivals.KNOBS)
        knobs[: len(KNOBS.get(policy, ()))] = KNOBS.get(policy, ())
        chosen, _ = rivals.choose_as(
            policy,
            self.fleet,
            self.tally,
            self.found,
            ASKED,
            PLAIN._replace(**rules),
            knobs,
            first,
            self.priced,
        )
        return int(chosen)


EVERY = range(rivals.RANDOM, rivals.LMETRIC + 1)


@pytest.mark.parametrize("policy", EVERY)
def test_nobody_is_sent_to_an_engine_that_takes_no_prompts(policy: int) -> None:
    case = Case()
    case.fleet.engines["prefills"] = (False, False, True, False)
    case.has(0, 30)
    case.queue(2, 3)
    assert [case.choice(policy, first) for first in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize("policy", EVERY)
def test_a_gate_refuses_for_every_router_what_cannot_be_in_time(policy: int) -> None:
    case = Case()
    case.fleet.engines["busy_until"] = ASKED.now + 100
    assert case.choice(policy) != NONE
    assert case.choice(policy, gated=1.0) == NONE


def test_random_goes_where_the_dice_fall() -> None:
    assert [Case().choice(rivals.RANDOM, first) for first in range(4)] == [0, 1, 2, 3]


def test_round_robin_takes_turns() -> None:
    case = Case()
    assert [case.choice(rivals.ROUND_ROBIN) for _ in range(5)] == [1, 2, 3, 0, 1]


def test_least_loaded_counts_seconds_and_no_prefixes() -> None:
    case = Case()
    case.has(0, 30)
    for engine, prompts in enumerate((3, 2, 1, 2)):
        case.queue(engine, prompts)
    assert case.choice(rivals.LEAST_LOADED) == 2


def test_sglang_follows_a_long_match_unless_the_queues_are_uneven() -> None:
    case = Case()
    case.has(1, 20)
    case.queue(1, 5)
    assert case.choice(rivals.SGLANG) == 1
    case.queue(1, 40)
    assert case.choice(rivals.SGLANG) != 1


def test_sglang_takes_the_shortest_queue_where_the_match_is_short() -> None:
    case = Case()
    case.has(1, 10)
    case.queue(1, 1)
    assert case.choice(rivals.SGLANG) != 1


def test_mooncake_fetches_all_of_a_longer_prefix_and_takes_the_soonest() -> None:
    case = Case()
    case.has(1, 20)
    case.queue(1, 5)
    chosen = case.choice(rivals.MOONCAKE)
    assert chosen != 1
    assert (case.priced[chosen, BLOCKS], case.priced[chosen, FETCHED]) == (20, 20)


def test_mooncake_stays_with_an_own_prefix_that_is_nearly_as_long() -> None:
    case = Case()
    case.has(1, 20)
    for engine in (0, 2, 3):
        case.queue(engine, 9)
    case.fleet.hosts["link_seconds"] = 1 / 1e6
    assert case.choice(rivals.MOONCAKE) == 1
    assert case.priced[1, FETCHED] == 0
    assert case.priced[1, FIRST_TOKEN] < 2.0


def test_mooncake_reads_a_longer_prefix_from_a_host_s_own_ssd() -> None:
    """Its cache is of DRAM and SSD: what is on either is a prefix, and SSD takes its time."""
    case = Case()
    case.found.local[1] = 20
    case.fleet.hosts["ssd_seconds"] = 1 / 6e9
    assert case.choice(rivals.MOONCAKE, fetch=0.0) == 1
    assert (case.priced[1, BLOCKS], case.priced[1, READ], case.priced[1, FETCHED]) == (20, 20, 0)
    block_bytes = ASKED.block_tokens * ASKED.token_bytes
    assert case.priced[1, READY] >= 20 * block_bytes / 6e9
    case.queue(1, 9)
    chosen = case.choice(rivals.MOONCAKE)
    assert chosen != 1 and case.priced[chosen, FETCHED] == 20
    assert case.priced[chosen, READY] >= 20 * block_bytes / 6e9, "from SSD, not at the link's speed"


def test_dynamo_adds_up_what_is_to_be_computed_and_what_is_held() -> None:
    case = Case()
    case.has(1, 20)
    assert case.choice(rivals.DYNAMO) == 1
    case.queue(1, 1)
    assert case.choice(rivals.DYNAMO) != 1


def test_llm_d_weighs_prefix_room_and_queue() -> None:
    case = Case()
    case.has(1, 20)
    assert case.choice(rivals.LLM_D) == 1
    case.tally.engines[1]["used"] = 1.0
    case.queue(1, 10)
    assert case.choice(rivals.LLM_D) != 1


def test_llm_d_tells_queues_apart_by_the_shortest_and_the_longest() -> None:
    """Its scorer gives the shortest queue 1 and the longest 0, however long both are."""
    case = Case()
    case.has(1, 12)
    for engine in range(4):
        case.queue(engine, 10)
    assert case.choice(rivals.LLM_D) == 1
    case.queue(1, 2)
    assert case.choice(rivals.LLM_D) != 1


def test_preble_exploits_a_prefix_that_is_most_of_the_prompt_while_its_load_is_fair() -> None:
    case = Case()
    case.has(1, 20)
    assert case.choice(rivals.PREBLE) == 1
    rivals.sent(case.tally, 1, ASKED.now - 60, 100.0)
    assert case.choice(rivals.PREBLE) != 1


def test_preble_forgets_a_load_of_more_than_three_minutes_ago() -> None:
    case = Case()
    case.has(1, 20)
    rivals.sent(case.tally, 1, ASKED.now - rivals.WINDOW_SECONDS - 10, 100.0)
    assert case.choice(rivals.PREBLE) == 1


def test_preble_explores_where_a_prefix_is_less_than_half() -> None:
    case = Case()
    case.has(1, 15)
    rivals.sent(case.tally, 1, ASKED.now - 5, 3.0)
    assert case.choice(rivals.PREBLE) != 1


def test_lmetric_multiplies_new_tokens_by_the_prompts_there() -> None:
    case = Case()
    case.has(1, 20)
    case.queue(1, 1)
    assert case.choice(rivals.LMETRIC) == 1
    case.queue(1, 2)
    assert case.choice(rivals.LMETRIC) != 1
