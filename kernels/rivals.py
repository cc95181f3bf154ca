"""Other ways to choose an engine for a prompt, as their authors published them, to be compared.

Each looks at what it looks at and no more. How the prompt is then split, whether it is refused, and
in which order an engine works are not the router's: they are the same for all, by the same rules.
`knobs` are a rival's own settings; what each is, stands at its function.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .fleet import NONE, SIZES, busy_for, busy_seconds, way_between, way_seconds, work_after
from .inner import BORROWED, inner
from .prefill_choice import price_engine
from .prefill_price import (
    BLOCKS,
    COST,
    FETCHED,
    FIRST_TOKEN,
    HAND,
    HANDED,
    READ,
    READY,
    SOURCE,
    WAIT,
    WORK,
    hand_on_seconds,
    handed_seconds,
)
from .source_choice import choose_source

OURS, RANDOM, ROUND_ROBIN, LEAST_LOADED, SGLANG, MOONCAKE, DYNAMO, LLM_D, PREBLE, LMETRIC = range(
    10
)
KNOBS = 4
WINDOW_PARTS, WINDOW_SECONDS = 60, 180.0  # of what Preble looks back at


TALLY = np.dtype(
    [
        ("queued", np.int64),  # prompts that run or wait
        ("uncached", np.float64),  # blocks that these compute
        ("blocks", np.float64),  # blocks of these in all
        ("used", np.float64),  # share of its memory that is in use
        ("full", np.bool_),  # a new block there costs another
    ],
    align=True,
)


class Tally(NamedTuple):
    """What rivals count of each engine that prefills."""

    engines: NDArray[np.void]  # of TALLY
    recent: NDArray[np.float64]  # [engine, WINDOW_PARTS]: seconds of work sent there lately
    part: NDArray[np.int64]  # [engine, WINDOW_PARTS]: which part of time each is of
    turn: NDArray[np.int64]  # [1]: round-robin's


def tally(engines: int) -> Tally:
    return Tally(
        np.zeros(engines, TALLY),
        np.zeros((engines, WINDOW_PARTS)),
        np.full((engines, WINDOW_PARTS), -1, np.int64),
        np.zeros(1, np.int64),
    )


@njit(**BORROWED)
def sent(t: Any, engine: Any, now: Any, seconds: Any) -> None:
    """So much work was sent to an engine."""
    part = np.int64(now / (WINDOW_SECONDS / WINDOW_PARTS))
    at = part % WINDOW_PARTS
    if t.part[engine, at] != part:
        t.part[engine, at], t.recent[engine, at] = part, 0.0
    t.recent[engine, at] += seconds


@inner
def _recently(t: Any, engine: Any, now: Any) -> Any:
    part = np.int64(now / (WINDOW_SECONDS / WINDOW_PARTS))
    total = 0.0
    for at in range(WINDOW_PARTS):
        if part - t.part[engine, at] < WINDOW_PARTS:
            total += t.recent[engine, at]
    return total


@inner
def _known(fleet: Any, found: Any, engine: Any, rules: Any) -> Any:
    """Leading blocks that a router believes to be at an engine."""
    here = found.dram[fleet.engines[engine].host]
    return max(here, found.coming[engine]) if rules.foresight else here


@inner
def _round_robin(fleet: Any, t: Any) -> Any:
    count = len(fleet.engines)
    for step in range(1, count + 1):
        engine = (t.turn[0] + step) % count
        if fleet.engines[engine].prefills:
            t.turn[0] = engine
            return engine
    return NONE


@inner
def _least_loaded(fleet: Any, now: Any, first: Any) -> Any:
    """The fewest seconds of work that it has still to do."""
    best, least, count = NONE, np.inf, len(fleet.engines)
    for step in range(count):
        engine = (first + step) % count
        load = busy_for(fleet.engines[engine], now) + fleet.lines[SIZES - 1, engine].ahead
        if fleet.engines[engine].prefills and load < least:
            best, least = engine, load
    return best


@inner
def _sglang(fleet: Any, t: Any, found: Any, asked: Any, rules: Any, knobs: Any, first: Any) -> Any:
    """Cache-aware, of SGLang's router: where loads differ by more than `abs` and `rel` times, the
    shortest queue; else the best match, if it is more than a share of the prompt; else the shortest
    queue. Knobs: the share, abs, rel."""
    count, total = len(fleet.engines), np.ceil(asked.tokens / asked.block_tokens)
    shortest, matching, least, most, best = NONE, NONE, np.inf, 0.0, -1
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        load, match = np.float64(t.engines[engine].queued), _known(fleet, found, engine, rules)
        most = max(most, load)
        if load < least:
            shortest, least = engine, load
        if match > best:
            matching, best = engine, match
    unbalanced = most - least > knobs[1] and most > knobs[2] * least
    return shortest if unbalanced or best <= knobs[0] * total else matching


@inner
def _mooncake(
    fleet: Any, found: Any, source: Any, most: Any, asked: Any, rules: Any, knobs: Any,
    first: Any, priced: Any,
) -> Any:  # fmt: skip
    """Algorithm 1 of Mooncake (FAST'25, section 4): where another's prefix is more than a threshold
    longer than an engine's own, all of it is fetched; the least time to the first token wins. What
    is on an SSD is of a prefix too, and takes what reading it takes. Its price is left in `priced`.
    Knobs: the threshold."""
    chosen, least, count = NONE, np.inf, len(fleet.engines)
    block_bytes = asked.block_tokens * asked.token_bytes
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        host = fleet.engines[engine].host
        known, taker = _known(fleet, found, engine, rules), fleet.hosts[host]
        blocks, fetched, read, ready = max(known, found.local[host]), 0, 0, 0.0
        if rules.fetch and source != host and most > blocks and most > knobs[0] * blocks:
            giver, blocks, fetched = fleet.hosts[source], most, most - known
            a_block = way_seconds(giver, taker)
            if found.dram[source] < most:
                a_block = max(a_block, giver.ssd_seconds)
            begins = busy_seconds(giver, taker, way_between(giver, taker), asked.now)
            ready = begins + rules.latency + a_block * block_bytes * fetched
        elif blocks > known:
            read = blocks - known
            begins = max(0.0, taker.reads - asked.now)
            ready = begins + rules.latency + taker.ssd_seconds * block_bytes * read
        work = (
            work_after(fleet.engines[engine], asked.tokens, blocks, asked.block_tokens)
            * asked.factor
        )
        wait = busy_for(fleet.engines[engine], asked.now) + fleet.lines[SIZES - 1, engine].ahead
        first_token = max(wait, ready) + work
        if first_token < least:
            chosen, least = engine, first_token
            priced[engine, COST] = priced[engine, FIRST_TOKEN] = first_token
            priced[engine, WORK], priced[engine, WAIT], priced[engine, READY] = work, wait, ready
            priced[engine, BLOCKS], priced[engine, FETCHED] = blocks, fetched
            begins = max(wait, ready)
            hand = hand_on_seconds(taker, asked)
            priced[engine, HAND] = hand
            priced[engine, HANDED] = handed_seconds(taker, begins, work, hand, asked.now)
            priced[engine, READ], priced[engine, SOURCE] = read, source if fetched else NONE
    return chosen


@inner
def _dynamo(fleet: Any, t: Any, found: Any, asked: Any, rules: Any, knobs: Any, first: Any) -> Any:
    """Overlap cost of Dynamo's KvRouter: a weight times the blocks that are to be computed, these
    and those that wait, less what is cached (on SSD at a share), plus a weight times all blocks.
    Knobs: the two weights, the share of SSD."""
    best, least, count = NONE, np.inf, len(fleet.engines)
    total = np.ceil(asked.tokens / asked.block_tokens)
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        known = _known(fleet, found, engine, rules)
        disk = max(0, found.local[fleet.engines[engine].host] - known)
        new = max(0.0, total - known - knobs[2] * disk)
        cost = knobs[0] * (t.engines[engine].uncached + new) + knobs[1] * (
            t.engines[engine].blocks + total
        )
        if cost < least:
            best, least = engine, cost
    return best


@inner
def _llm_d(fleet: Any, t: Any, found: Any, asked: Any, rules: Any, knobs: Any, first: Any) -> Any:
    """llm-d's scorers: the share of the prompt that is cached, room for KV, and how short the queue
    is, from 0 for the longest to 1 for the shortest. Knobs: their weights."""
    best, most, count, shortest, longest = NONE, -np.inf, len(fleet.engines), np.inf, 0.0
    for engine in range(count):
        if fleet.engines[engine].prefills:
            shortest = min(shortest, t.engines[engine].queued)
            longest = max(longest, t.engines[engine].queued)
    total = np.ceil(asked.tokens / asked.block_tokens)
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        score = knobs[0] * _known(fleet, found, engine, rules) / total
        score += knobs[1] * (1.0 - t.engines[engine].used)
        score += knobs[2] * (longest - t.engines[engine].queued) / max(1.0, longest - shortest)
        if score > most:
            best, most = engine, score
    return best


@inner
def _preble(fleet: Any, t: Any, found: Any, asked: Any, rules: Any, knobs: Any, first: Any) -> Any:
    """E2 of Preble (ICLR'25): a prompt of which more is cached than not goes to where it is, unless
    that has had more than a factor of the least load; others go where the last three minutes' work,
    and what is evicted for them, is least. Knobs: the factor, the share of evicted blocks that will
    be computed again."""
    count, total = len(fleet.engines), np.ceil(asked.tokens / asked.block_tokens)
    matching, exploring, longest, least, load_there = NONE, NONE, -1, np.inf, np.inf
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        known, load = _known(fleet, found, engine, rules), _recently(t, engine, asked.now)
        if known > longest or (known == longest and load < load_there):
            matching, longest, load_there = engine, known, load
        work = work_after(fleet.engines[engine], asked.tokens, known, asked.block_tokens)
        evicted = fleet.engines[engine].prefill_b * asked.block_tokens * max(0.0, total - known)
        price = load + work + (knobs[1] * evicted if t.engines[engine].full else 0.0)
        if price < least:
            exploring, least = engine, price
    return matching if total - longest < longest and load_there <= knobs[0] * least else exploring


@inner
def _lmetric(fleet: Any, t: Any, found: Any, asked: Any, rules: Any, first: Any) -> Any:
    """LMetric (OSDI'26): new tokens to prefill times one more than the prompts there."""
    best, least, count = NONE, np.inf, len(fleet.engines)
    for step in range(count):
        engine = (first + step) % count
        if not fleet.engines[engine].prefills:
            continue
        new = asked.tokens - _known(fleet, found, engine, rules) * asked.block_tokens
        cost = max(1.0, new) * (t.engines[engine].queued + 1)
        if cost < least:
            best, least = engine, cost
    return best


@njit(**BORROWED)
def choose_as(
    policy: Any, fleet: Any, t: Any, found: Any, asked: Any, rules: Any, knobs: Any,
    first: Any, priced: Any,
) -> Any:  # fmt: skip
    """The engine that a rival chooses and the host that it fetches from, or `NONE`, `NONE`; its
    split of the prompt is left in `priced`."""
    most, source = choose_source(fleet, found)
    if policy == RANDOM:  # `first` is any that prefills, with equal chance
        engine = first
        while not fleet.engines[engine].prefills:
            engine = (engine + 1) % len(fleet.engines)
    elif policy == ROUND_ROBIN:
        engine = _round_robin(fleet, t)
    elif policy == LEAST_LOADED:
        engine = _least_loaded(fleet, asked.now, first)
    elif policy == SGLANG:
        engine = _sglang(fleet, t, found, asked, rules, knobs, first)
    elif policy == MOONCAKE:
        engine = _mooncake(fleet, found, source, most, asked, rules, knobs, first, priced)
    elif policy == DYNAMO:
        engine = _dynamo(fleet, t, found, asked, rules, knobs, first)
    elif policy == LLM_D:
        engine = _llm_d(fleet, t, found, asked, rules, knobs, first)
    elif policy == PREBLE:
        engine = _preble(fleet, t, found, asked, rules, knobs, first)
    else:
        engine = _lmetric(fleet, t, found, asked, rules, first)
    if engine == NONE:
        return NONE, NONE
    if policy != MOONCAKE:
        price_engine(fleet, engine, found, most, source, 0.0, asked, rules, 0.0, priced)
    begins = max(priced[engine, WAIT], priced[engine, READY])
    late = asked.waited + rules.margin * begins + priced[engine, WORK] > rules.ttft
    late |= asked.waited + priced[engine, HANDED] > rules.ttft
    if rules.gated and late:
        return NONE, NONE
    return engine, np.int64(priced[engine, SOURCE])
