"""What is asked of the scheduler and what it decides, as values; and why it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.engines import Engine
from kvstore.core.fingerprints import Prints
from kvstore.errors import Overloaded, Rejected, Unavailable
from kvstore.kernels.prefill_choice import READY, WAIT, WORK
from kvstore.kernels.rules import Rules

RETRY_MS_MIN, RETRY_MS_MAX = 20, 10_000
NOBODY_MS = 1_000  # until there may be an engine

Rows = NDArray[np.float64]  # of `prefill_choice.priced`


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is to run somewhere."""

    request: str
    prints: Prints  # of the leading blocks of its prompt
    tokens: int
    waited: float  # seconds
    ttft: float = 0.0  # its own targets, in seconds; 0: the fleet's
    tpot: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, and over what. Of what was asked it keeps what is small."""

    request: str
    tokens: int
    blocks: int
    waited: float
    considered: tuple[Engine, ...] = ()  # the cheapest first
    rows: Rows | None = None  # of those
    owns: tuple[int, ...] = ()  # leading blocks in their own memory, of each of those
    prefill: Engine | None = None
    row: Rows | None = None  # of the engine that prefills
    own: int = 0  # leading blocks in its own memory
    there: int = 0  # behind those, in its host's DRAM
    source: str = ""  # node that blocks are fetched from
    decode: Engine | None = None
    step: float = 0.0  # seconds of a decode step with it
    ttft: float = 0.0  # the target
    refusal: Rejected | None = None

    def or_raise(self) -> Decision:
        """Itself, unless it is refused. What is raised is another each time: one that was raised
        keeps all that stood on the stack, and decisions are remembered."""
        if self.refusal is not None:
            raise type(self.refusal)(str(self.refusal), self.refusal.retry_after_ms)
        return self


def nobody_prefills() -> Rejected:
    return Unavailable("no engine of yours prefills this namespace and group", NOBODY_MS)


def nobody_decodes() -> Rejected:
    return Unavailable("no engine of yours decodes this namespace and group", NOBODY_MS)


def too_late(
    ask: Ask, considered: tuple[Engine, ...], rows: Rows, rules: Rules, wanted: float, count: int
) -> Rejected:
    """Nobody of so many engines would give its first token by the rules' target; `wanted` is what
    it is where fewer are refused."""
    begins = np.maximum(rows[:, WAIT], rows[:, READY])
    soonest = int(np.argmin(begins + rows[:, WORK]))
    name = considered[soonest].facts.engine_id
    begin, work = float(begins[soonest]), float(rows[soonest, WORK])
    wait = rules.margin * begin
    late = 1e3 * (wait + work - rules.ttft)
    why = f" instead of {wanted:.3g} s as most are refused" if rules.ttft < wanted else ""
    return Overloaded(
        f"its first token would come {ask.waited + wait + work:.3g} s after the request, and "
        f"{rules.ttft:.3g} s are wanted{why}: {name}, the soonest of {count} "
        f"engines, begins in {begin:.3g} s, or {wait:.3g} s as shorter ones come, and "
        f"takes {work:.3g} s",
        min(max(round(late), RETRY_MS_MIN), RETRY_MS_MAX),
    )


def no_room(ask: Ask, engine: Engine, step: float, tpot: float) -> Rejected:
    """No engine may decode one more; this one comes closest."""
    return Overloaded(
        f"no engine has room for {ask.tokens} tokens more and stays within {1e3 * tpot:.0f} ms: "
        f"{engine.facts.engine_id}, the best, would take {1e3 * step:.0f} ms",
        RETRY_MS_MIN,
    )
