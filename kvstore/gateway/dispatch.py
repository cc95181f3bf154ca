"""Sends a request through engines as a conductor says, and where none answers as it can alone.

A prompt that is to be computed is prefilled at one engine, and another follows layer by layer and
decodes it. One whose prefill and decode fall to the same engine, or of which nearly all is in the
pool by now, goes to the engine that decodes, alone; what is prefilled at a server of SGLang's is
decoded there. With no conductor each goes to the next engine that is known, alone.

An engine that goes away fails no request: what it was is decided anew, and goes on behind the
tokens that came, also where an engine that it is then sent to is full. The first refusal is passed
on to the caller, who may come back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvstore.address import speaks_http, speaks_sglang
from kvstore.config import Credentials
from kvstore.errors import Invalid, Overloaded, Rejected, TooLate, Unavailable
from kvstore.gateway.caller import Caller
from kvstore.gateway.engines import DEADLINE_SECONDS, Engines
from kvstore.gateway.known import Known
from kvstore.gateway.lacking import Lacking
from kvstore.gateway.needs import RETRY_MS, Lacks, Needs
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.gateway.run import Otherwise, Place, Run, nobody
from kvstore.gateway.spaces import Ask, Spaces
from kvstore.limits import NOT_AT_MAX
from kvstore.wire.v1 import conductor_pb2, engine_pb2

log = logging.getLogger(__name__)

Plan = conductor_pb2.ScheduleReply

LOCAL_TOKENS_MAX = 64  # a prompt with fewer tokens to compute is not worth a hand-off
TRIES_MAX = 4  # engines of one request that may go away under it
PAUSE_SECONDS_MIN = 0.02  # between two calls that ask who has room to decode
LINE_MS = 250  # of a call that waits for room to decode: then it is asked again


class Asked(NamedTuple):
    """What is asked of engines of one kind, and how large a plan's blocks are then."""

    ask: Ask
    block_tokens: int


class Planner(Protocol):
    """Whoever says where a request is to run: see `kvstore.client.conductors.Conductors`."""

    def schedule(self, request: Ask) -> Plan | None: ...

    def give_up(self, request: Ask) -> None:
        """No plan of it is followed, and no engine may have heard of it. Returns at once."""


