"""What is asked of the scheduler and what it decides, as values; and why it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.engines import Engine
from kvstore.conductor.largest import Largest
from kvstore.core.fingerprints import Prints
from kvstore.errors import Invalid, Overloaded, Rejected, TooLate, Unavailable
from kvstore.kernels.fleet import LINK
from kvstore.kernels.prefill_price import COST, HANDED, READY, WAIT, WORK
from kvstore.kernels.rules import Rules

RETRY_MS_MIN, RETRY_MS_MAX = 20, 10_000
NOBODY_MS = 1_000  # until there may be an engine

Row = tuple[float, ...]  # of `prefill_price.PRICED` columns
Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is to run somewhere."""

    request: str
    prints: Prints  # of the leading blocks of its prompt
    tokens: int
    waited: float  # seconds
    ttft: float = 0.0  # its own targets, in seconds; 0: the fleet's
    tpot: float = 0.0
    client: str = ""  # whose it is, of the caller's clients
    max_new_tokens: int = 0  # that it is given; 0: nobody knows
    not_at: frozenset[str] = frozenset()  # addresses of engines that are not to prefill it
    as_many_as_fit: bool = False  # an engine that has place for fewer new tokens gives those

    @property
    def whole(self) -> int:
        """Tokens of KV that it may come to; where that may be cut, with one of its answer."""
        return self.tokens + max(self.max_new_tokens, int(self.as_many_as_fit))

    @property
    def may_be_cut(self) -> bool:
        return self.as_many_as_fit and self.max_new_tokens > 1

    @property
    def cut(self) -> Ask:
        """The same for an answer that ends where there is no more place for it."""
        return replace(self, max_new_tokens=0)


@dataclass(slots=True)  # frozen, each took 2 us more to make
class Decision:
    """What was decided, and over what: as it stands it stays. Of what was asked it keeps what is
    small."""

    request: str
    tokens: int
    blocks: int
    waited: float
    considered: tuple[Engine, ...] = ()  # the cheapest first
    rows: Rows | None = None  # of those
    owns: tuple[int, ...] = ()  # leading blocks in their own memory, of each of those
    nodes: tuple[str, ...] = ()  # by the numbers that rows have as sources
    prefill: Engine | None = None
    row: Row | None = None  # of the engine that prefills
    own: int = 0  # leading blocks in its own memory
    there: int = 0  # behind those, in its host's DRAM
    source: str = ""  # node that blocks are fetched from
    way: int = LINK  # by which they come
    decode: Engine | None = None
    step: float = 0.0  # seconds of a decode step with it
    ttft: float = 0.0  # the target
    size: float = 0.0  # bytes of its KV that are not in the memory of who decodes
    whole: int = 0  # tokens of KV that it may come to, where it is yet to find room for them
    elsewhere: int = 0  # leading blocks that some node has, or who decodes in its own memory
    # Seconds by which its turn comes sooner than it waited, as its client has had little.
    ahead: float = 0.0
    had: bool = False  # it has counted as what its client had, now or when it was sent before
    again: bool = False  # who decodes computes all of it anew, for a node is gone
    refusal: Rejected | Invalid | None = None

    @property
    def priced(self) -> Row | None:
        """The row of the engine that prefills it, or of the best that would; None: nobody does."""
        if self.row is not None or self.rows is None or not len(self.rows):
            return self.row
        return tuple(self.rows[0].tolist())

    @property
    def fits_nowhere(self) -> bool:
        """It is refused, and not for want of time or of room that others have now."""
        return self.refusal is not None and not self.ttft and self.decode is None

    def or_raise(self) -> Decision:
        """Itself, unless it is refused. What is raised is another each time: one that was raised
        keeps all that stood on the stack, and decisions are remembered."""
        if isinstance(self.refusal, Rejected):
            raise type(self.refusal)(str(self.refusal), self.refusal.retry_after_ms)
        if self.refusal is not None:
            raise Invalid(str(self.refusal))
        return self


def nobody_prefills(ask: Ask, largest: Largest, now: float) -> Rejected | Invalid:
    """`largest` is of those that prefill."""
    alone = largest.now >= ask.tokens  # those that are would decode it too
    return _too_large(ask, "prefill", ask.whole if alone else ask.tokens, largest, now)


def nobody_decodes(ask: Ask, largest: Largest, now: float) -> Rejected | Invalid:
    """`largest` is of those that decode."""
    return _too_large(ask, "decode", ask.whole, largest, now)


