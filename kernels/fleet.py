"""What is known of each engine of a fleet, in columns, for loops that look at all of them at once.

Work that waits is held by its size, in `SIZES` sizes that are each at most a quarter above the one
before, and summed up to and with each: how long a newcomer waits behind what is no longer than it
is one look-up, and how many it delays another. All engines' sums up to a size lie together: a
choice reads those of the sizes that a prompt has, of every engine, and of no other size.

Functions take records, which compiled code passes as plain pointers: arrays are counted at every
call, and that costs more than pricing an engine does.

Two hosts reach each other by one of three ways: within an NVLink domain, over the links of both, or
from rack to rack. A way takes as long as the slower of its ends.

Seconds are of one clock of the caller's. KV is counted in tokens, prefixes in blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .inner import BORROWED, inner

SIZES = 64
_SIZE_BITS = 50  # of a float64 below its sign, exponent and two leading bits: four sizes an octave
_FIRST_SIZE = (1023 - 10) << 2  # what is shorter than 2**-10 s is of the first size

Ints = NDArray[np.int32]
Records = NDArray[np.void]

ENGINE = np.dtype(
    [
        ("prefills", np.bool_),  # may be sent prefills now
        ("decodes", np.bool_),  # may be sent requests to decode now
        ("switches", np.bool_),  # can do the other of both instead: see `.roles`
        ("alone", np.bool_),  # decodes itself what it prefills
        ("host", np.int32),  # whose memory it reads without a link
        ("tie", np.int64),  # of engines that are equal to switch, the least does
        ("running", np.float64),  # seconds that the prefill that runs was to take; 0 for none
        ("busy_until", np.float64),  # when it was expected to be over
        # Its costs: prefill a + b n + c n (n + 2 p), decode a + b batch + c context.
        ("prefill_a", np.float64),
        ("prefill_b", np.float64),
        ("prefill_c", np.float64),
        ("decode_a", np.float64),
        ("decode_b", np.float64),
        ("decode_c", np.float64),
        ("batch", np.float64),  # sequences that it decodes, or that are on their way to it
        ("context", np.float64),  # tokens of KV, of all those
        ("room", np.float64),  # tokens of KV that it has place for
    ],
    align=True,
)
LINE = np.dtype(
    [
        ("ahead", np.float64),  # seconds of prefill that wait, of sizes up to this
        ("waiting", np.int64),  # how many, likewise
    ],
    align=True,
)
LINK, DOMAIN, FAR = range(3)  # ways between two hosts
WAYS = 3
UNLABELLED = -1
NONE = -1  # no engine, no host
LATELY_SECONDS = 60.0  # over which what a host was given, and what left it, fade
OVERDUE = 0.5  # of the time that a prefill is late by: how much longer it will take
HOST = np.dtype(
    [
        ("link_seconds", np.float64),  # of a byte over its link, one way
        ("domain_seconds", np.float64),  # to hosts of its domain; infinite where it is in none
        ("far_seconds", np.float64),  # to or from another rack; of no account below its link's
        ("ssd_seconds", np.float64),  # of a byte from its SSD; infinite where it has none
        ("arrives", np.float64),  # when all that is on its way to it is expected to be there
        ("leaves", np.float64),  # when all that goes out of it is expected to be gone
        ("reads", np.float64),  # when its SSD is expected to be idle
        ("domain_arrives", np.float64),  # as `arrives` and `leaves`: a domain has wires of its own
        ("domain_leaves", np.float64),
        ("decodes", np.bool_),  # an engine there does, or nobody: see `mark_roles`
        ("away", np.bool_),  # its node is gone: nothing is found there, comes to it or leaves it
        ("domain_decodes", np.bool_),  # one does that the wires of its domain reach: likewise
        ("rack_decodes", np.bool_),  # one does that is in no other rack than it: likewise
        ("prefills", np.int32),  # the first engine there that does, or `NONE`: likewise
        ("owed", np.float64),  # seconds that KV will take to leave it which is yet to be computed
        ("sent", np.float64),  # seconds that what left it lately took: the count fades
        ("placed", np.float64),  # blocks that came to be in its memory lately: the count fades
        # Labels: rows of `near`, or `UNLABELLED`.
        ("domain", np.int32),  # of hosts that NVLink connects
        ("rack", np.int32),
    ],
    align=True,
)
MARKED = ["decodes", "domain_decodes", "rack_decodes", "prefills"]  # by `mark_roles`


class Fleet(NamedTuple):
    """All engines, and the hosts whose memory they use."""

    engines: Records  # of ENGINE
    lines: Records  # of LINE, [SIZES, engine]: what waits at each
    hosts: Records  # of HOST
    near: Ints  # of one prompt, by label: the host to fetch from. Empty while nobody is labelled


def empty(engines: int, hosts: int) -> Fleet:
    """Engines that nobody may be sent to, on the first host; links that take no time, no SSD, no
    labels."""
    lines = np.zeros((SIZES, engines), LINE)
    found = Fleet(np.zeros(engines, ENGINE), lines, np.zeros(hosts, HOST), np.zeros(0, np.int32))
    found.hosts["ssd_seconds"] = found.hosts["domain_seconds"] = np.inf
    found.hosts["domain"] = found.hosts["rack"] = UNLABELLED
    found.hosts["prefills"] = NONE
    return found


BOUNDS = 17  # rows of `Found.bounds`: see `.prefill_bound`
_CACHE_LINE = 8  # numbers in one


class Found(NamedTuple):
    """Of one prompt's leading blocks, how many are where; and what is worked out of that."""

    dram: Ints  # [host]: in its DRAM
    local: Ints  # [host]: in its DRAM or on its SSD; not fewer than `dram`
    coming: Ints  # [engine]: in its host's DRAM, its own memory, or being computed there
    bounds: NDArray[np.float64]  # [BOUNDS, some engine]: what each that prefills would cost


