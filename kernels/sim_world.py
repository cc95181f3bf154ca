"""The state of a simulated fleet: requests, engines, queues, what is yet to happen."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .crowd import used
from .fairness import OUTPUT_WEIGHT, fade, fair_share, used_by
from .fleet import Fleet, Found
from .inner import BORROWED, inner
from .rivals import Tally
from .rules import Rules
from .sim_heap import Heap
from .sim_known import Caches

# What became of a request.
WAITING, SERVED, REFUSED, LATE, NO_ROOM, EXPIRED, LOST = range(7)
# Kinds of events.
READY, PREFILLED, MOVED, STEPPED, EXPIRES, CHUNKED, FAILS, RETURNS, AGAIN, BALANCES, DRAINS = range(
    11
)
PREFILLS, DECODES = 1, 2  # bits of an engine's role

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Records = NDArray[np.void]

REQUEST = np.dtype(
    [
        ("arrival", np.float64),
        ("tokens", np.float64),
        ("output", np.float64),
        ("factor", np.float64),  # times what routers think that its prefill takes
        ("fate", np.float64),  # times what it does take
        ("work", np.float64),  # seconds that it was expected to take
        ("began", np.float64),
        ("prefilled", np.float64),
        ("first_token", np.float64),  # NaN
        ("finished", np.float64),
        ("let_in", np.float64),  # to be decoded, the last time
        ("due", np.float64),  # the end of its prefill, or of the chunk of it, once that has begun
        ("made", np.float64),  # of its tokens, before an engine of its died: not of the prompt
        ("until", np.float64),  # when its first token is of use no more
        ("expected", np.float64),  # when its first token was expected
        ("hand", np.float64),  # seconds that its KV is to take to leave the host that prefills it
        ("engine", np.int64),
        ("size", np.int32),
        ("planned", np.int32),  # blocks that it need not compute if all goes as planned
        ("moved", np.int32),  # of these, brought from elsewhere
        ("reused", np.int32),  # blocks
        ("fetched", np.int32),
        ("read", np.int32),
        ("after", np.int64),  # the next in its queue
        ("status", np.int32),
        ("client", np.int32),  # whose it is
    ],
    align=True,
)
RUNNING = np.dtype(
    [
        ("since", np.float64),  # the end of its last step
        ("context", np.float64),  # tokens of the batch
        ("owed_batch", np.float64),  # sequences that are on their way or wait to be let in
        ("owed_context", np.float64),  # their tokens
        ("busy_seconds", np.float64),
        ("role_since", np.float64),  # since when it does what it does,
        ("role_busy", np.float64),  # and its `busy_seconds` then
        ("was", np.float64, (2,)),  # seconds, before that, in which it prefilled, and decoded,
        ("worked", np.float64, (2,)),  # and of these the busy ones
        ("steps", np.int64),
        ("version", np.int64),
        ("batch", np.int64),
        (
            "left",
            np.float64,
        ),  # tokens of its prompt that it has still to compute, if it decodes too
        ("role", np.int32),  # what it does, also while it is dead
        (
            "turns",
            np.int32,
        ),  # the role that it takes once it has nothing left; 0: it stays as it is
        ("current", np.int64),  # the prompt that it prefills
        ("line", np.int64),  # the first and
        ("line_end", np.int64),  # last of those that wait to be let in
    ],
    align=True,
)


class Setting(NamedTuple):
    """What stays as it is."""

    policy: int
    block_tokens: float
    token_bytes: float
    layers: float
    reserve: float  # tokens that a sequence may grow by before it is let in
    early: float  # 1: refuse what no decoding engine has room for when it comes
    check: float  # 1: refuse what none has room for once it is prefilled
    holds: float  # 1: hosts that only decode keep what they were handed
    park: float  # 1: keep it in the pool until one has


class World(NamedTuple):
    """All there is of a run. What is of a fixed kind is in records: few arguments compile fast."""

    requests: Records  # of REQUEST
    blocks: Ints  # of all requests
    first: Longs  # where each request's begin
    engines: Records  # of RUNNING
    heads: Longs  # [engine, SIZES]
    tails: Longs
    members: Longs  # [engine, batch]
    until: Longs  # [engine, batch]: the step at which each is done
    parked: Records  # of PARKED: requests
    numbers: Longs  # how many are parked, how many events there were, how many engines switched
    demand: Records  # of DEMAND: one
    crowd: Records  # of CROWD: one
    clients: Floats  # [2, client]: tokens of service lately, asked for and had
    faded: Floats  # [1]: when that was last let fade
    work: Records  # of WORK: one
    advice: Records  # of ADVICE: the last one
    mean: Floats  # share of busy engines; when that was
    fleet: Fleet
    places: Records  # of HOST: where hosts stand, which `fleet` may know or not
    carried: Floats  # bytes, by way
    times: Floats
    fits: Records  # of FIT, [engine, 2]: what routers have learned of prefills and of steps
    biases: Records  # of BIAS, [engine]: of prefills beside those
    caches: Caches
    tally: Tally
    heap: Heap
    found: Found
    priced: Floats
    on: NDArray[np.uint64]
    dice: NDArray[np.uint64]
    knobs: Floats
    setting: Setting
    rules: Rules


@inner
def roll(w: Any, sides: Any) -> Any:
    """A number from 0 below `sides`: splitmix64."""
    w.dice[0] += np.uint64(0x9E3779B97F4A7C15)
    x = w.dice[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ (x >> np.uint64(31))) >> np.uint64(1)) % sides


@inner
def _patience(w: Any) -> Any:
    return used(w.crowd) if w.rules.hurry else 1.0


@inner
def crowded(w: Any) -> Any:
    return _patience(w) < 1.0


@inner
def target(w: Any, r: Any) -> Any:
    """Seconds within which a request's first token is wanted, when it comes."""
    patience = _patience(w)
    if w.rules.fair:
        had = w.clients[1, w.requests[r].client]
        patience = used_by(patience, fair_share(w.clients), had)
    return w.rules.ttft * patience


@inner
def count_service(w: Any, r: Any, let_in: Any, now: Any) -> None:
    """Its client has asked for so much, and is to have it."""
    request = w.requests[r]
    fade(w.clients, now - w.faded[0])
    w.faded[0] = now
    tokens = request.tokens + OUTPUT_WEIGHT * w.setting.reserve
    w.clients[0, request.client] += tokens
    w.clients[1, request.client] += tokens * let_in


@njit(inline="always", **BORROWED)  # a function that only borrows can return no view
def blocks_of(w: Any, r: Any) -> Any:
    return w.blocks[w.first[r] : w.first[r + 1]]
