"""Who of a crew wants room to be decoded in, and who waits for it.

A prompt wants room from when it is sent to be prefilled until an engine is to decode it: so it is
known what will be wanted, and by what engines decode how long a newcomer would wait. Those
whose callers wait stand in a line, and an engine that has room is given the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvstore.conductor.engines import Crew, Engine
from kvstore.kernels import room as loops
from kvstore.kernels.decision import want_room
from kvstore.kernels.fleet import NONE
from kvstore.kernels.rules import Rules

_LINE_MIN = 64


@dataclass(frozen=True, slots=True)
class Parked:
    """One in the line."""

    request: str
    tokens: int  # that it has KV of
    whole: int  # and that it may come to at most
    grows: float  # tokens of its answer that are expected
    came: float  # when its request did
    tpot: float  # seconds that a step with it may take
    served: Callable[[Engine, float], None]  # and when


class Room:
    """Of one crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._tokens: dict[str, int] = {}  # of those that want room
        self.demand = np.zeros(1, loops.DEMAND)
        self._line: list[Parked] = []
        self._at: dict[str, int] = {}  # places in the line, by request
        self._ranks = np.zeros(_LINE_MIN, loops.PARKED)  # what the line is served by

    def __len__(self) -> int:
        """How many stand in the line."""
        return len(self._line)

    def __contains__(self, request: str) -> bool:
        """Whether it wants room."""
        return request in self._tokens

    def want(self, request: str, tokens: int) -> None:
        self.forget(request)
        self._tokens[request] = tokens
        want_room(self.demand, float(tokens), 1.0)

    def forget(self, request: str) -> None:
        """It has room, or wants none any more."""
        tokens = self._tokens.pop(request, None)
        if tokens is not None:
            want_room(self.demand, float(tokens), -1.0)

    def seconds(self, request: str, tokens: int, whole: int, rules: Rules, alike: bool) -> float:
        """How long it would wait, that may come to be so many on the `whole`."""
        mine = self._tokens.get(request)
        self.forget(request)
        fleet, reserve, tpot = self._crew.fleet, self._crew.answers.tokens, rules.pace * rules.tpot
        size = float(tokens), float(whole)
        took = loops.room_seconds(fleet, self.demand[0], *size, reserve, tpot, alike)
        if mine is not None:
            self.want(request, mine)
        return float(took)

    def stand(self, parked: Parked) -> None:
        """It waits from now on, once."""
        before = self._at.get(parked.request)
        if before is not None:
            self.step_out(self._line[before])
        at = self._at[parked.request] = len(self._line)
        self._line.append(parked)
        if at == len(self._ranks):
            self._ranks = np.concatenate([self._ranks, np.zeros_like(self._ranks)])
        one = parked
        self._ranks[at] = (one.tokens, one.whole, one.grows, one.came, one.tpot, NONE)

    def step_out(self, parked: Parked) -> None:
        """It does not wait any more."""
        at = self._at.get(parked.request)
        if at is None or self._line[at] is not parked:
            return  # it was served, or its caller asked again
        del self._at[parked.request]
        last = self._line.pop()
        if last is not parked:
            self._line[at], self._at[last.request] = last, at
            self._ranks[at] = self._ranks[len(self._line)]

    def first(self, engine: Engine, rules: Rules, now: float, alike: bool) -> Parked | None:
        """Whom an engine is to serve next; None where it has room for nobody who waits."""
        if not self._line:
            return None
        row, ranks = self._crew.fleet.engines[engine.number], self._ranks[: len(self._line)]
        if not row["decodes"]:
            return None
        at = loops.first_that_fits(row, ranks, now, rules.patience, alike)
        return None if at == NONE else self._line[at]

    def check(self) -> None:
        assert self.demand["ahead"][0, -1] == sum(self._tokens.values()), "room is miscounted"
        assert self._tokens or not self.demand["ahead"].any(), "nobody wants room"
        assert self._at == {one.request: at for at, one in enumerate(self._line)}
        for rank, one in zip(self._ranks, self._line, strict=False):
            assert (rank["tokens"], rank["came"], rank["tpot"]) == (one.tokens, one.came, one.tpot)
