"""What became of a load on a cluster, in the figures that people ask for.

A request is in time if its first token came within the TTFT target and the others at least at the
TPOT target's pace, on average over its answer. Whoever was refused or dropped was not in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.kernels import sim_world
from kvstore.kernels.sim_world import World
from kvstore.planner import links
from kvstore.planner.links import Carried

ENDS = {
    "served": sim_world.SERVED,
    "refused": sim_world.REFUSED,  # when it came: it could not have been in time
    "late": sim_world.LATE,  # dropped when its turn came: it could not be in time any more
    "no_room": sim_world.NO_ROOM,  # once it was prefilled: nobody had room to decode it
    "expired": sim_world.EXPIRED,  # its time was over before somebody had room
    "lost": sim_world.LOST,
}
_PREFILL, _DECODE = 0, 1  # phases, as `was` and `worked` of engines have them


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a request."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: NDArray[np.float64]) -> Times | None:
        if not len(seconds):
            return None
        p50, p99 = np.quantile(seconds, (0.5, 0.99))
        return cls(float(seconds.mean()), float(p50), float(p99))


@dataclass(frozen=True, slots=True)
class Hits:
    """Shares of all prompt tokens that were prefilled, which did not have to be computed."""

    local: float  # in DRAM of the host that prefilled
    fetched: float  # from another host
    ssd: float

    @property
    def all(self) -> float:
        return self.local + self.fetched + self.ssd


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one replay. None where there was no such request, so that nothing can be said."""

    requests: int
    rate: float  # requests a second; 0 where all arrive at once
    share: float  # of requests that were in time
    goodput: float  # prompt and output tokens of those, a second
    goodput_requests: float  # those a second
    ttft: Times | None  # of requests that were served, in time or not
    tpot: Times | None  # of those whose answers have more tokens than that one
    hits: Hits
    quartiles: tuple[float, ...]  # `share` by length of prompt: the shortest quarter first
    clients: tuple[float, ...]  # `share` by client
    ended: dict[str, int]  # requests, by what became of them
    slow: int  # of those served, whose first token was in time and whose pace was not
    prefill_busy: float  # share of time that engines work, until the last is done
    decode_busy: float
    decode_full: float  # share of their room for KV that sequences take, on average
    links_busy: float  # share of what hosts' links can carry that they do: see `links.busy`
    # Of the router, about the seconds from arrival until prefilled, as shares of their mean:
    error: float  # mean size of what it was off by
    bias: float  # what it was off by on average: above 0 things take longer than it said
    switches: int  # of engines, from one role to the other
    carried: Carried


def ttft(requests: Any) -> NDArray[np.float64]:
    return np.asarray(requests["first_token"] - requests["arrival"])


def tpot(requests: Any) -> NDArray[np.float64]:
    decoding = requests["finished"] - requests["first_token"]
    output = requests["output"] + requests["made"]
    return np.asarray(decoding / np.maximum(1, output - 1))


def in_time(world: World) -> NDArray[np.bool_]:
    """For each request whether it was."""
    requests = world.requests
    soon = (ttft(requests) <= world.rules.ttft) & (tpot(requests) <= world.rules.tpot)
    return np.asarray((requests["status"] == sim_world.SERVED) & soon)


def of(world: World) -> Outcome:
    """After a run."""
    requests, good = world.requests, in_time(world)
    served = requests[requests["status"] == sim_world.SERVED]
    last = max(float(np.nanmax(requests[name], initial=0)) for name in ("prefilled", "finished"))
    arrivals_s = float(requests["arrival"][-1])
    rate = (len(requests) - 1) / arrivals_s if arrivals_s else 0.0
    # What comes in a second and is in time; where all come at once, what is done in one.
    span_s = len(requests) / rate if rate else last or 1.0
    tokens = requests["tokens"] + requests["output"]
    error, bias = _errors(requests)
    return Outcome(
        requests=len(requests),
        rate=rate,
        share=float(good.mean()),
        goodput=float(tokens[good].sum()) / span_s,
        goodput_requests=float(good.sum()) / span_s,
        ttft=Times.of(ttft(served)),
        tpot=Times.of(tpot(served[served["output"] + served["made"] > 1])),
        hits=_hits(world),
        quartiles=_quartiles(requests["tokens"] - requests["made"], good),
        clients=_clients(requests["client"], good),
        ended={name: int((requests["status"] == end).sum()) for name, end in ENDS.items()},
        slow=int(((ttft(served) <= world.rules.ttft) & (tpot(served) > world.rules.tpot)).sum()),
        prefill_busy=_busy(world, _PREFILL, max(arrivals_s, last)),
        decode_busy=_busy(world, _DECODE, max(arrivals_s, last)),
        decode_full=_full(world, served, max(arrivals_s, last)),
        links_busy=_links_busy(world, max(arrivals_s, last)),
        error=error,
        bias=bias,
        switches=int(world.numbers[2]),
        carried=Carried.of(world),
    )


