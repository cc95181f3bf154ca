"""Sends a load through a dispatcher, each request at its moment whatever became of those before,
and says what came of each. Also round-robin, a router that knows nothing, to be compared with."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from bench.chats import Coming
from bench.fleet import Fleet
from kvstore.config import OPEN
from kvstore.errors import KVStoreError
from kvstore.gateway.dispatch import Dispatcher, Planner
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import One
from kvstore.wire.v1 import conductor_pb2 as pb

CALLERS = 64  # requests under way at most: more would mean that the engines do not keep up
_EVERYBODY = 4  # requests of the reference at a time

Answers = dict[str, list[int]]  # tokens, by the request's id


@dataclass(slots=True)
class Ran:
    """One run of a load: what came of each request, in the order in which they came."""

    coming: Sequence[Coming]
    outcomes: list[Outcome | KVStoreError] = field(default_factory=list)

    @property
    def done(self) -> list[tuple[Coming, Outcome]]:
        pairs = zip(self.coming, self.outcomes, strict=True)
        return [(one, what) for one, what in pairs if isinstance(what, Outcome)]

    @property
    def failed(self) -> list[KVStoreError]:
        return [one for one in self.outcomes if isinstance(one, KVStoreError)]

    @property
    def hit_share(self) -> float:
        """Of prompt tokens those that were not computed."""
        tokens = sum(len(one.request.prompt) for one, _ in self.done)
        return sum(what.pool_tokens for _, what in self.done) / tokens

    @property
    def ttft_seconds(self) -> float:
        """Mean."""
        return float(np.mean([what.ttft_seconds for _, what in self.done]))

    @property
    def ttft_p99_seconds(self) -> float:
        return float(np.percentile([what.ttft_seconds for _, what in self.done], 99))

    def part(self, which: slice) -> Ran:
        """Of consecutive ones of them."""
        return Ran(self.coming[which], self.outcomes[which])

    def wrong(self, answers: Answers) -> list[str]:
        """Requests whose tokens are not those of the reference."""
        return [one.request.id for one, what in self.done if what.tokens != answers[one.request.id]]


class RoundRobin:
    """The next engine to prefill, and the next to decode, whatever anybody has."""

    def __init__(self, fleet: Fleet) -> None:
        nodes = fleet.node_ids()
        places = {
            role: itertools.cycle(
                [pb.ScheduleReply.Place(address=one, node_id=nodes[one]) for one in addresses]
            )
            for role, addresses in fleet.addresses.items()
        }
        self._prefills, self._decodes = places["prefill"], places["decode"]
        self._lock = threading.Lock()

    def give_up(self, request: pb.ScheduleRequest) -> None:
        """Nothing is counted."""

    def schedule(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        if request.phase == pb.DECODE:
            return None  # as it was said
        with self._lock:
            prefill, decode = next(self._prefills), next(self._decodes)
        split = pb.ScheduleReply.Split(computed_tokens=request.tokens)
        return pb.ScheduleReply(prefill=prefill, decode=decode, split=split)


class Nobody:
    """Says of no request where it is to run: each goes to the next engine, which does all of it."""

    def give_up(self, request: pb.ScheduleRequest) -> None:
        """Nothing is counted."""

    def schedule(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        return None


def drive(
    fleet: Fleet,
    planner: Planner,
    coming: Sequence[Coming],
    sent: Callable[[int], None] = lambda number: None,
) -> Ran:
    """`sent` is called before each request, with how many came before it."""
    dispatcher = Dispatcher(planner, One(fleet.spec), fleet.addresses["decode"], OPEN)
    ran = Ran(coming)

    def run(request: Request) -> Outcome | KVStoreError:
        try:
            return dispatcher.run(request)
        except KVStoreError as error:
            return error

    with ThreadPoolExecutor(CALLERS) as callers:
        start, futures = time.monotonic(), []
        for number, one in enumerate(coming):
            time.sleep(max(0.0, start + one.at - time.monotonic()))
            sent(number)
            futures.append(callers.submit(run, one.request))
        ran.outcomes = [future.result() for future in futures]
    dispatcher.close()
    return ran


def in_turn(fleet: Fleet, planner: Planner, coming: Sequence[Coming], together: int) -> Ran:
    """So many at once, and the next ones when all of these are done, whatever their moments."""
    dispatcher = Dispatcher(planner, One(fleet.spec), fleet.addresses["decode"], OPEN)
    ran = Ran(coming)
    with ThreadPoolExecutor(together) as callers:
        for first in range(0, len(coming), together):
            some = [one.request for one in coming[first : first + together]]
            ran.outcomes += callers.map(dispatcher.run, some)
    dispatcher.close()
    return ran


def reference(fleet: Fleet, coming: Sequence[Coming]) -> Answers:
    """What one engine alone answers, which finds nothing of it anywhere."""
    everybody = [one for some in fleet.addresses.values() for one in some]
    dispatcher = Dispatcher(Nobody(), One(fleet.spec), everybody, OPEN)
    alone = [fleet.kind.alone(one.request) for one in coming]
    with ThreadPoolExecutor(_EVERYBODY) as callers:
        outcomes = list(callers.map(dispatcher.run, alone))
    dispatcher.close()
    return {one.request.id: what.tokens for one, what in zip(coming, outcomes, strict=True)}