class Dispatcher:
    """Over the engines of one model. Safe to use from several threads; each `run` blocks its
    own."""

    def __init__(
        self,
        planner: Planner,
        spaces: Spaces,
        engines: Sequence[str] = (),
        credentials: Credentials | None = None,
        *,
        local_tokens_max: int = LOCAL_TOKENS_MAX,
    ) -> None:
        """`engines` are known from the start; others are learned from what the planner says."""
        self._planner, self._spaces = planner, spaces
        self._engines, self._known = Engines(credentials), Known(engines)
        self._lacking = Lacking()
        self._local_tokens_max = local_tokens_max

    def close(self) -> None:
        self._engines.close()

    def run(
        self,
        request: Request,
        told: Told = nobody,
        caller: Caller | None = None,
        outcome: Outcome | None = None,
    ) -> Outcome:
        """`told` of each token as it comes; what it raises is raised, and stops the decode. Raises
        `Overloaded` where it is refused, `Unavailable` where no engine could be had, `CallerLeft`
        once that has left, `Unable` where none has what it needs, and `Invalid`. Once it has
        enough what came is returned. Where something is raised `outcome` has what came."""
        run = Run(request, self._spaces.revision, told, caller or Caller(), outcome)
        try:
            self._run(run)
        finally:
            run.outcome.seconds = time.monotonic() - run.since
            run.outcome.count_prompt(len(request.prompt))
        return run.outcome

    def _run(self, run: Run) -> None:
        request = run.request
        asks = self._asks(run)
        gone: set[str] = set()
        why: Rejected | None = None  # the last of these went away
        while True:
            run.outcome.tries += 1
            try:
                asked = self._where(run, asks, gone)
                self._follow(run, asked, self._planned(run, asked, gone), gone)
                break
            except Otherwise:  # that one goes on as well as any, once it knows of the token
                continue
            except Rejected as error:
                if isinstance(error, Overloaded) and run.failures == 1:
                    raise
                run.caller.check()
                if run.caller.has_enough:
                    break
                sent = run.outcome.engines[-1:]
                if gone.issuperset(sent):  # it was sent nowhere, for nobody is left
                    raise why or error from None
                if isinstance(error, Lacks):
                    run.lacking.update(sent)
                    self._lacking.add(request.adapter, sent[0])
                if run.failures >= TRIES_MAX:
                    raise
                if why is None or not isinstance(error, Lacks):  # who went away may come back
                    why = error
                where = " and ".join(sent)
                log.warning("request %s goes on without %s: %s", request.id, where, error)
                run.lost()
                run.outcome.lost += not isinstance(error, Lacks)
                gone.update(sent)
                if not isinstance(error, Lacks) and self._known.lost(sent[0]):
                    self._engines.forget(sent[0])

    def _asks(self, run: Run) -> list[Asked]:
        """For each kind of engines that may have it. Raises `Unable` where none may, and
        `Unavailable` where no engine is known at all."""
        request = run.request
        if request.without_pool:
            return []
        spaces, needs = self._spaces.now(), Needs.of(request)
        self._known.forget(self._spaces.left())
        if needs.adapter:  # who has it only they can say
            self._known.hear(self._spaces.addresses())
        if not spaces and not self._known.any(Needs()):
            text = f"no engine is known for it: {self._spaces.why_none()}"
            raise Unavailable(text, RETRY_MS)
        may = [one for one in spaces if needs.met_in(one)]
        if spaces and not may and not self._known.any(needs):
            raise needs.unmet
        asks = [Asked(one.asked(request), one.block_tokens) for one in may]
        if asks:
            first, block_tokens = asks[0]
            full = len(request.prompt) // block_tokens
            run.outcome.block_tokens = block_tokens
            run.outcome.blocks = tuple(first.hashes[:full])
        return asks

    def _where(self, run: Run, asks: Sequence[Asked], gone: set[str]) -> Asked | None:
        """Of engines of several kinds those that would be first; None where there are none."""
        lacking = self._lacking.of(run.request.adapter) - gone
        away = [*sorted(gone), *sorted(lacking)][:NOT_AT_MAX]
        for one, _ in asks:
            one.request_id, one.waited_ms = run.id, run.waited_ms
            one.phase, one.wait_ms = conductor_pb2.PREFILL, 0
            one.not_at[:] = away
        return asks[self._spaces.first([one for one, _ in asks])] if asks else None

    def _planned(self, run: Run, asked: Asked | None, gone: set[str]) -> Plan | None:
        """None where it is for itself to choose: also where the planner has not heard yet that an
        engine is gone, and for one that ran and would be refused now."""
        if asked is None:
            return None
        try:
            plan = self._planner.schedule(asked.ask)
        except Overloaded:
            if run.failures == 1:
                raise
            return None
        if plan is None:
            return None
        unfit = not Needs.of(run.request).met_at(plan.prefill.address or plan.decode.address)
        if unfit or {plan.prefill.address, plan.decode.address} & gone:
            self._planner.give_up(asked.ask)
            return None
        whole = plan.prefill if _decodes_itself(plan) else plan.decode
        self._known.learn(whole.address)
        return plan

    def _follow(self, run: Run, asked: Asked | None, plan: Plan | None, gone: set[str]) -> None:
        """Once a token came its engine has it, and says itself what comes of it; before that it may
        not have heard of it, and then nobody but this says that it comes no more."""
        came = len(run.outcome.tokens)
        try:
            self._try(run, asked, plan, gone)
        except BaseException:
            if asked is not None and len(run.outcome.tokens) == came:
                self._planner.give_up(asked.ask)
            raise

    def _try(self, run: Run, asked: Asked | None, plan: Plan | None, gone: set[str]) -> None:
        """Raises `Rejected` of the last engine that it was sent to."""
        if plan is None or asked is None:
            self._unplanned(run, gone)
            return
        out, computed = run.outcome, plan.split.computed_tokens
        if not out.expected_seconds:
            out.expected_seconds = 1e-3 * plan.ttft_ms
            out.expected_tokens = max(0, len(run.request.prompt) - computed)
        if _decodes_itself(plan):
            self._generate(run, plan.prefill, run.generate(_turn(plan)))
        elif _lacking(run, asked, plan) + _there_alone(asked, plan) <= self._local_tokens_max:
            decode = self._decoder(run, asked, plan, gone)
            self._generate(run, decode, run.generate(_turn(plan)))
        else:
            self._hand_over(run, asked, plan, gone)

    def _unplanned(self, run: Run, gone: set[str]) -> None:
        """At the next engine that is known. What one has no place for, and so says to be wrong, a
        few others are asked as well: no conductor says which of them are larger."""
        needs, lacking = Needs.of(run.request), self._lacking.of(run.request.adapter)
        refused: set[str] = set()
        why: Invalid | None = None
        while len(refused) < TRIES_MAX:
            try:
                address = self._known.next(gone | refused, needs, lacking)
            except Unavailable:
                if why is None:
                    raise
                break
            try:
                self._generate(run, Place(address=address), run.generate())
                return
            except Invalid as error:
                why = error
                refused.add(address)
        assert why is not None, "it ran, or was refused"
        raise why

    def _hand_over(self, run: Run, asked: Asked, plan: Plan, gone: set[str]) -> None:
        run.outcome.engines.append(plan.prefill.address)
        wanted = run.prefill(_turn(plan))
        prefill = self._engines.prefill(plan.prefill, wanted, run, 1e-3 * plan.wait_ms)
        # Only now is it known that somebody computes it, so that whoever decodes may count on it.
        try:
            decode = self._decoder(run, asked, plan, gone)
            to_decode = run.generate()
            if decode.address == plan.prefill.address:
                prefill.end(DEADLINE_SECONDS)  # it has what it published, by its blocks' names
                if prefill.hand_off is not None:
                    to_decode.hand_off.SetInParent()  # and looked the prompt up, for both
            elif prefill.hand_off is not None:
                to_decode.hand_off.CopyFrom(prefill.hand_off)
            self._generate(run, decode, to_decode)
        except BaseException:
            # It is to stop, if it has not computed all: nobody follows it. The answer may be whole
            # all the same, for a caller that has enough.
            _count_found(run.outcome, prefill.end(0.0))
            raise
        _count_found(run.outcome, prefill.end())

    def _decoder(self, run: Run, asked: Asked, plan: Plan, gone: set[str]) -> Place:
        """Who decodes it; waits in line for room, for as long as it may be of use. Raises
        `Overloaded`, of one that did not run yet. It counts there from now on."""
        ask = asked.ask
        ask.phase, ask.wait_ms = conductor_pb2.DECODE, LINE_MS
        came = time.monotonic()  # in this line: it may have run for long
        while True:
            run.caller.check()
            ask.waited_ms, since = run.waited_ms, time.monotonic()
            try:
                placed = self._planner.schedule(ask)
                break
            except Overloaded as full:
                now = time.monotonic()
                if isinstance(full, TooLate) or now - came > DEADLINE_SECONDS:
                    if run.outcome.tries == 1:
                        raise
                    placed = None  # it ran, and is not failed by those that are full
                    break
                # From when it asked: one that has waited in line does not stay away from it.
                pause = max(PAUSE_SECONDS_MIN, 1e-3 * full.retry_after_ms)
                run.caller.pause(max(0.0, since + pause - now))
        if placed is None or placed.decode.address in gone | {""}:
            return plan.decode
        return placed.decode

    def _generate(self, run: Run, place: Place, wanted: engine_pb2.GenerateRequest) -> None:
        run.outcome.begin_at(place.address)
        self._engines.generate(place, wanted, run)


