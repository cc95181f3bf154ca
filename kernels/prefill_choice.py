"""Which engine is to prefill a prompt, and what of its prefix is to be brought there first.

For each engine the prompt is split where it ends soonest: what is there already, what is read from
its host's SSD, what is fetched from another host, and what is computed. More of a prefix costs more
to bring and less to compute, and what an earlier block saves is less than what a later one does. So
a split is best where bringing it takes just as long as the prompt waits anyway, or at the end of
what can be brought; both are priced and nothing else.

It is fetched from the host with the longest prefix; or, where hosts have labels, from the one with
the longest of the engine's own domain or rack, if what is nearer costs less.

An engine's price is when the prompt is expected to be with who decodes it, and two charges. What
the others wait for that: those that it overtakes by the seconds they lose, and those that come
later by how scarce time is, of the engine and of the ways out of its host and of the one that
blocks are fetched from. And what is displaced: by new blocks in memory that was given more than
other hosts', and by copies wherever they go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .fleet import (
    LATELY_SECONDS,
    SIZES,
    UNLABELLED,
    busy_for,
    busy_seconds,
    end_seconds,
    hand_seconds,
    most_placed,
    size_of,
    way_between,
    work_after,
)
from .inner import inner

LOAD_MAX = 20.0  # of scarcity: above it all is lost anyway
# What a choice is of, in a row of `priced`.
COST, FIRST_TOKEN, WORK, WAIT, READY, BLOCKS, FETCHED, READ, HAND, HANDED, SOURCE = range(11)
PRICED = 11
NONE = -1  # also for SOURCE, where nothing is fetched
BUSY_SECONDS = 60.0  # over which the share of busy engines is a mean


class Asked(NamedTuple):
    """A prompt that wants to be prefilled."""

    now: float
    tokens: float
    block_tokens: float
    token_bytes: float  # of KV
    waited: float  # seconds since it came
    factor: float  # of what prefills take, for what is known of this prompt alone; mostly 1
    kept: float = 0.0  # leading blocks that a host has which decodes: see `look_at_decoders`


@inner
def busy_share(fleet: Any, now: Any) -> Any:
    """Of the engines that prefill, how many have work."""
    some, busy, engines = 0, 0, fleet.engines
    for one in range(len(engines)):
        if engines[one].prefills:
            some += 1
            busy += busy_for(engines[one], now) > 0.0 or engines[one].waiting[SIZES - 1] > 0
    return busy / max(1, some)


@inner
def lately_busy(fleet: Any, busy: Any, since: Any, now: Any) -> Any:
    """Of the engines that prefill, the share that has had work lately: `busy` is what it was at
    the moment `since`. A burst of a second does not make time scarce."""
    kept = np.exp(-max(0.0, now - since) / BUSY_SECONDS)
    return busy * kept + (1.0 - kept) * busy_share(fleet, now)


@inner
def scarcity(busy: Any) -> Any:
    """Seconds that those who come later wait for a second of an engine's time: an M/M/1 queue's,
    u / (1 - u), kept finite."""
    return min(busy / (1.05 - busy), LOAD_MAX)


@inner
def _waits(engine: Any, work: Any, asked: Any, rules: Any) -> Any:
    """Seconds until an engine gets to a newcomer of so much work."""
    size = size_of(work) if rules.shortest_first else SIZES - 1
    return busy_for(engine, asked.now) + engine.ahead[size]


@inner
def hand_on_seconds(host: Any, asked: Any) -> Any:
    """That a prompt's KV takes to leave its host, what is not yet where it may be decoded."""
    tokens = max(1.0, asked.tokens - asked.kept * asked.block_tokens)
    return hand_seconds(host, tokens * asked.token_bytes)


@inner
def handed_seconds(host: Any, begins: Any, work: Any, hand: Any, now: Any) -> Any:
    """Until a prompt that is begun so soon is with who decodes it: layer by layer behind its
    prefill, and behind all that is to leave its host before."""
    if hand == 0.0:
        return begins + work
    leaves = host.domain_leaves if host.domain_seconds < host.link_seconds else host.leaves
    ahead = max(0.0, leaves - now) + host.owed
    return max(begins + work, max(begins, ahead) + hand)