def _hits(world: World) -> Hits:
    some = world.requests[np.isfinite(world.requests["prefilled"])]
    if not len(some):
        return Hits(0.0, 0.0, 0.0)
    total, block = float(some["tokens"].sum()), world.setting.block_tokens
    reused = np.minimum(some["reused"] * block, some["tokens"] - 1)
    # What was to be brought is of use only where all of it is: see `sim_prefill`.
    brought = some["reused"] >= some["planned"]
    fetched = np.minimum(np.where(brought, some["fetched"], 0) * block, reused)
    read = np.minimum(np.where(brought, some["read"], 0) * block, reused - fetched)
    local = reused - fetched - read
    return Hits(*(float(one.sum()) / total for one in (local, fetched, read)))


def _quartiles(tokens: NDArray[np.float64], good: NDArray[np.bool_]) -> tuple[float, ...]:
    """Of fewer than four requests, some are in several quarters."""
    ordered = good[np.argsort(tokens, kind="stable")]  # the shortest first
    if len(ordered) < 4:
        return tuple(float(ordered[quarter * len(ordered) // 4]) for quarter in range(4))
    return tuple(float(part.mean()) for part in np.array_split(ordered, 4))


def _clients(client: NDArray[np.int32], good: NDArray[np.bool_]) -> tuple[float, ...]:
    asked = np.bincount(client)
    return tuple((np.bincount(client, good) / np.maximum(1, asked)).tolist())


def in_role(world: World, phase: int, span_s: float) -> NDArray[np.float64]:
    """Seconds for which each engine prefilled (0) or decoded (1), and of those the busy ones: an
    engine that does both is busy in both. Shape (2, engines)."""
    engines = world.engines
    still = engines["role"] & (sim_world.PREFILLS, sim_world.DECODES)[phase] != 0
    since = np.maximum(0.0, span_s - engines["role_since"])
    last = np.array([since, engines["busy_seconds"] - engines["role_busy"]])
    before = np.array([engines["was"][:, phase], engines["worked"][:, phase]])
    found: NDArray[np.float64] = before + np.where(still, last, 0.0)
    return found


def _busy(world: World, phase: int, span_s: float) -> float:
    seconds, busy = in_role(world, phase, span_s).sum(axis=1)
    return float(busy / seconds) if seconds else 0.0


def _full(world: World, served: Any, span_s: float) -> float:
    """By the tokens of each sequence halfway through its answer, since it was let in last."""
    held_s = served["finished"] - served["let_in"]
    tokens = served["tokens"] + served["output"] / 2
    room_s = (world.fleet.engines["room"] * in_role(world, _DECODE, span_s)[0]).sum()
    return float((held_s * tokens).sum() / room_s) if room_s else 0.0


def _links_busy(world: World, span_s: float) -> float:
    by_phase = (in_role(world, phase, span_s)[0] for phase in (_PREFILL, _DECODE))
    return links.busy(world, *(float(seconds.sum()) for seconds in by_phase))


def _errors(requests: Any) -> tuple[float, float]:
    some = requests[np.isfinite(requests["prefilled"])]
    if not len(some):
        return 0.0, 0.0
    real, off = some["prefilled"] - some["arrival"], some["prefilled"] - some["expected"]
    return float(np.abs(off).mean() / real.mean()), float(off.mean() / real.mean())
