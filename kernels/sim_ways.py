"""How bytes move between hosts of a simulated fleet: by where these really stand, their `places`,
which a router may know of or not. What each way has carried is counted.
"""

from __future__ import annotations

from typing import Any

from .fleet import DOMAIN, busy_seconds, way_between, way_seconds
from .inner import inner
from .prefill_choice import NONE


@inner
def bring(w: Any, source: Any, host: Any, blocks: Any, now: Any, expected: Any) -> Any:
    """So many blocks are fetched; when they will be there. That takes as long as expected, unless
    the router took their way for another. Both ends are busy until then."""
    giver, taker = w.fleet.hosts[source], w.fleet.hosts[host]
    block_bytes = w.setting.block_tokens * w.setting.token_bytes
    way = way_between(w.places[source], w.places[host])
    ready = now + expected
    if way != way_between(giver, taker):
        begins = busy_seconds(giver, taker, way, now) + w.rules.latency
        a_block = way_seconds(w.places[source], w.places[host])
        if w.found.dram[source] < w.found.local[source]:
            a_block = max(a_block, giver.ssd_seconds)
        ready = now + begins + a_block * block_bytes * blocks
    _busy_until(giver, taker, way, ready)
    w.carried[way] += blocks * block_bytes
    return ready


@inner
def hand_on(w: Any, r: Any, now: Any, host: Any, d: Any) -> Any:
    """Seconds that the KV of a prompt needs, as its prefill ends, to be with the engine that will
    decode it; where nobody has been chosen, over the quickest way that its host has."""
    if d == NONE:
        place = w.places[host]
        return _tail(w, r, min(place.domain_seconds, place.link_seconds))
    other = w.fleet.engines[d].host
    ends = _follows(w, r, host, other)
    return max(ends - now, _tail(w, r, way_seconds(w.places[host], w.places[other])))


@inner
def rest(w: Any, r: Any, now: Any, d: Any) -> Any:
    """Seconds that it still needs to an engine that was chosen afterwards, as if it had been on its
    way there: more than none if the way is not the quickest, or is busy."""
    host, other = w.fleet.engines[w.requests[r].engine].host, w.fleet.engines[d].host
    if host == other:  # it has switched since
        return 0.0
    place = w.places[host]
    least = _tail(w, r, min(place.domain_seconds, place.link_seconds))
    left = _tail(w, r, way_seconds(place, w.places[other])) - least
    return max(0.0, left, _follows(w, r, host, other) - now)


@inner
def fetch_whole(w: Any, r: Any, now: Any, d: Any) -> Any:
    """Seconds that all of it needs from the memory of the host that prefilled it."""
    host, other = w.fleet.engines[w.requests[r].engine].host, w.fleet.engines[d].host
    if host == other:
        return 0.0
    giver, taker = w.fleet.hosts[host], w.fleet.hosts[other]
    way = way_between(w.places[host], w.places[other])
    size = w.requests[r].tokens * w.setting.token_bytes
    takes = busy_seconds(giver, taker, way, now) + w.rules.latency
    takes += size * way_seconds(w.places[host], w.places[other])
    _busy_until(giver, taker, way, now + takes)
    w.carried[way] += size
    return takes


@inner
def _tail(w: Any, r: Any, seconds: Any) -> Any:
    """What a prefill leaves to be sent, layer by layer behind it, at so many seconds a byte."""
    request = w.requests[r]
    takes = request.tokens * w.setting.token_bytes * seconds
    return max(takes - (request.prefilled - request.began), takes / w.setting.layers)


@inner
def _follows(w: Any, r: Any, host: Any, other: Any) -> Any:
    """When the last of it is there, sent from the beginning of its prefill on: each end of the way
    carries one byte after another, whosever they are."""
    giver, taker = w.fleet.hosts[host], w.fleet.hosts[other]
    way, began = way_between(w.places[host], w.places[other]), w.requests[r].began
    size = w.requests[r].tokens * w.setting.token_bytes
    takes = size * way_seconds(w.places[host], w.places[other])
    w.carried[way] += size
    if way == DOMAIN:
        giver.domain_leaves = max(giver.domain_leaves, began) + takes
        taker.domain_arrives = max(taker.domain_arrives, began) + takes
        return max(giver.domain_leaves, taker.domain_arrives)
    giver.leaves = max(giver.leaves, began) + takes
    taker.arrives = max(taker.arrives, began) + takes
    return max(giver.leaves, taker.arrives)


@inner
def _busy_until(giver: Any, taker: Any, way: Any, ends: Any) -> None:
    if way == DOMAIN:
        giver.domain_leaves = taker.domain_arrives = ends
    else:
        giver.leaves = taker.arrives = ends
