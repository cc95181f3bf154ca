"""Asks one conductor of several where a request is to run, and goes on without where none answers.

Whoever answered last is asked first. One that does not answer is left alone for a while, longer
each time, and then tried by one caller while the others still pass it over: a dead conductor costs
a few callers a quarter of a second, and nobody more. However many ask it while it stands still,
that is one failure: it may be back at once. A refusal is an answer: all conductors know
the same, so no other is asked. One that knows no engine for a request may just have begun, so the
next is asked; but it has answered, and is asked about others.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from kvstore.client.at_once import ask_at_once
from kvstore.client.given_up import GivenUp
from kvstore.config import Credentials
from kvstore.errors import Broken, Denied, Invalid, KVStoreError, Overloaded, Rejected, Unavailable
from kvstore.rpc.lasting import LastingStub
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

ANSWER_SECONDS = 0.25  # a decision takes a millisecond: later it is worth no more than none
EXPLAIN_SECONDS = 1.0  # of each that is asked
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.5, 4.0  # before one that did not answer is tried again


@dataclass(slots=True, eq=False)
class _Conductor:
    stub: LastingStub
    pause: float = 0.0  # the last one
    rests_until: float = 0.0
    failures: int = 0


class Conductors:
    """Some conductors, HOST:PORT each. Safe to use from several threads."""

    def __init__(self, addresses: Sequence[str], credentials: Credentials | None = None) -> None:
        kind = conductor_pb2_grpc.ConductorStub
        self._all = [_Conductor(LastingStub(one, kind, credentials)) for one in addresses]
        # Callers that are told of them in one order do not all ask the same one.
        random.shuffle(self._all)
        self._given_up = GivenUp(self._say_given_up)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        for one in self._all:
            one.stub.close()

    @property
    def first(self) -> str:
        """The one that is asked next; empty where there is none."""
        with self._lock:
            return self._all[0].stub.address if self._all else ""

    def schedule(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        """Where it is to run; None where no conductor says anything. Raises `Overloaded` where one
        refuses it, and what is wrong with the request or the caller's credentials."""
        tried: set[str] = set()
        timeout = ANSWER_SECONDS + 1e-3 * request.wait_ms
        while (taken := self._take(tried, timeout)) is not None:
            one, failures = taken
            tried.add(one.stub.address)
            self._given_up.planned(request.request_id, one)  # maybe, also if its answer is late
            try:
                reply = self._ask(one, lambda stub: stub.Schedule(request, timeout=timeout))
            except Overloaded:
                self._stay_with(one)
                raise
            except (Invalid, Denied):
                self._answered(one)
                raise
            except (Rejected, Broken) as error:
                if getattr(error, "retry_after_ms", 0):  # its own word
                    self._answered(one)
                else:
                    self._failed(one, failures)
                continue
            self._stay_with(one)
            assert isinstance(reply, pb.ScheduleReply)
            return reply
        return None

    def give_up(self, request: pb.ScheduleRequest) -> None:
        """It is sent nowhere any more, and not asked for again. Returns at once."""
        self._given_up.add((request.namespace, request.group), request.request_id)

    def explain(self, request_id: str) -> pb.ExplainReply:
        """Why a request was lately sent where it was. Raises `Invalid` where all conductors have
        answered and none remembers it; where one has not, its error. Either way the message has
        what each of them said."""
        with self._lock:
            every = list(self._all)
        asked = pb.ExplainRequest(request_id=request_id)
        said = list[str]()
        error: KVStoreError = Invalid("no conductor is asked")
        for one in every:
            try:
                reply = self._ask(one, lambda stub: stub.Explain(asked, timeout=EXPLAIN_SECONDS))
            except Invalid as unknown:
                said.append(f"{one.stub.address} says that {unknown}")
            except KVStoreError as failed:
                error = failed
                said.append(str(failed))
            else:
                assert isinstance(reply, pb.ExplainReply)
                return reply
        raise type(error)("; ".join(said) or str(error))

    def consider(self, request: pb.ScheduleRequest) -> pb.ScheduleReply | None:
        """Where it would run, which changes nothing; None where it would be refused, and where no
        conductor says anything."""
        asked = pb.ExplainRequest(request=request)
        said = self._first_of(lambda stub: stub.Explain(asked, timeout=ANSWER_SECONDS))
        return said.plan if said is not None and said.HasField("plan") else None

    def crews(
        self, revision: str, seconds: float
    ) -> Iterator[tuple[str, pb.CrewsReply | KVStoreError]]:
        """What is served of these weights, as each conductor says within this time, by its address,
        or why it does not: all are asked at once, and who answers first is heard first."""
        asked = pb.CrewsRequest(revision=revision)
        stubs = [one.stub for one in self._rested()]
        with suppress(Unavailable), self._open():
            yield from ask_at_once(stubs, lambda stub: stub.Crews.future(asked, timeout=seconds))

    def _say_given_up(self, one: _Conductor, request: pb.GiveUpRequest) -> None:
        self._ask(one, lambda stub: stub.GiveUp(request, timeout=ANSWER_SECONDS))

    def _first_of(self, ask: Callable[[conductor_pb2_grpc.ConductorStub], Any]) -> Any:
        """What the first says that does. One that fails is not put to rest for it: that it names
        nobody is no fault of its."""
        for one in self._rested():
            try:
                return self._ask(one, ask)
            except (Rejected, Broken):
                continue
        return None

    def _rested(self) -> list[_Conductor]:
        with self._lock:
            return [one for one in self._all if one.rests_until <= time.monotonic()]

    def _ask(self, one: _Conductor, call: Callable[[Any], Any]) -> Any:
        """Raises a call's typed error."""
        with self._open():
            return one.stub.ask(call)

    @contextmanager
    def _open(self) -> Iterator[None]:
        """For what begins a call. Raises `Unavailable` where they are closed."""
        try:
            yield
        except ValueError as error:  # gRPC's word for a channel that was closed before the call
            if not self._closed:
                raise
            raise Unavailable("the conductors were closed while this thread asked") from error

    def _take(self, tried: set[str], seconds: float) -> tuple[_Conductor, int] | None:
        """The next that does not rest, and how often it failed before. Of those that rested it is
        this caller's alone for now."""
        with self._lock:
            now = time.monotonic()
            for one in self._all:
                if one.stub.address not in tried and one.rests_until <= now:
                    if one.rests_until:
                        one.rests_until = now + seconds
                    return one, one.failures
        return None

    def _stay_with(self, one: _Conductor) -> None:
        """It is asked first from now on."""
        self._answered(one)
        with self._lock:
            self._all.remove(one)
            self._all.insert(0, one)

    def _answered(self, one: _Conductor) -> None:
        with self._lock:
            one.pause, one.rests_until = 0.0, 0.0

    def _failed(self, one: _Conductor, before: int) -> None:
        """It did not answer who asked it when it had failed so often."""
        with self._lock:
            if one.failures != before:
                return  # it rests already, of what another caller met at the same time
            one.failures += 1
            one.pause = min(max(2 * one.pause, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)
            # By chance: callers that saw it die together are not to come back together.
            one.rests_until = time.monotonic() + one.pause * random.uniform(0.5, 1.0)
