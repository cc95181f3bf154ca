"""Schedule, Report and Explain of the Conductor service.

A report's stream is its engine's life here: whichever way it ends, the engine is sent nothing more.
Few calls may wait for room to decode, because each has one of the places of those that are served
at once, and who asks where to prefill must always get in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from kvstore.clock import Clock
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.explained import explain, reply_of
from kvstore.conductor.listening import PAUSE_SECONDS_MAX, Listening
from kvstore.conductor.pool import Pool
from kvstore.conductor.reports import Reporter, check_text, hashes_of
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.silence import heard_within
from kvstore.conductor.stored import stored_prints
from kvstore.core.fingerprints import Prints
from kvstore.core.fit import TOKENS_MAX
from kvstore.core.turns import Places
from kvstore.errors import Invalid, Overloaded, Rejected, TooLate, Unavailable
from kvstore.limits import (
    CLIENT_BYTES_MAX,
    GROUPS_MAX,
    HASH_BYTES,
    NAME_BYTES_MAX,
    NOT_AT_MAX,
    PLACE_WAITERS_MAX,
    REPORT_SILENCE_SECONDS,
    REQUEST_ID_BYTES_MAX,
)
from kvstore.metadata.tenants import Tenants
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import tenant_of
from kvstore.telemetry import Telemetry
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.25
PACE_SECONDS = 0.005  # between two messages of one engine
WAIT_MS_MAX = 1_000  # that a call is held open for room to decode
_CROWDED_MS = 250  # before one that found no place to wait in asks again: there are many of those
REPORT_SHARE = 0.1  # of the conductor's time, that the reports of one engine take
# However long one took, who is not listened to must not seem silent.
assert PAUSE_SECONDS_MAX < REPORT_SILENCE_SECONDS / 2
_ANSWERS: dict[type[Rejected], str] = {Overloaded: "refused", TooLate: "too_late"}
Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


class SchedulingService(conductor_pb2_grpc.ConductorServicer):
    """Each method is documented in proto/moonpool/v1/conductor.proto."""

    def __init__(
        self,
        pool: Pool,
        tenants: Tenants,
        scheduler: Scheduler,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._pool, self._tenants, self._telemetry = pool, tenants, telemetry
        self._scheduler, self._clock = scheduler, clock
        self._waiting, self._listening = Places(PLACE_WAITERS_MAX), Listening(clock)
        self._reporting: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def keep(self) -> None:
        """Give up what was not heard of for too long, until cancelled."""
        while True:
            due = self._clock.now() + SWEEP_SECONDS
            await self._clock.sleep(SWEEP_SECONDS)
            now = self._clock.now()
            if now > due + SWEEP_SECONDS:
                self._scheduler.stood_still(now - due, now)
            for engine_id in self._scheduler.sweep(now):
                log.warning("engine %s is sent nothing: it was silent", engine_id)

    def end_reports(self) -> None:
        """Answer every stream of reports: this conductor stops."""
        self._stopping = True
        for task in self._reporting:
            task.cancel()

    @typed
    async def Schedule(self, request: pb.ScheduleRequest, context: Context) -> pb.ScheduleReply:
        began, decodes = self._clock.now(), request.phase == pb.DECODE
        whose, ask = self._asked(request, tenant_of(context))
        try:
            if decodes:
                decision = await self._decoded_by(whose, ask, 1e-3 * request.wait_ms)
            else:
                decision = self._scheduler.schedule(whose, ask, began)
        except Rejected as error:
            self._telemetry.add("decisions", label=_ANSWERS.get(type(error), "unavailable"))
            raise
        reply = reply_of(self._scheduler, decision, self._pool.approximate)
        self._telemetry.add("decisions", label="decode" if decodes else "prefill")
        if not decodes:  # which may wait in line
            self._telemetry.observe("decision_seconds", self._clock.now() - began)
        return reply

    @typed
    async def Report(
        self, requests: AsyncIterator[pb.ReportRequest], context: Context
    ) -> pb.ReportReply:
        tenant = tenant_of(context)
        reporter = Reporter(self._scheduler, tenant, lambda: self._tenants.secrets.get(tenant))
        task = asyncio.current_task()
        assert task is not None, "a call runs in a task of its own"
        self._reporting.add(task)
        try:
            while not self._stopping:
                async with heard_within(REPORT_SILENCE_SECONDS):
                    message = await anext(requests)
                reporter.waits()
                # A message may hold much, and others have their turn: an engine that says more
                # than it may waits, and flow control has it wait with what it has to say.
                async with self._listening.turn(tenant):
                    began = self._clock.now()
                    reporter.take(message, began)
                    took = self._clock.now() - began
                pause = max(PACE_SECONDS, took / REPORT_SHARE - took)
                await self._clock.sleep(min(PAUSE_SECONDS_MAX, pause))
        except StopAsyncIteration:
            pass  # the engine has ended it
        except TimeoutError:
            raise Unavailable(f"nothing reported for {REPORT_SILENCE_SECONDS} s", 1) from None
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            task.uncancel()
        finally:
            self._reporting.discard(task)
            reporter.end(self._clock.now())
        return pb.ReportReply()

    @typed
    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainReply:
        tenant, scheduler = tenant_of(context), self._scheduler
        match request.WhichOneof("which"):
            case "request_id":
                found = scheduler.last_decided(tenant, request.request_id)
                if found is None:
                    raise Invalid("request_id names none of the requests that were lately decided")
                return explain(scheduler, found, self._pool.approximate)
            case "request":
                whose, ask = self._asked(request.request, tenant)
                if request.request.phase == pb.DECODE:
                    found = scheduler.consider_place(whose, ask, self._clock.now())
                else:
                    found = scheduler.consider(whose, ask, self._clock.now())
                return explain(scheduler, found, self._pool.approximate)
            case _:
                raise Invalid("request_id or request is to say which")

    async def _decoded_by(self, whose: Whose, ask: Ask, wait: float) -> Decision:
        """Who decodes a request, now or, if it may and so few do, once somebody has room. Raises
        what refuses it."""
        may_wait = wait > 0 and self._waiting.try_take(whose[0])
        try:
            return await self._placed(whose, ask, wait if may_wait else 0.0)
        except TooLate:
            raise
        except Overloaded as full:
            if may_wait or not wait:
                raise
            raise Overloaded(str(full), max(full.retry_after_ms, _CROWDED_MS)) from None
        finally:
            if may_wait:
                self._waiting.give_back(whose[0])

    async def _placed(self, whose: Whose, ask: Ask, wait: float) -> Decision:
        """Who decodes a request, once somebody has room. Raises what refuses it."""
        served: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()

        def tell(decision: Decision) -> None:
            if not served.done():  # else its caller has just gone
                served.set_result(decision)

        came = self._clock.now()
        placed = self._scheduler.place(whose, ask, came, tell if wait else None)
        if isinstance(placed, Decision):
            return placed
        try:
            async with asyncio.timeout(wait):
                return await served
        except TimeoutError:
            pass
        finally:
            self._scheduler.step_out(whose, placed)
        now = self._clock.now()
        later = replace(ask, waited=ask.waited + now - came)
        placed = self._scheduler.place(whose, later, now)
        assert isinstance(placed, Decision), "nobody was to be told, and yet it waits"
        return placed

    def _asked(self, request: pb.ScheduleRequest, tenant: str) -> tuple[Whose, Ask]:
        """Raises `Invalid` naming the field."""
        check_text("request_id", request.request_id, REQUEST_ID_BYTES_MAX)
        if request.client:
            check_text("client", request.client, CLIENT_BYTES_MAX)
        if len(request.namespace) != HASH_BYTES:
            size = len(request.namespace)
            raise Invalid(f"namespace is {size} bytes; a digest has {HASH_BYTES}")
        if request.group >= GROUPS_MAX:
            raise Invalid(f"group {request.group}: a namespace has at most {GROUPS_MAX}")
        if not 0 < request.tokens <= TOKENS_MAX:
            raise Invalid(f"tokens = {request.tokens}: from 1 to {TOKENS_MAX} are wanted")
        if request.phase not in pb.Phase.values():
            raise Invalid(f"phase = {request.phase}: PREFILL (0) or DECODE (1) is wanted")
        if request.wait_ms > WAIT_MS_MAX:
            raise Invalid(f"wait_ms = {request.wait_ms}: at most {WAIT_MS_MAX} are waited")
        if len(request.not_at) > NOT_AT_MAX:
            raise Invalid(f"{len(request.not_at)} addresses in not_at: at most {NOT_AT_MAX}")
        for i, address in enumerate(request.not_at):
            check_text(f"not_at[{i}]", address, NAME_BYTES_MAX)
        whose = (tenant, request.namespace, request.group)
        crew, _ = self._scheduler.crew(whose)  # where nobody serves, nothing is hashed
        hashes = hashes_of("hashes", request.hashes, request.tokens, crew.block_tokens)
        secret = self._tenants.secrets.get(tenant)
        named: Prints = np.zeros(0, np.uint64)
        if secret is not None:
            named = stored_prints(secret, request.namespace, request.group, hashes)
        return whose, Ask(
            request.request_id,
            named,
            request.tokens,
            waited=1e-3 * request.waited_ms,
            ttft=1e-3 * request.ttft_ms,
            tpot=1e-3 * request.tpot_ms,
            client=request.client,
            max_new_tokens=request.max_new_tokens,
            not_at=frozenset(request.not_at),
            as_many_as_fit=request.as_many_as_fit,
        )
