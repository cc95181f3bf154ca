"""How fast a load may come: the highest rate at which enough of its requests are in time.

Found by halving (DistServe, OSDI'24, section 4), since with all else equal more requests a second
never bring more of them in time, but for chance. The load keeps its requests and what they share;
only their times are squeezed or stretched. A load that would be over in a few times the target of
the first token is repeated: else a queue that only grows would be in time to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvstore.planner.cluster import Cluster
from kvstore.planner.load import Load
from kvstore.planner.outcome import Outcome
from kvstore.planner.policies import Policy
from kvstore.planner.rates import TIMES_MAX, Rates
from kvstore.planner.replay import SURE, replay
from kvstore.planner.world import SECONDS_MAX, Doubt

SHARE = 0.9  # of requests in time: what a service promises
CLOSE = 1.02  # the highest rate is known to this factor
LASTS = 10.0  # times the target of the first token
STRIDE_MAX = 4.0  # of one look to the next

Step = Callable[[], object]  # called after each replay


@dataclass(frozen=True, slots=True)
class Highest:
    """The best that was found."""

    multiplier: float  # of the load's own rate
    policy: Policy
    outcome: Outcome  # at that rate

    @property
    def rate(self) -> float:
        return self.outcome.rate


def at_rate(load: Load, cluster: Cluster, multiplier: float) -> Load:
    """So many times as fast, and long enough to say something of a cluster's targets; where engines
    die, as long as it was: else they would do so when nobody comes any more. No repeat is longer
    than can be simulated."""
    least = float(load.arrival[-1]) if cluster.failures else 0.0
    long = load.scaled(multiplier).lasting(max(least, LASTS * cluster.ttft_seconds))
    return long.window(0.0, SECONDS_MAX) if long.arrival[-1] > SECONDS_MAX else long


def highest_rate(
    load: Load,
    cluster: Cluster,
    policies: Iterable[Policy],
    seed: int,
    *,
    share: float = SHARE,
    close: float = CLOSE,
    start: float = 1.0,
    doubt: Doubt = SURE,
    step: Step = lambda: None,
) -> Highest | None:
    """Over the policies, the best; `start` is a guess of the multiplier. None where not even the
    slowest rate is served. No faster one is tried than `Rates` says."""
    best: Highest | None = None
    slowest, fastest = _multipliers(load)
    for policy in policies:

        def tried(multiplier: float, policy: Policy = policy) -> Outcome | None:
            told = replay(at_rate(load, cluster, multiplier), cluster, policy, seed, doubt)
            step()
            return told if told.share >= share else None

        # One that does not better the best at all is not looked at any longer.
        least = max(slowest, min(fastest, best.multiplier * close if best else start))
        at_least = tried(least)
        if best and at_least is None:
            continue
        if at_least:
            found: _Found | None = _up(tried, (least, at_least), fastest, close)
        else:
            found = _down(tried, least, slowest, close)
        if found:
            best = Highest(found[0], policy, found[1])
    return best


_Tried = Callable[[float], Outcome | None]
_Found = tuple[float, Outcome]


def _multipliers(load: Load) -> tuple[float, float]:
    """Between which it is looked: a slower load cannot be simulated, or is of another cluster."""
    if not load.rate:
        return 1 / TIMES_MAX, TIMES_MAX
    rates = Rates.of(load)
    return rates.least / load.rate, rates.most / load.rate


def _up(tried: _Tried, best: _Found, fastest: float, close: float) -> _Found:
    factor = 1.25
    while best[0] < fastest:
        bad = min(fastest, best[0] * factor)
        more = tried(bad)
        if more is None:
            return _between(tried, best, bad, close)
        best, factor = (bad, more), min(factor * factor, STRIDE_MAX)
    return best


def _down(tried: _Tried, bad: float, slowest: float, close: float) -> _Found | None:
    factor = 1.25
    while bad > slowest:
        good = max(slowest, bad / factor)
        told = tried(good)
        if told is not None:
            return _between(tried, (good, told), bad, close)
        bad, factor = good, min(factor * factor, STRIDE_MAX)
    return None


def _between(tried: _Tried, best: _Found, bad: float, close: float) -> _Found:
    while bad / best[0] > close:
        middle = (bad * best[0]) ** 0.5
        told = tried(middle)
        if told is None:
            bad = middle
        else:
            best = middle, told
    return best