@inner
def _links_scarcity(host: Any) -> Any:
    """Seconds that others wait for a second of a host's way out, likewise."""
    return scarcity(min(1.0, host.sent / LATELY_SECONDS))


@inner
def _sent_seconds(host: Any, hand: Any) -> Any:
    """That others wait for what a prompt's KV takes to leave its host."""
    return hand * _links_scarcity(host) if hand > 0.0 else 0.0


@inner
def _option(
    engine: Any, host: Any, hand: Any, sent: Any, giver: Any, link: Any, blocks: Any, fetched: Any,
    read: Any, ready: Any, asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """One split of the prompt, priced: a row of `priced`, but for its SOURCE. `hand` is what its KV
    takes to leave, and `sent` what others wait for that; `link` is seconds of a byte at the
    engine's end of the way that it is fetched by."""
    work = work_after(engine, asked.tokens, blocks, asked.block_tokens) * asked.factor
    wait = _waits(engine, work, asked, rules)
    begins = max(wait, ready)
    handed = handed_seconds(host, begins, work, hand, asked.now)
    copied = fetched * asked.block_tokens
    imposed = work * scarce + sent
    if fetched:
        imposed += copied * asked.token_bytes * link * _links_scarcity(giver)
    if rules.shortest_first:
        imposed += work * (engine.waiting[SIZES - 1] - engine.waiting[size_of(work)])
    displaced = rules.crowding * copied * engine.prefill_b
    cost = handed + rules.charge * imposed + displaced * (1.0 + rules.charge * scarce)
    return (
        *(cost, begins + work, work, wait, ready),
        *(float(blocks), float(fetched), float(read), hand, handed),
    )


@inner
def _better(one: Any, other: Any) -> Any:
    return other if other[COST] < one[COST] else one


@inner
def _few(wait: Any, there: Any, begins: Any, a_block: Any) -> Any:
    """Blocks that are there when the prompt has waited, where they come one by one."""
    return there + (np.int64((wait - begins) / a_block) if wait > begins else 0)


@inner
def split(
    engine: Any, host: Any, there: Any, local: Any, source: Any, best: Any, in_dram: Any,
    asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """An engine's best split of a prompt: a row of `priced`, but for its SOURCE.

    `engine`, its `host` and the `source` to fetch from are records. Of the prompt's leading blocks
    `there` need neither be moved nor computed, `local` are on the host with its SSD, `best` at the
    source, 0 for nothing to fetch, and `in_dram` of these in its DRAM.
    """
    now, block_bytes = asked.now, asked.block_tokens * asked.token_bytes
    hand = hand_on_seconds(host, asked)
    sent = _sent_seconds(host, hand)
    most = _option(engine, host, hand, sent, host, 0.0, there, 0, 0, 0.0, asked, rules, scarce)
    if local > there:
        begins = max(0.0, host.reads - now) + rules.latency
        a_block = host.ssd_seconds * block_bytes
        more = local - there
        ready = begins + a_block * more
        whole = _option(
            engine, host, hand, sent, host, 0.0, local, 0, more, ready, asked, rules, scarce
        )
        few = _few(whole[WAIT], there, begins, a_block)
        most = _better(most, whole)
        if there < few < local:
            more = few - there
            ready = begins + a_block * more
            some = _option(
                engine, host, hand, sent, host, 0.0, few, 0, more, ready, asked, rules, scarce
            )
            most = _better(most, some)
    if best > there:
        way = way_between(source, host)
        begins = busy_seconds(source, host, way, now) + rules.latency
        link = end_seconds(host, way)
        a_block = max(end_seconds(source, way), link)
        if in_dram < best:
            a_block = max(a_block, source.ssd_seconds)
        a_block *= block_bytes
        more = best - there
        ready = begins + a_block * more
        whole = _option(
            engine, host, hand, sent, source, link, best, more, 0, ready, asked, rules, scarce
        )
        few = _few(whole[WAIT], there, begins, a_block)
        most = _better(most, whole)
        if there < few < best:
            more = few - there
            ready = begins + a_block * more
            some = _option(
                engine, host, hand, sent, source, link, few, more, 0, ready, asked, rules, scarce
            )
            most = _better(most, some)
    return most


@inner
def _nearer(
    row: Any, fleet: Any, found: Any, engine: Any, there: Any, source: Any,
    asked: Any, rules: Any, scarce: Any,
) -> Any:  # fmt: skip
    """The better of a split with `source` and of those with the best hosts of the engine's domain
    and rack; and which host that one fetches from."""
    at, hosts, local, chosen, before = engine.host, fleet.hosts, found.local, source, source
    for label in (hosts[at].domain, hosts[at].rack):
        other = np.int64(fleet.near[label]) if label != UNLABELLED else NONE
        if other != NONE and other != at and other != source and other != before:
            before = other
            another = split(
                engine, hosts[at], there, local[at], hosts[other], local[other],
                found.dram[other], asked, rules, scarce,
            )  # fmt: skip
            if another[COST] < row[COST]:
                row, chosen = another, other
    return row, chosen


@inner
def _crowding(engine: Any, host: Any, there: Any, given: Any, asked: Any, rules: Any) -> Any:
    """The charge for what a prompt's new blocks displace: computing as many again, if with them its
    host was given as many lately as the one that was given the most; if it was fewer, less."""
    new = np.floor(asked.tokens / asked.block_tokens) - there
    if new <= 0.0:
        return 0.0
    worth = work_after(engine, asked.tokens, there, asked.block_tokens) - engine.prefill_a
    return rules.crowding * worth * (host.placed + new) / (given + new)


@inner
def _write(priced: Any, engine: Any, row: Any, source: Any, crowding: Any) -> None:
    for column in range(SOURCE):
        priced[engine, column] = row[column]
    priced[engine, COST] += crowding
    priced[engine, SOURCE] = source if row[FETCHED] else NONE


@inner
def price_engine(
    fleet: Any, number: Any, found: Any, best: Any, source: Any, given: Any,
    asked: Any, rules: Any, scarce: Any, priced: Any,
) -> None:  # fmt: skip
    """Leave an engine's best split in its row; `source` is the host with the longest prefix, or
    `NONE`, and `best` how many blocks it has; `given` are the most that a host got lately."""
    engine = fleet.engines[number]
    at, giver = engine.host, max(0, source)
    there = max(found.dram[at], found.coming[number]) if rules.foresight else found.dram[at]
    fetched = best if rules.fetch and source != NONE and source != at else 0
    row = split(
        engine, fleet.hosts[at], there, found.local[at], fleet.hosts[giver], fetched,
        found.dram[giver], asked, rules, scarce,
    )  # fmt: skip
    if len(fleet.near) and fetched > there:
        row, source = _nearer(row, fleet, found, engine, there, source, asked, rules, scarce)
    crowding = _crowding(engine, fleet.hosts[at], there, given, asked, rules)
    _write(priced, number, row, source, crowding)


@njit
def choose_source(fleet: Any, found: Any) -> Any:
    """The host with the longest prefix, of several the one whose link is free first; and how many
    blocks it has. Where hosts have labels, those of each are left in `near`."""
    best, source, local, hosts = 0, NONE, found.local, fleet.hosts
    for host in range(len(local)):
        blocks = local[host]
        if blocks > best or (
            blocks == best and source != NONE and hosts[host].leaves < hosts[source].leaves
        ):
            best, source = blocks, host
    if len(fleet.near):
        _choose_near(fleet, found)
    return best, source


@inner
def _choose_near(fleet: Any, found: Any) -> None:
    near, local, hosts = fleet.near, found.local, fleet.hosts
    near[:] = NONE
    for host in range(len(local)):
        if local[host] == 0:
            continue
        domain, rack = hosts[host].domain, hosts[host].rack
        if domain != UNLABELLED:
            other = near[domain]
            if (
                other == NONE
                or local[host] > local[other]
                or (
                    local[host] == local[other]
                    and hosts[host].domain_leaves < hosts[other].domain_leaves
                )
            ):
                near[domain] = host
        if rack != UNLABELLED:
            other = near[rack]
            if (
                other == NONE
                or local[host] > local[other]
                or (local[host] == local[other] and hosts[host].leaves < hosts[other].leaves)
            ):
                near[rack] = host


@njit
def price_all(fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, priced: Any) -> None:
    """Fill every engine's row of `priced`; infinite in COST where nothing may be sent."""
    best, source = choose_source(fleet, found)
    given = most_placed(fleet)
    for number in range(len(fleet.engines)):
        priced[number, COST] = np.inf
        if fleet.engines[number].prefills:
            price_engine(fleet, number, found, best, source, given, asked, rules, scarce, priced)


@njit
def choose_prefill(
    fleet: Any, found: Any, asked: Any, rules: Any, scarce: Any, first: Any, priced: Any
) -> Any:
    """The engine of the least price of those that keep the target, else of all; the host that it
    fetches from, if any. Looks from engine number `first` on, so that of equals chance decides.

    `NONE`, `NONE` where it is gated and nobody keeps the target, or nobody prefills. The chosen
    engine's best split is in its row of `priced`; rows of others may be of an earlier prompt, for
    who cannot be the best is not priced: see `price_all`.
    """
    engines, hosts = fleet.engines, fleet.hosts
    dram, local, coming = found.dram, found.local, found.coming
    best, source = choose_source(fleet, found)
    giver = hosts[max(0, source)]
    best_in_dram = dram[max(0, source)]
    count, labelled = len(engines), len(fleet.near) > 0
    chosen, chosen_cost, in_time = NONE, np.inf, False
    given = most_placed(fleet)
    for step in range(count):
        number = first + step - (count if first + step >= count else 0)
        engine = engines[number]
        if not engine.prefills:
            continue
        at = engine.host
        there = max(dram[at], coming[number]) if rules.foresight else dram[at]
        fetched = best if rules.fetch and source != at else 0
        # What its price cannot be below: as if all that may come were there.
        most = max(there, local[at], fetched)
        work = work_after(engine, asked.tokens, most, asked.block_tokens) * asked.factor
        wait = _waits(engine, work, asked, rules)
        late = asked.waited + rules.margin * wait + work > rules.ttft
        least = wait + work * (1.0 + rules.charge * scarce)
        if (late and rules.gated) or (in_time and least >= chosen_cost):
            continue
        hand = hand_on_seconds(hosts[at], asked)
        least = handed_seconds(hosts[at], wait, work, hand, asked.now)
        least += rules.charge * (work * scarce + _sent_seconds(hosts[at], hand))
        crowding = _crowding(engine, hosts[at], there, given, asked, rules)
        if in_time and least + crowding >= chosen_cost:
            continue
        row = split(
            engine, hosts[at], there, local[at], giver, fetched, best_in_dram,
            asked, rules, scarce,
        )  # fmt: skip
        near = source
        if labelled and fetched > there:
            row, near = _nearer(row, fleet, found, engine, there, source, asked, rules, scarce)
        begins = max(row[WAIT], row[READY])
        good = asked.waited + rules.margin * begins + row[WORK] <= rules.ttft
        good &= asked.waited + row[HANDED] <= rules.ttft
        cost = row[COST] + crowding
        if good > in_time or (good == in_time and cost < chosen_cost):
            chosen, chosen_cost, in_time = number, cost, good
            _write(priced, number, row, near, crowding)
    if chosen == NONE or (rules.gated and not in_time):
        return NONE, NONE
    return chosen, np.int64(priced[chosen, SOURCE])
