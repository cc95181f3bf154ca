"""How bytes move between hosts of a simulated fleet: by where these really stand, their `places`,
which a router may know of or not. What each way has carried is counted.
"""

from __future__ import annotations

from typing import Any

from .fleet import NONE, busy_seconds, carry, out_seconds, way_between, way_seconds
from .inner import inner
from .sim_look import leading
from .sim_world import blocks_of


@inner
def bring(w: Any, source: Any, host: Any, blocks: Any, now: Any, expected: Any) -> Any:
    """So many blocks are fetched; when they will be there. That takes as long as expected, unless
    the router took their way for another."""
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
    _carry(w, source, host, blocks * block_bytes, now)
    return ready


@inner
def hand_on(w: Any, r: Any, now: Any, host: Any, d: Any) -> Any:
    """Seconds that the KV of a prompt needs, as its prefill ends, to be with the engine that will
    decode it; where nobody has been chosen, as if it went by the quickest way that its host has."""
    if d == NONE:
        return _tail(w, r, _at_best(w, r, host))
    other = w.fleet.engines[d].host
    ends = _follows(w, r, host, other)
    return max(ends - now, _tail(w, r, _takes(w, r, host, other)))


@inner
def rest(w: Any, r: Any, now: Any, d: Any) -> Any:
    """Seconds that it still needs to an engine that was chosen afterwards, as if it had been on its
    way there: more than none if the way is not the quickest, or is busy."""
    host, other = w.fleet.engines[w.requests[r].engine].host, w.fleet.engines[d].host
    if host == other:  # it has switched since
        return 0.0
    left = _tail(w, r, _takes(w, r, host, other)) - _tail(w, r, _at_best(w, r, host))
    return max(0.0, left, _follows(w, r, host, other) - now)


@inner
def fetch_whole(w: Any, r: Any, now: Any, d: Any) -> Any:
    """Seconds that all that is not there needs from the memory of the host that prefilled it."""
    host, other = w.fleet.engines[w.requests[r].engine].host, w.fleet.engines[d].host
    if host == other:
        return 0.0
    return _carry(w, host, other, _size(w, r, other), now) + w.rules.latency - now


@inner
def _size(w: Any, r: Any, other: Any) -> Any:
    """Bytes of a prompt's KV that a host does not have."""
    there = leading(w.caches, other, blocks_of(w, r)) * w.setting.block_tokens
    return max(1.0, w.requests[r].tokens - there) * w.setting.token_bytes


@inner
def _at_best(w: Any, r: Any, host: Any) -> Any:
    """Seconds for as many bytes as were to be handed on when it was sent, by the quickest way. They
    are no more than all of its KV, though another way may have been the quickest then."""
    request, place = w.requests[r], w.places[host]
    whole = request.tokens * w.setting.token_bytes
    size = min(whole, request.hand / out_seconds(w.fleet.hosts[host]))
    return size * min(place.domain_seconds, place.link_seconds)


@inner
def _takes(w: Any, r: Any, host: Any, other: Any) -> Any:
    return _size(w, r, other) * way_seconds(w.places[host], w.places[other])


@inner
def _tail(w: Any, r: Any, takes: Any) -> Any:
    """Of what takes so long, what a prefill leaves to be sent, layer by layer behind it."""
    request = w.requests[r]
    return max(takes - (request.prefilled - request.began), takes / w.setting.layers)


@inner
def _follows(w: Any, r: Any, host: Any, other: Any) -> Any:
    """When the last of it is there, sent from the beginning of its prefill on."""
    return _carry(w, host, other, _size(w, r, other), w.requests[r].began)


@inner
def _carry(w: Any, source: Any, host: Any, size: Any, begins: Any) -> Any:
    way = way_between(w.places[source], w.places[host])
    w.carried[way] += size
    takes = size * way_seconds(w.places[source], w.places[host])
    return carry(w.fleet.hosts[source], w.fleet.hosts[host], way, takes, begins)