def _decodes_itself(plan: Plan) -> bool:
    """Whether who is to prefill it is sent all of it: nobody else is there that could follow. Of
    servers nobody could who is not told at which node it is stored."""
    prefill, decode = plan.prefill.address, plan.decode.address
    if speaks_http(prefill):
        follows = speaks_http(decode) and bool(plan.prefill.node_id)
    else:
        follows = not speaks_http(decode)
    follows &= not (speaks_sglang(prefill) or speaks_sglang(decode))
    return not decode or prefill == decode or not follows


def _lacking(run: Run, asked: Asked, plan: Plan) -> int:
    """Tokens that whoever is to prefill it would have to compute. The plan's are more where whoever
    decodes cannot be handed any of it: to prefill it elsewhere is no help then."""
    split = plan.split
    found = split.there_blocks + split.read_blocks + split.fetched_blocks
    found += split.coming_blocks + split.own_blocks
    left = len(run.request.prompt) - found * asked.block_tokens
    return min(split.computed_tokens, max(1, left))


def _there_alone(asked: Asked, plan: Plan) -> int:
    """Tokens that only the engine that is to prefill it has, or is computing."""
    split = plan.split
    return int(split.coming_blocks + split.own_blocks - split.shared_blocks) * asked.block_tokens


def _count_found(out: Outcome, done: engine_pb2.PrefillReply.Done | None) -> None:
    """Of what whoever decodes has loaded that was found which the prefill found: the rest was
    prefilled for this request. Where that is not heard of nobody knows."""
    if done is None:
        out.untold = True
        return
    loaded = out.pool_tokens + out.hand_off_tokens
    out.pool_tokens = min(loaded, done.reused_tokens)
    out.hand_off_tokens = loaded - out.pool_tokens
    if done.reused_tokens <= loaded:  # else whoever decodes lacks some of it, and says why
        out.miss = done.miss


def _turn(plan: Plan) -> engine_pb2.Turn:
    return engine_pb2.Turn(
        priority_ms=plan.priority_ms, aging=plan.aging, drop_after_ms=plan.drop_after_ms
    )