def nobody_is_left() -> Rejected:
    """Of those that could have it all are at addresses where it is not to go."""
    return Unavailable("all engines that could have it are among those of not_at", NOBODY_MS)


def _too_large(ask: Ask, does: str, needs: int, largest: Largest, now: float) -> Rejected | Invalid:
    """No engine that does this now has place for so many tokens of KV."""
    if not largest.now:
        return Unavailable(f"no engine of yours {does}s this namespace and group", NOBODY_MS)
    answer = f" and an answer of {needs - ask.tokens} at most" if needs > ask.tokens else ""
    if needs <= (lately := largest.lately(now)):
        return Overloaded(
            f"a prompt of {ask.tokens} tokens{answer}: no engine that {does}s now has room for "
            f"that, but one that does not now, or left lately, has it for {lately}",
            RETRY_MS_MAX,
        )
    if largest.gathers(now):
        return Unavailable(
            f"a prompt of {ask.tokens} tokens{answer}: of the engines that {does} and have "
            f"reported by now the largest has room for {largest.now} tokens of KV",
            NOBODY_MS,
        )
    return Invalid(
        f"a prompt of {ask.tokens} tokens{answer}: of the engines that {does} the largest has room "
        f"for {largest.now} tokens of KV"
    )


def too_late(
    ask: Ask,
    engines: Sequence[Engine | None],
    rows: Rows,
    rules: Rules,
    wanted: float,
    crowded: float,
    count: int,
) -> Rejected:
    """Nobody of so many engines that prefill would give its first token by the rules' target;
    `wanted` is what it is where nobody is refused, and `crowded` what it is now for who had a fair
    share. All are looked at, by their rows: who would be the soonest may not be among the cheapest.
    """
    begins = np.maximum(rows[:, WAIT], rows[:, READY])
    comes = np.maximum(rules.margin * begins + rows[:, WORK], rows[:, HANDED])
    soonest = int(np.argmin(np.where(rows[:, COST] < np.inf, comes, np.inf)))
    engine, come = engines[soonest], float(comes[soonest])
    assert engine is not None, "nobody's row has a price"
    begin, work = float(begins[soonest]), float(rows[soonest, WORK])
    wait, handed = rules.margin * begin, float(rows[soonest, HANDED])
    behind = (
        f"; its KV is where it is decoded after {handed:.3g} s" if handed > begin + work else ""
    )
    why = f" instead of {wanted:.3g} s as most are refused" if rules.ttft < wanted else ""
    if rules.ttft < crowded:
        why = f" instead of {wanted:.3g} s as its client has lately had more than a fair share"
    return Overloaded(
        f"its first token would come {ask.waited + come:.3g} s after the request, and "
        f"{rules.ttft:.3g} s are wanted{why}: {engine.facts.engine_id}, the soonest of {count} "
        f"engines, begins in {begin:.3g} s, or {wait:.3g} s as shorter ones come, and "
        f"takes {work:.3g} s{behind}",
        _retry_ms(come - rules.ttft),
    )


def no_room(ask: Ask, engine: Engine, step: float, rules: Rules, room: float) -> Overloaded:
    """No engine may decode one more now; this one comes closest."""
    return Overloaded(
        f"no engine has room for {ask.tokens} tokens more and stays within "
        f"{1e3 * rules.pace * rules.tpot:.0f} ms: {engine.facts.engine_id}, the best, would take "
        f"{1e3 * step:.0f} ms; {_expected(room)}",
        RETRY_MS_MIN,
    )


def no_room_in_time(ask: Ask, room: float, rules: Rules) -> Overloaded:
    """It would wait too long between its prefill and its first token."""
    most = rules.forecast * rules.ttft
    return Overloaded(
        f"engines that decode have no room for {ask.tokens} tokens more: {_expected(room)}, and "
        f"{most:.3g} s are waited for it at most",
        _retry_ms(room - most),
    )


def room_too_late(ask: Ask, room: float, target: float) -> TooLate:
    """One that was sent to be prefilled is better given up."""
    return TooLate(
        f"{ask.waited:.3g} s after the request no engine has room for its {ask.tokens} tokens: "
        f"{_expected(room)}, and its first token is wanted within {target:.3g} s",
        RETRY_MS_MAX,
    )


def _retry_ms(seconds: float) -> int:
    return round(1e3 * min(max(seconds, 1e-3 * RETRY_MS_MIN), 1e-3 * RETRY_MS_MAX))


def _expected(room: float) -> str:
    if room == float("inf"):
        return "there is never to be any"
    return f"there is to be some in {room:.3g} s"
