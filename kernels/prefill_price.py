"""What it costs to have an engine prefill a prompt, with the best split of it.

For each engine the prompt is split where it ends soonest: what is there already, what is read from
its host's SSD, what is fetched from another host, and what is computed. More of a prefix costs more
to bring and less to compute, and what an earlier block saves is less than what a later one does. So
a split is best where bringing it takes just as long as the prompt waits anyway, or at the end of
what can be brought; both are priced and nothing else.

An engine's price is when the prompt is expected to be with who decodes it, and two charges. What
the others wait for that: those that it overtakes by the seconds they lose, and those that come
later by how scarce time is, of the engine and of the ways out of its host and of the one that
blocks are fetched from. And what is displaced: by new blocks in memory that was given more than
other hosts', and by copies wherever they go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .fleet import (
    LATELY_SECONDS,
    NONE,
    SIZES,
    UNLABELLED,
    busy_for,
    busy_seconds,
    end_seconds,
    goes_by_domain,
    hand_seconds,
    size_of,
    way_between,
    work_after,
)
from .inner import inner
from .scarcity import scarcity

# What a price is of, in a row of `priced`; its SOURCE is `NONE` where nothing is fetched.
COST, FIRST_TOKEN, WORK, WAIT, READY, BLOCKS, FETCHED, READ, HAND, HANDED, SOURCE = range(11)
PRICED = 11


def unpriced(engines: int) -> NDArray[np.float64]:
    """Rows of `priced`. A column is in one piece: all costs are looked at, and few rows."""
    return np.zeros((engines, PRICED), order="F")


class Asked(NamedTuple):
    """A prompt that wants to be prefilled."""

    now: float
    tokens: float
    block_tokens: float
    token_bytes: float  # of KV
    waited: float  # seconds since it came
    factor: float  # of what prefills take, for what is known of this prompt alone; mostly 1
    kept: float = 0.0  # leading blocks that a host has which decodes: see `kept_by_decoders`
    answer: float = 0.0  # tokens that may come behind it at most; 0: nobody knows
    # Seconds by which its target is longer at an engine that is idle: lines are kept short in a
    # crowd, and nobody is kept from work for it.
    spare: float = 0.0


@inner
def has_place(engine: Any, asked: Any) -> Any:
    """Whether an engine that prefills can have the prompt, and its answer too where it is to decode
    what it prefills."""
    return asked.tokens + (asked.answer if engine.alone else 0.0) <= engine.room


@inner
def waits(fleet: Any, number: Any, work: Any, asked: Any, rules: Any) -> Any:
    """Seconds until an engine gets to a newcomer of so much work."""
    size = size_of(work) if rules.shortest_first else SIZES - 1
    return busy_for(fleet.engines[number], asked.now) + fleet.lines[size, number].ahead


@inner
def hand_on_seconds(host: Any, asked: Any) -> Any:
    """That a prompt's KV takes to leave its host, what is not yet where it may be decoded."""
    if host.away:
        return 0.0  # it does not: see `again_seconds`
    tokens = max(1.0, asked.tokens - asked.kept * asked.block_tokens)
    return hand_seconds(host, tokens * asked.token_bytes)


@inner
def handed_seconds(host: Any, begins: Any, work: Any, hand: Any, now: Any) -> Any:
    """Until a prompt that is begun so soon is with who decodes it: layer by layer behind its
    prefill, and behind all that is to leave its host before."""
    if hand == 0.0:
        return begins + work
    return max(begins + work, max(begins, leaving_seconds(host, now)) + hand)


@inner
def again_seconds(engine: Any, host: Any, asked: Any) -> Any:
    """That whoever decodes a prompt takes to compute all of it again: none, but where the node of
    an engine that only prefills is gone. It is taken to be as quick as that engine."""
    if not host.away or engine.decodes or engine.alone:
        return 0.0
    return work_after(engine, asked.tokens, 0, asked.block_tokens) * asked.factor


@inner
def leaving_seconds(host: Any, now: Any) -> Any:
    """Until all has left a host that is to leave it before what comes now."""
    leaves = host.domain_leaves if goes_by_domain(host) else host.leaves
    return max(0.0, leaves - now) + host.owed


@inner
def links_scarcity(host: Any) -> Any:
    """Seconds that others wait for a second of a host's way out."""
    return scarcity(min(1.0, host.sent / LATELY_SECONDS))


@inner
def sent_seconds(host: Any, hand: Any) -> Any:
    """That others wait for what a prompt's KV takes to leave its host."""
    return hand * links_scarcity(host) if hand > 0.0 else 0.0


@inner
def overtaken(fleet: Any, number: Any, work: Any, rules: Any) -> Any:
    """How many of those that wait at an engine begin later for so much work."""
    if not rules.shortest_first:
        return 0
    return fleet.lines[SIZES - 1, number].waiting - fleet.lines[size_of(work), number].waiting