def nothing(engines: int, hosts: int) -> Found:
    some = np.zeros(hosts, np.int32), np.zeros(hosts, np.int32), np.zeros(engines, np.int32)
    # Of an odd number of cache lines: rows of a power of two would all want the same few places.
    lines = -(-engines // _CACHE_LINE) | 1
    return Found(*some, np.zeros((BOUNDS, _CACHE_LINE * lines)))


@njit(**BORROWED)
def size_of(seconds: Any) -> Any:
    """The size that so much work is of."""
    size = (np.float64(seconds).view(np.int64) >> _SIZE_BITS) - _FIRST_SIZE
    return min(max(size, 0), SIZES - 1)


@njit(**BORROWED)
def seconds_of(size: Any) -> Any:
    """The least work of a size."""
    return np.int64((size + _FIRST_SIZE) << _SIZE_BITS).view(np.float64)


@njit(**BORROWED)
def prefill_seconds(engine: Any, new: Any, prefix: Any) -> Any:
    """Of `new` tokens behind `prefix`, by a record of an engine."""
    pairs = engine.prefill_c * (new + 2.0 * prefix)
    return engine.prefill_a + new * (engine.prefill_b + pairs)


@njit(**BORROWED)
def work_after(engine: Any, tokens: Any, blocks: Any, block_tokens: Any) -> Any:
    """Seconds to prefill what so many leading blocks leave: one token at least, whose logits are
    wanted."""
    new = max(1.0, tokens - blocks * block_tokens)
    return prefill_seconds(engine, new, tokens - new)


@inner
def busy_for(engine: Any, now: Any) -> Any:
    """Seconds until a record's engine is done with the prefill that runs. One that is overdue may
    end at any moment, but the later it is the less says that it is about to: an engine that hangs
    is passed over soon while others are free. It is no more than the prefill was to take in all:
    it may be over, and word of that lost."""
    left = engine.busy_until - now
    return left if left > 0.0 else min(-OVERDUE * left, engine.running)


@njit(**BORROWED)
def decode_seconds(engine: Any, batch: Any, context: Any) -> Any:
    """Of a step, by a record of an engine."""
    return engine.decode_a + engine.decode_b * batch + engine.decode_c * context


@njit(**BORROWED)
def way_between(giver: Any, taker: Any) -> Any:
    """Of two hosts, records: which way a byte takes."""
    domain, rack = giver.domain, giver.rack
    connected = max(giver.domain_seconds, taker.domain_seconds) < np.inf
    if connected and domain == taker.domain and domain != UNLABELLED:
        return DOMAIN
    known = rack != UNLABELLED and taker.rack != UNLABELLED
    return FAR if known and rack != taker.rack else LINK


@inner
def end_seconds(host: Any, way: Any) -> Any:
    """Of a byte, at one end of a way."""
    if way == DOMAIN:
        return host.domain_seconds
    return max(host.link_seconds, host.far_seconds) if way == FAR else host.link_seconds


@njit(**BORROWED)
def way_seconds(giver: Any, taker: Any) -> Any:
    """Of a byte from one host to another."""
    way = way_between(giver, taker)
    return max(end_seconds(giver, way), end_seconds(taker, way))


@njit(**BORROWED)
def mark_roles(fleet: Any) -> None:
    """Write down at which hosts some engine decodes, and which prefills there, and by which ways
    who decodes can be reached from each: to be done whenever that may be another, or hosts stand
    elsewhere."""
    engines, hosts, some = fleet.engines, fleet.hosts, False
    hosts.decodes[:], hosts.prefills[:] = False, NONE
    for one in range(len(engines) - 1, -1, -1):
        engine = engines[one]
        if engine.decodes:
            some = True
            hosts[engine.host].decodes = True
        if engine.prefills:
            hosts[engine.host].prefills = one
    if not some:  # whoever will is not known
        hosts.decodes[:] = True
    _mark_ways(fleet)


@inner
def _mark_ways(fleet: Any) -> None:
    hosts, near, anywhere = fleet.hosts, fleet.near, False
    near[:] = NONE
    for host in range(len(hosts)):
        one = hosts[host]
        if not one.decodes:
            continue
        if one.domain != UNLABELLED and one.domain_seconds < np.inf:
            near[one.domain] = host
        if one.rack != UNLABELLED:
            near[one.rack] = host
        else:
            anywhere = True
    for host in range(len(hosts)):
        one = hosts[host]
        one.domain_decodes = one.domain != UNLABELLED and near[one.domain] != NONE
        one.rack_decodes = anywhere or one.rack == UNLABELLED or near[one.rack] != NONE


@njit(**BORROWED)
def kept_by_decoders(fleet: Any, found: Any) -> Any:
    """Of one prompt's leading blocks, how many a host has where some engine decodes."""
    kept, hosts, dram = 0, fleet.hosts, found.dram
    for host in range(len(dram)):
        if dram[host] > kept and hosts[host].decodes:
            kept = dram[host]
    return np.float64(kept)


@inner
def _link_out_seconds(host: Any) -> Any:
    """Of a byte that leaves a host over its link for who decodes."""
    return host.link_seconds if host.rack_decodes else max(host.link_seconds, host.far_seconds)


@inner
def goes_by_domain(host: Any) -> Any:
    """Whether what leaves a host for who decodes does so by the wires of its domain."""
    return host.domain_decodes and host.domain_seconds < _link_out_seconds(host)


@inner
def out_seconds(host: Any) -> Any:
    """Of a byte that leaves a host for who decodes, by the quickest way on which somebody does."""
    return host.domain_seconds if goes_by_domain(host) else _link_out_seconds(host)


@inner
def hand_seconds(host: Any, size: Any) -> Any:
    """That so many bytes of KV take to leave a host for who decodes; none where somebody there
    does."""
    return 0.0 if host.decodes else size * out_seconds(host)


@inner
def carry(giver: Any, taker: Any, way: Any, takes: Any, begins: Any) -> Any:
    """What takes so long on its way goes from `begins` on; when the last of it is there. Each end
    carries one byte after another, whosever they are: who waits for one end holds up no other."""
    giver.sent += takes
    if way == DOMAIN:
        giver.domain_leaves = max(giver.domain_leaves, begins) + takes
        taker.domain_arrives = max(taker.domain_arrives, begins) + takes
        return max(giver.domain_leaves, taker.domain_arrives)
    giver.leaves = max(giver.leaves, begins) + takes
    taker.arrives = max(taker.arrives, begins) + takes
    return max(giver.leaves, taker.arrives)


@inner
def busy_seconds(giver: Any, taker: Any, way: Any, now: Any) -> Any:
    """Until both ends of a way are expected to be free."""
    if way == DOMAIN:
        return max(0.0, giver.domain_leaves - now, taker.domain_arrives - now)
    return max(0.0, giver.leaves - now, taker.arrives - now)


@inner
def fade(hosts: Any, seconds: Any) -> None:
    """So much time has passed since what they did lately faded last."""
    kept = np.exp(-max(0.0, seconds) / LATELY_SECONDS)
    for host in range(len(hosts)):
        hosts[host].placed *= kept
        hosts[host].sent *= kept


@inner
def most_placed(fleet: Any) -> Any:
    """At one host of those where some engine prefills."""
    most, hosts = 0.0, fleet.hosts
    for host in range(len(hosts)):
        if hosts[host].prefills != NONE:
            most = max(most, hosts[host].placed)
    return most


@njit(**BORROWED)
def enqueue(lines: Any, engine: Any, size: Any, seconds: Any) -> None:
    """Work of this size waits at an engine from now on."""
    for one in range(size, SIZES):
        line = lines[one, engine]
        line.ahead += seconds
        line.waiting += 1


@njit(**BORROWED)
def dequeue(lines: Any, engine: Any, size: Any, seconds: Any) -> None:
    """It waits no more. What rounding leaves is gone once nothing waits."""
    for one in range(size, SIZES):
        line = lines[one, engine]
        line.waiting -= 1
        line.ahead = max(0.0, line.ahead - seconds) if line.waiting else 0.0
