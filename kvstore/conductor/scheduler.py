"""Decides where requests run, by what is considered best (`.choices`).

Pure: it is told the time, waits for nothing and sends nothing. A decision that stands is counted
at once as that engine's load, and so is known to the next; a refusal changes nothing. A request
that is asked for anew is not any more where it was sent before, whatever the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from kvstore.conductor.choices import Choices
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.engines import Engine
from kvstore.conductor.roles import Advice
from kvstore.conductor.room import Parked
from kvstore.errors import Overloaded, TooLate
from kvstore.kernels import decision as loops
from kvstore.kernels import fairness
from kvstore.kernels.prefill_price import BLOCKS, FETCHED, FIRST_TOKEN, HAND, READ, READY, WORK


class Scheduler(Choices):
    """Its requests are carried out: whoever asks is sent where it says."""

    def sweep(self, now: float) -> list[str]:
        """Drop what is over: engines that were not heard of, whose ids come back, and requests."""
        silent = self.leave_silent(now)
        for whose, in_flight in self._in_flight.items():
            crew = self._crews[whose]
            crew.look(self._rules, now)
            in_flight.expire(now)
            in_flight.crowd.look(now)
            for engine in crew.by_id.values() if len(in_flight.room) else ():
                in_flight.serve(engine, self._rules, now)
        self._own.sweep()
        return silent

    def schedule(self, whose: Whose, ask: Ask, now: float) -> Decision:
        """Who prefills a prompt, and who would decode it. Raises what refuses it."""
        crew, in_flight = self.crew(whose)
        in_flight.drop(ask.request, now)  # where it was sent before, it is not to go,
        in_flight.forgive(ask.request)  # nor where it was to be decoded
        decision = self.consider(whose, ask, now, whole=False)
        before = self.decided(whose, ask.request)
        decision.had = before is not None and before.had
        if before is None:
            crew.roles.asked(ask.tokens, crew.block_tokens, decision.priced, now)
        # For want of time or room: what nobody there is large enough for makes no crowd.
        crowded = isinstance(decision.refusal, Overloaded) and decision.ttft > 0.0
        if crowded and not in_flight.refused.was(ask, now):
            in_flight.refused.add(ask, now)
            if before is None or before.refusal is None:
                in_flight.crowd.lost(ask.request, now)  # once, however often it comes again
        service = float(ask.tokens) + fairness.OUTPUT_WEIGHT * crew.answers.of(ask.max_new_tokens)
        if before is None:
            in_flight.clients.asked(ask.client, service, now)
        self._decided.keep(whose, decision)
        decision.or_raise()
        try:
            self._carry_out(whose, ask, decision, now)
        except Overloaded as error:  # no more are kept track of: it is sent to nobody
            refusal = Overloaded(str(error), error.retry_after_ms)
            self._decided.keep(whose, replace(decision, prefill=None, row=None, refusal=refusal))
            raise
        if not decision.had:
            in_flight.clients.had(ask.client, service)
            decision.had = True
        return decision

    def place(
        self, whose: Whose, ask: Ask, now: float, served: Callable[[Decision], None] | None = None
    ) -> Decision | Parked:
        """Who decodes a request whose prompt is prefilled, or is about to be. Where nobody has room
        and there is time left it waits in line, if `served` is to be told. Raises what refuses
        it."""
        crew, in_flight = self.crew(whose)
        in_flight.forgive(ask.request)
        decision = self.consider_place(whose, ask, now)
        if isinstance(decision.refusal, TooLate):
            in_flight.room_came_too_late(ask.request, now)
        elif served is not None and isinstance(decision.refusal, Overloaded):
            pace = self._rules.pace
            tpot = pace * crew.reachable(ask.tpot or self._rules.tpot, pace)
            told = partial(self._served, whose, decision, served)
            size = ask.tokens, decision.whole, crew.answers.of(ask.max_new_tokens)
            parked = Parked(ask.request, *size, now - ask.waited, tpot, told)
            in_flight.wait(parked, now)
            return parked
        elif isinstance(decision.refusal, Overloaded):
            with suppress(Overloaded):  # it is refused as it is
                in_flight.wants_room(ask.request, ask.tokens, now)
        decision.or_raise()
        assert decision.decode is not None, "nobody refused, and nobody is to decode"
        in_flight.owe(ask.request, decision.decode, ask.tokens, now)
        self._hand_over(whose, decision, decision.decode, now)
        return decision

    def step_out(self, whose: Whose, parked: Parked) -> None:
        """Its caller waits no more, whether it was served or not."""
        if whose in self._in_flight:
            self._in_flight[whose].room.step_out(parked)

    def serve(self, whose: Whose, engine: Engine, now: float) -> None:
        """What an engine decodes has changed: those that wait are given the room that it has."""
        in_flight = self._in_flight[whose]
        if len(in_flight.room):
            in_flight.serve(engine, self._rules, now)

    def priority(self, decision: Decision) -> tuple[float, float]:
        """Seconds that a prompt goes to the line with, and what a second of waiting makes up."""
        assert decision.row is not None
        least = float(loops.rank_of(decision.row[WORK]))
        waited = decision.waited + decision.ahead
        return least - self._rules.aging * waited, self._rules.aging

    def balance(self, whose: Whose, now: float) -> Advice:
        """How engines are best split, and who is to switch. Raises `Unavailable`."""
        return self.crew(whose)[0].advise(self._rules, now)

    def _hand_over(self, whose: Whose, decision: Decision, engine: Engine, now: float) -> None:
        """Count what KV an engine that is to decode does not have as on its way there, and no more
        as what is yet to leave."""
        before, crew = self.decided(whose, decision.request), self._crews[whose]
        sent = None if before is None else before.prefill
        if sent is not None and self.has(whose, sent):
            self._in_flight[whose].handed(decision.request)
            loops.move(crew.fleet.hosts, sent.host, engine.host, decision.size, now)

    def _served(
        self, whose: Whose, parked: Decision, told: Callable[[Decision], None], engine: Engine,
        now: float,
    ) -> None:  # fmt: skip
        """One that waited for room is counted at an engine that has some."""
        assert engine.decode is not None, "it does not decode"
        batch, context = engine.batch + engine.owed, engine.context_tokens + engine.owed_tokens
        step = engine.decode.cost.seconds(batch, context)
        self._hand_over(whose, parked, engine, now)
        told(replace(parked, decode=engine, step=step, refusal=None))

    def _carry_out(self, whose: Whose, ask: Ask, decision: Decision, now: float) -> None:
        """Count it as load of its engine, and of the links and disks that bring its blocks."""
        engine, row = decision.prefill, decision.row
        assert engine is not None and row is not None
        crew, in_flight = self._crews[whose], self._in_flight[whose]
        crew.answers.wanted(ask.max_new_tokens)
        takes, reused = float(row[FIRST_TOKEN]), float(row[BLOCKS]) * crew.block_tokens
        new = max(1.0, ask.tokens - reused)
        brought = row[FETCHED] or row[READ]
        in_flight.send(
            ask.request, engine, float(row[WORK]), ask.prints, now, takes, ask.tokens,
            None if brought else (new, ask.tokens - new), float(row[HAND]),
        )  # fmt: skip
        if row[FETCHED]:
            source = self._hosts.number(decision.source)
            size = float(row[FETCHED]) * crew.block_tokens * crew.token_bytes
            loops.move(crew.fleet.hosts, source, engine.host, size, now)
        if row[READ]:
            crew.fleet.hosts["reads"][engine.host] = now + row[READY]
