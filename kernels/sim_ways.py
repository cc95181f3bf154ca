"""How bytes move between hosts of a simulated fleet: by where these really stand, their `places`,
which a router may know of or not. What each way has carried is counted.
"""

from __future__ import annotations

from typing import Any

from .fleet import DOMAIN, LINK, busy_seconds, way_between, way_seconds
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
    if way == DOMAIN:
        giver.domain_leaves = taker.domain_arrives = ready
    else:
        giver.leaves = taker.arrives = ready
    w.carried[way] += blocks * block_bytes
    return ready


@inner
def hand_on(w: Any, r: Any, now: Any, host: Any, d: Any) -> Any:
    """Seconds that the KV of a prompt needs, as its prefill ends, to be with the engine that will
    decode it; where nobody has been chosen, over the quickest way that its host has."""
    place = w.places[host]
    if d != NONE:
        other = w.places[w.fleet.engines[d].host]
        way, seconds = way_between(place, other), way_seconds(place, other)
        w.carried[way] += w.requests[r].tokens * w.setting.token_bytes
    else:
        way = DOMAIN if place.domain_seconds < place.link_seconds else LINK
        seconds = min(place.domain_seconds, place.link_seconds)
    tail = _tail(w, r, seconds)
    _leave(w, host, way, now, tail)
    return tail


@inner
def rest(w: Any, r: Any, now: Any, d: Any) -> Any:
    """Seconds that it still needs to an engine that was chosen afterwards, if the way there is not
    the quickest."""
    host = w.fleet.engines[w.requests[r].engine].host
    place, other = w.places[host], w.places[w.fleet.engines[d].host]
    way = way_between(place, other)
    least = min(place.domain_seconds, place.link_seconds)
    left = max(0.0, _tail(w, r, way_seconds(place, other)) - _tail(w, r, least))
    if left > 0.0:
        _leave(w, host, way, now, left)
    w.carried[way] += w.requests[r].tokens * w.setting.token_bytes
    return left


@inner
def _tail(w: Any, r: Any, seconds: Any) -> Any:
    """What a prefill leaves to be sent, layer by layer behind it, at so many seconds a byte."""
    request = w.requests[r]
    takes = request.tokens * w.setting.token_bytes * seconds
    return max(takes - (request.prefilled - request.began), takes / w.setting.layers)


@inner
def _leave(w: Any, host: Any, way: Any, now: Any, seconds: Any) -> None:
    giver = w.fleet.hosts[host]
    if way == DOMAIN:
        giver.domain_leaves = max(giver.domain_leaves, now) + seconds
    else:
        giver.leaves = max(giver.leaves, now) + seconds
