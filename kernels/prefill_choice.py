"""Which engine is to prefill a prompt, and what of its prefix is to be brought there first.

For each engine the prompt is split where it ends soonest: what is there already, what is read from
its host's SSD, what is fetched from another host, and what is computed. More of a prefix costs more
to bring and less to compute, and what an earlier block saves is less than what a later one does. So
a split is best where bringing it takes just as long as the prompt waits anyway, or at the end of
what can be brought; both are priced and nothing else.

An engine's price is when the prompt's first token is expected, and a charge for what the others
wait for that: those that it overtakes by the seconds they lose, and those that come later by how
scarce time is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .fleet import SIZES, size_of, work_after

LOAD_MAX = 20.0  # of scarcity: above it all is lost anyway
FETCH_SHARE = 0.1  # of a link's second to an engine's
# What a choice is of, in a row of `priced`.
COST, FIRST_TOKEN, WORK, WAIT, READY, BLOCKS, FETCHED, READ = range(8)
PRICED = 8
NONE = -1


class Asked(NamedTuple):
    """A prompt that wants to be prefilled."""

    now: float
    tokens: float
    block_tokens: float
    token_bytes: float  # of KV
    waited: float  # seconds since it came
    factor: float  # of what prefills take, for what is known of this prompt alone; mostly 1


class Rules(NamedTuple):
    """What the fleet's owner wants, and how a choice is weighed."""

    ttft: float  # seconds until the first token, at most
    tpot: float  # seconds a token after it, at most
    gated: float  # 1: who cannot be served in time is refused; 0: everybody waits
    shortest_first: float  # 1: the shortest prefill is the first to run; 0: the first that came
    aging: float  # seconds of size that a second of waiting makes up for
    charge: float  # seconds of others' waiting that count as one of this prompt's
    margin: float  # times the prefill that has to fit behind the wait
    fetch: float  # 1: from other hosts too
    foresight: float  # 1: what is being computed counts as if it were there
    latency: float  # seconds of a transfer, however small


@njit
def busy_share(fleet: Any, now: Any) -> Any:
    """Of the engines that prefill, how many have work."""
    some, busy = 0, 0
    for one in range(len(fleet.engines)):
        if fleet.engines[one].prefills:
            some += 1
            busy += fleet.engines[one].busy_until > now or fleet.waiting[one, SIZES - 1] > 0
    return busy / max(1, some)


@njit
def scarcity(busy: Any) -> Any:
    """Seconds that those who come later wait for a second of an engine's time: an M/M/1 queue's,
    u / (1 - u), kept finite."""
    return min(busy / (1.05 - busy), LOAD_MAX)


@njit
def _waits(fleet: Any, engine: Any, work: Any, now: Any, rules: Any) -> Any:
    """Seconds until an engine gets to a newcomer of so much work, and how many it overtakes."""
    size = size_of(work) if rules.shortest_first else SIZES - 1
    running = max(0.0, fleet.engines[engine].busy_until - now)
    overtaken = fleet.waiting[engine, SIZES - 1] - fleet.waiting[engine, size]
    return running + fleet.ahead[engine, size], overtaken


