"""Sends a request through engines as a conductor says, and where none answers as it can alone.

A prompt that is to be computed is prefilled at one engine, and another follows layer by layer and
decodes it. One whose prefill and decode fall to the same engine, or of which nearly all is in the
pool, goes to the engine that decodes, alone. With no conductor each goes to the next engine that is
known, alone.

An engine that goes away fails no request: what it was is decided anew, and goes on behind the
tokens that came. A refusal is passed on to the caller, who may come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kvstore.block import chain
from kvstore.config import Credentials
from kvstore.errors import Overloaded, Rejected, TooLate
from kvstore.gateway.engines import DEADLINE_SECONDS, Engines
from kvstore.gateway.known import Known
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.run import Run, nobody
from kvstore.limits import RPC_KEYS_MAX
from kvstore.spec import KVSpec
from kvstore.wire.v1 import conductor_pb2, engine_pb2

Plan = conductor_pb2.ScheduleReply

LOCAL_TOKENS_MAX = 64  # a prompt with fewer tokens to compute is not worth a hand-off
TRIES_MAX = 4  # engines of one request that may go away under it
PAUSE_SECONDS_MIN = 0.02  # between two calls that ask who has room to decode
LINE_MS = 250  # of a call that waits for room to decode: then it is asked again


class Planner(Protocol):
    """Whoever says where a request is to run: see `kvstore.client.conductors.Conductors`."""

    def schedule(self, request: conductor_pb2.ScheduleRequest) -> Plan | None: ...


class Dispatcher:
    """Over the engines of one namespace. Safe to use from several threads; each `run` blocks its
    own."""

    def __init__(
        self,
        planner: Planner,
        spec: KVSpec,
        engines: Sequence[str] = (),
        credentials: Credentials | None = None,
        *,
        local_tokens_max: int = LOCAL_TOKENS_MAX,
    ) -> None:
        """`engines` are known from the start; others are learned from what the planner says."""
        (self._group,) = spec.groups
        self._namespace, self._planner = spec.digest, planner
        self._engines, self._known = Engines(credentials), Known(engines)
        self._local_tokens_max = local_tokens_max

    def close(self) -> None:
        self._engines.close()

    def run(self, request: Request, told: Callable[[int], None] = nobody) -> Outcome:
        """`told` of each token as it comes. Raises `Overloaded` where it is refused, `Unavailable`
        where no engine could be had, and `Invalid`."""
        run = Run(request, told)
        hashes = chain(self._namespace, 0, request.prompt, self._group.block_tokens).hashes
        asked = conductor_pb2.ScheduleRequest(
            namespace=self._namespace,
            hashes=hashes[:RPC_KEYS_MAX],
            tokens=len(request.prompt),
            ttft_ms=request.ttft_ms,
            tpot_ms=request.tpot_ms,
        )
        gone: set[str] = set()
        while True:
            run.outcome.tries += 1
            try:
                self._try(run, asked, self._planned(run, asked, gone), gone)
                break
            except Overloaded:
                raise
            except Rejected:
                sent = run.outcome.engines[-1:]
                if gone.issuperset(sent) or run.outcome.tries == TRIES_MAX:
                    raise  # it was sent nowhere, for nobody is left
                gone.update(sent)
                if self._known.lost(sent[0]):
                    self._engines.forget(sent[0])
        run.outcome.seconds = time.monotonic() - run.since
        return run.outcome

    def _planned(
        self, run: Run, asked: conductor_pb2.ScheduleRequest, gone: set[str]
    ) -> Plan | None:
        """None where it is for itself to choose: also where the planner has not heard yet that an
        engine is gone, and for one that ran and would be refused now."""
        if run.request.without_pool:
            return None
        asked.request_id = run.id
        asked.phase, asked.wait_ms = conductor_pb2.PREFILL, 0
        asked.waited_ms = run.waited_ms
        try:
            plan = self._planner.schedule(asked)
        except Overloaded:
            if run.outcome.tries == 1:
                raise
            return None
        if plan is None or {plan.prefill.address, plan.decode.address} & gone:
            return None
        self._known.learn(plan.decode.address or plan.prefill.address)
        return plan

    def _try(
        self,
        run: Run,
        asked: conductor_pb2.ScheduleRequest,
        plan: Plan | None,
        gone: set[str],
    ) -> None:
        """Raises `Rejected` of the last engine that it was sent to."""
        if plan is None:
            self._generate(run, self._known.next(gone), run.generate())
            return
        run.outcome.expected_seconds = run.outcome.expected_seconds or 1e-3 * plan.ttft_ms
        prefill, decode = plan.prefill.address, plan.decode.address
        if not decode or prefill == decode:
            self._generate(run, prefill, run.generate(_turn(plan)))
        elif plan.split.computed_tokens <= self._local_tokens_max:
            decode = self._decoder(run, asked, plan, gone)
            self._generate(run, decode, run.generate(_turn(plan)))
        else:
            self._hand_over(run, asked, plan, gone)

    def _hand_over(
        self, run: Run, asked: conductor_pb2.ScheduleRequest, plan: Plan, gone: set[str]
    ) -> None:
        run.outcome.engines.append(plan.prefill.address)
        prefill = self._engines.prefill(plan.prefill.address, run.prefill(_turn(plan)))
        # Only now is it known that somebody computes it, so that whoever decodes may count on it.
        try:
            decode = self._decoder(run, asked, plan, gone)
        except Overloaded:
            prefill.end(0.0)  # it is to stop, if it has not computed all
            raise
        wanted = run.generate()
        if decode == plan.prefill.address:
            prefill.end(DEADLINE_SECONDS)  # it has what it published
        elif prefill.hand_off is not None:
            wanted.hand_off.CopyFrom(prefill.hand_off)
        self._generate(run, decode, wanted)
        done, out = prefill.end(), run.outcome
        if done is not None:
            loaded = out.pool_tokens + out.hand_off_tokens
            out.pool_tokens = min(loaded, done.reused_tokens)
            out.hand_off_tokens = loaded - out.pool_tokens

    def _decoder(
        self, run: Run, asked: conductor_pb2.ScheduleRequest, plan: Plan, gone: set[str]
    ) -> str:
        """Who decodes it; waits in line for room, for as long as it may be of use. Raises
        `Overloaded`. It counts there from now on."""
        asked.phase, asked.wait_ms = conductor_pb2.DECODE, LINE_MS
        while True:
            asked.waited_ms, since = run.waited_ms, time.monotonic()
            try:
                placed = self._planner.schedule(asked)
                break
            except TooLate:
                raise
            except Overloaded as full:
                now = time.monotonic()
                if now - run.since > DEADLINE_SECONDS:
                    raise
                # From when it asked: one that has waited in line does not stay away from it.
                pause = max(PAUSE_SECONDS_MIN, 1e-3 * full.retry_after_ms)
                time.sleep(max(0.0, since + pause - now))
        if placed is None or placed.decode.address in gone | {""}:
            return plan.decode.address
        return placed.decode.address

    def _generate(self, run: Run, address: str, wanted: engine_pb2.GenerateRequest) -> None:
        run.outcome.engines.append(address)
        self._engines.generate(address, wanted, run.token, run.outcome)


def _turn(plan: Plan) -> engine_pb2.Turn:
    return engine_pb2.Turn(
        priority_ms=plan.priority_ms, aging=plan.aging, drop_after_ms=plan.drop_after_ms
    )