@inner
def _option(
    fleet: Any, number: Any, host: Any, hand: Any, sent: Any, giver: Any, link: Any, blocks: Any,
    fetched: Any, read: Any, ready: Any, asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """One split of the prompt, priced: a row of `priced`, but for its SOURCE. `hand` is what its KV
    takes to leave, and `sent` what others wait for that; `link` is seconds of a byte at the
    engine's end of the way that it is fetched by."""
    engine = fleet.engines[number]
    work = work_after(engine, asked.tokens, blocks, asked.block_tokens) * asked.factor
    wait = waits(fleet, number, work, asked, rules)
    begins = max(wait, ready)
    handed = handed_seconds(host, begins, work, hand, asked.now)
    handed += again_seconds(engine, host, asked)
    copied = fetched * asked.block_tokens
    imposed = work * (scarce + overtaken(fleet, number, work, rules)) + sent
    if fetched:
        imposed += copied * asked.token_bytes * link * links_scarcity(giver)
    displaced = rules.crowding * copied * engine.prefill_b
    cost = handed + rules.charge * imposed + displaced * (1.0 + rules.charge * scarce)
    return (
        *(cost, begins + work, work, wait, ready),
        *(float(blocks), float(fetched), float(read), hand, handed),
    )


@inner
def _fetching(source: Any, host: Any, best: Any, in_dram: Any, asked: Any, rules: Any) -> Any:
    """Of what is fetched from a source that has `best` blocks: when the first comes, seconds of a
    block, and of a byte at the engine's end."""
    way = way_between(source, host)
    link = end_seconds(host, way)
    a_byte = max(end_seconds(source, way), link)
    if in_dram < best:
        a_byte = max(a_byte, source.ssd_seconds)
    begins = busy_seconds(source, host, way, asked.now) + rules.latency
    return begins, a_byte * asked.block_tokens * asked.token_bytes, link


@inner
def _few(wait: Any, there: Any, begins: Any, a_block: Any) -> Any:
    """Blocks that are there when the prompt has waited, where they come one by one."""
    return there + (np.int64((wait - begins) / a_block) if wait > begins else 0)


@inner
def split(
    fleet: Any, number: Any, there: Any, local: Any, source: Any, best: Any, in_dram: Any,
    asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """An engine's best split of a prompt: a row of `priced`, but for its SOURCE.

    The `source` to fetch from is a record. Of the prompt's leading blocks `there` need neither be
    moved nor computed, `local` are on the engine's host with its SSD, `best` at the source, 0 for
    nothing to fetch, and `in_dram` of these in its DRAM.
    """
    host = fleet.hosts[fleet.engines[number].host]
    hand = hand_on_seconds(host, asked)
    sent = sent_seconds(host, hand)
    most = _option(
        fleet, number, host, hand, sent, host, 0.0, there, 0, 0, 0.0, asked, rules, scarce
    )
    if local > there:
        begins = max(0.0, host.reads - asked.now) + rules.latency
        a_block = host.ssd_seconds * asked.block_tokens * asked.token_bytes
        more = local - there
        ready = begins + a_block * more
        whole = _option(
            fleet, number, host, hand, sent, host, 0.0, local, 0, more, ready, asked, rules,
            scarce,
        )  # fmt: skip
        few = _few(whole[WAIT], there, begins, a_block)
        most = whole if whole[COST] < most[COST] else most
        if there < few < local:
            more = few - there
            ready = begins + a_block * more
            some = _option(
                fleet, number, host, hand, sent, host, 0.0, few, 0, more, ready, asked, rules,
                scarce,
            )  # fmt: skip
            most = some if some[COST] < most[COST] else most
    if best > there:
        begins, a_block, link = _fetching(source, host, best, in_dram, asked, rules)
        more = best - there
        ready = begins + a_block * more
        whole = _option(
            fleet, number, host, hand, sent, source, link, best, more, 0, ready, asked, rules,
            scarce,
        )  # fmt: skip
        few = _few(whole[WAIT], there, begins, a_block)
        most = whole if whole[COST] < most[COST] else most
        if there < few < best:
            more = few - there
            ready = begins + a_block * more
            some = _option(
                fleet, number, host, hand, sent, source, link, few, more, 0, ready, asked, rules,
                scarce,
            )  # fmt: skip
            most = some if some[COST] < most[COST] else most
    return most


@inner
def nearer(
    row: Any, fleet: Any, found: Any, number: Any, there: Any, source: Any,
    asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """The better of a split with `source` and of those with the best hosts of the engine's domain
    and rack; and which host that one fetches from."""
    hosts, at = fleet.hosts, fleet.engines[number].host
    local, chosen, before = found.local, source, source
    for label in (hosts[at].domain, hosts[at].rack):
        other = np.int64(fleet.near[label]) if label != UNLABELLED else NONE
        if other != NONE and other != at and other != source and other != before:
            before = other
            another = split(
                fleet, number, there, local[at], hosts[other], local[other], found.dram[other],
                asked, rules, scarce,
            )  # fmt: skip
            if another[COST] < row[COST]:
                row, chosen = another, other
    return row, chosen


@inner
def crowding_charge(engine: Any, host: Any, there: Any, given: Any, asked: Any, rules: Any) -> Any:
    """The charge for what a prompt's new blocks displace: computing as many again, if with them its
    host was given as many lately as the one that was given the most; if it was fewer, less."""
    new = np.floor(asked.tokens / asked.block_tokens) - there
    if new <= 0.0:
        return 0.0
    worth = work_after(engine, asked.tokens, there, asked.block_tokens) - engine.prefill_a
    return rules.crowding * worth * (host.placed + new) / (given + new)
