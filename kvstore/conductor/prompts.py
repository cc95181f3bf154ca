"""A prompt that is to be prefilled, and a request that is to be decoded, as they are counted."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvstore.conductor.engines import Engine
from kvstore.core.fingerprints import Prints

# Tokens of a prompt that are to be computed, and those before them; None where some of these are
# brought from elsewhere, and nobody knows how long it waits for them.
Computes = tuple[float, float]


class Stage(enum.Enum):
    SENT = "sent"  # somebody was told to send it there
    WAITING = "waiting"  # the engine has it
    RUNNING = "running"  # its prefill has begun


@dataclass(slots=True, eq=False)
class Prompt:
    """One that is to be prefilled."""

    engine: Engine
    stage: Stage
    size: int  # in which it waits in line
    work: float  # seconds
    prints: Prints  # of its blocks, those that are counted: see `expected.marked`
    until: float  # when it counts no more
    decided: float  # when it was sent there; NaN where another conductor did that
    takes: float = 0.0  # seconds from then until its first token, as predicted
    computes: Computes | None = None
    hand: float = 0.0  # seconds that its KV is to take to leave the engine's host
    began: float = float("nan")

    @property
    def ours(self) -> bool:
        return self.decided == self.decided

    def is_late(self, now: float) -> bool:
        """It was sent by this conductor and has not begun, when it was to have. An engine gives up
        none before that: it had been told to drop what begins later yet."""
        begun = self.stage is Stage.RUNNING
        return not begun and now - self.decided > self.takes - self.work


@dataclass(slots=True, eq=False)
class Sequence:
    """One that is to be decoded, until its engine counts it itself."""

    engine: Engine
    tokens: int
    until: float