@njit
def _consider(
    fleet: Any, engine: Any, blocks: Any, fetched: Any, read: Any, ready: Any,
    asked: Any, rules: Any, scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Keep this split of the prompt if it is this engine's best so far."""
    work = work_after(fleet, engine, asked.tokens, blocks, asked.block_tokens) * asked.factor
    wait, overtaken = _waits(fleet, engine, work, asked.now, rules)
    first_token = max(wait, ready) + work
    moved = (fetched * fleet.hosts[fleet.engines[engine].host].link_seconds) * asked.block_tokens
    imposed = work * (scarce + overtaken) + FETCH_SHARE * scarce * moved * asked.token_bytes
    cost = first_token + rules.charge * imposed
    if cost < priced[engine, COST]:
        priced[engine, COST], priced[engine, FIRST_TOKEN] = cost, first_token
        priced[engine, WORK], priced[engine, WAIT], priced[engine, READY] = work, wait, ready
        priced[engine, BLOCKS], priced[engine, FETCHED] = blocks, fetched
        priced[engine, READ] = read


@njit
def _bring(
    fleet: Any, engine: Any, there: Any, end: Any, begins: Any, a_block: Any, of_ssd: Any,
    asked: Any, rules: Any, scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Consider bringing the blocks from `there` to `end`, and as many as come while it waits."""
    if end <= there or not a_block < np.inf:
        return
    few = end
    for _ in range(2):
        moved = few - there
        ready = begins + a_block * moved
        _consider(
            fleet, engine, few, 0 if of_ssd else moved, moved if of_ssd else 0, ready,
            asked, rules, scarce, priced,
        )  # fmt: skip
        work = work_after(fleet, engine, asked.tokens, few, asked.block_tokens) * asked.factor
        wait, _overtaken = _waits(fleet, engine, work, asked.now, rules)
        if ready <= wait or wait <= begins:
            return
        few = there + np.int64((wait - begins) / a_block)
        if few <= there:
            return


@njit
def price_engine(
    fleet: Any, engine: Any, found: Any, best: Any, source: Any,
    asked: Any, rules: Any, scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Fill an engine's row of `priced` with its best split of the prompt.

    `source` is the host to fetch from, `NONE` for no host, and `best` how many blocks it has.
    """
    host, now = fleet.engines[engine].host, asked.now
    block_bytes = asked.block_tokens * asked.token_bytes
    here = found.dram[host]
    there = max(here, found.coming[engine]) if rules.foresight else here
    priced[engine, COST] = np.inf
    _consider(fleet, engine, there, 0, 0, 0.0, asked, rules, scarce, priced)
    begins = max(0.0, fleet.hosts[host].reads - now) + rules.latency
    a_block = fleet.hosts[host].ssd_seconds * block_bytes
    _bring(
        fleet, engine, there, found.local[host], begins, a_block, True,
        asked, rules, scarce, priced,
    )  # fmt: skip
    if source != NONE and source != host and rules.fetch:
        begins = (
            max(0.0, fleet.hosts[source].leaves - now, fleet.hosts[host].arrives - now)
            + rules.latency
        )
        a_block = (
            max(fleet.hosts[source].link_seconds, fleet.hosts[host].link_seconds) * block_bytes
        )
        if best > found.dram[source]:
            a_block = max(a_block, fleet.hosts[source].ssd_seconds * block_bytes)
        _bring(
            fleet, engine, there, best, begins, a_block, False,
            asked, rules, scarce, priced,
        )  # fmt: skip


@njit
def choose_source(fleet: Any, found: Any) -> Any:
    """The host with the longest prefix, of several the one whose link is free first; and how many
    blocks it has."""
    best, source = 0, NONE
    for host in range(len(found.local)):
        blocks = found.local[host]
        if blocks > best or (
            blocks == best
            and source != NONE
            and fleet.hosts[host].leaves < fleet.hosts[source].leaves
        ):
            best, source = blocks, host
    return best, source


@njit
def choose_prefill(
    fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, first: Any, priced: Any
) -> Any:
    """The engine of the least price of those that keep the target, else of all; the host that it
    fetches from. Looks from engine number `first` on, so that of equals chance decides.

    `NONE` and why not are in its answer where nobody is to prefill it. Every engine's best split is
    left in `priced`.
    """
    best, source = choose_source(fleet, found)
    count = len(fleet.engines)
    chosen, chosen_cost, in_time = NONE, np.inf, False
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            priced[engine, COST] = np.inf
            continue
        price_engine(fleet, engine, found, best, source, asked, rules, scarce, priced)
        begins = max(priced[engine, WAIT], priced[engine, READY])
        good = asked.waited + begins + rules.margin * priced[engine, WORK] <= rules.ttft
        if good > in_time or (good == in_time and priced[engine, COST] < chosen_cost):
            chosen, chosen_cost, in_time = engine, priced[engine, COST], good
    if rules.gated and not in_time:
        return NONE, NONE
    return chosen, source
