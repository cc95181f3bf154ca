"""Decides where requests run, over what is known of engines, nodes and what is in flight.

Pure: it is told the time, waits for nothing and sends nothing. A decision that stands is counted
at once as that engine's load, and so is known to the next; a refusal changes nothing. A request
that is asked for anew is not any more where it was sent before, whatever the answer.

A request is decided among the engines of its own crew (`.crews`). Which nodes may be named is
looked at every `LOOK_SECONDS` and whenever a node's number changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kvstore.conductor.crews import Crews, Whose
from kvstore.conductor.decided import Decided
from kvstore.conductor.decision import (
    Ask,
    Decision,
    Rows,
    no_room,
    no_room_in_time,
    nobody_decodes,
    nobody_is_left,
    nobody_prefills,
    room_too_late,
    too_late,
)
from kvstore.conductor.engines import LATENCY_SECONDS, Crew, Engine
from kvstore.conductor.in_flight import InFlight
from kvstore.conductor.roles import Advice
from kvstore.conductor.room import Parked
from kvstore.conductor.table import Table
from kvstore.core.fingerprints import Prints
from kvstore.errors import Overloaded, TooLate
from kvstore.kernels import decision as loops
from kvstore.kernels import fairness
from kvstore.kernels.expected import marked
from kvstore.kernels.fleet import NONE
from kvstore.kernels.prefill_price import (
    BLOCKS,
    FETCHED,
    FIRST_TOKEN,
    HAND,
    PRICED,
    READ,
    READY,
    SOURCE,
    WORK,
)
from kvstore.kernels.rules import OURS, Rules
from kvstore.limits import (
    DECISIONS_KEPT,
    TPOT_MS_DEFAULT,
    TTFT_MS_DEFAULT,
)

LOOK_SECONDS = 0.1
_TRIES = 16  # at a row that is somebody's
RULES = OURS._replace(
    ttft=1e-3 * TTFT_MS_DEFAULT, tpot=1e-3 * TPOT_MS_DEFAULT, latency=LATENCY_SECONDS
)


class Scheduler(Crews):
    """`named` says which nodes of the table may be named now, and `coming` which others are there:
    what they list is not known yet."""

    def __init__(
        self,
        table: Table,
        named: Callable[[], Iterable[str]],
        dice: random.Random,
        rules: Rules = RULES,
        coming: Callable[[], Iterable[str]] = lambda: (),
    ) -> None:
        self._table, self._named, self._coming = table, named, coming
        self._dice, self._rules = dice, rules
        self._row = np.array(rules)  # the same: to make it takes a good part of a choice's time
        super().__init__(table, dice.getrandbits(63) | 1)
        self._seen, self._seen_version = float("-inf"), -1
        self._decided = Decided(DECISIONS_KEPT)

    def sweep(self, now: float) -> list[str]:
        """Drop what is over: engines that were not heard of, whose ids come back, and requests."""
        silent = self.leave_silent(now)
        for whose, in_flight in self._in_flight.items():
            crew = self._crews[whose]
            crew.look(self._rules, now)
            in_flight.expire(now)
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
            size = ask.tokens, ask.whole, crew.answers.of(ask.max_new_tokens)
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

    def found(self, whose: Whose, engine: Engine, prints: Prints, now: float) -> int:
        """Leading blocks of a prompt that an engine need not compute, as far as this is known.
        Engines say that one has come before they know what they will find of it."""
        if not len(prints):
            return 0
        crew, _ = self.crew(whose)
        self._look(now)
        mine, long = self._own.leading(prints)
        most = int(long[crew.of_holder[mine] == engine.number].max(initial=0))
        if not crew.fleet.hosts[engine.host]["away"]:
            holders, lengths, _ = self._table.leading(prints)
            most = max(most, int(lengths[self._hosts.of_holder[holders] >= 0].max(initial=0)))
        return most

    def step_out(self, whose: Whose, parked: Parked) -> None:
        """Its caller waits no more, whether it was served or not."""
        if whose in self._in_flight:
            self._in_flight[whose].room.step_out(parked)

    def serve(self, whose: Whose, engine: Engine, now: float) -> None:
        """What an engine decodes has changed: those that wait are given the room that it has."""
        in_flight = self._in_flight[whose]
        if len(in_flight.room):
            in_flight.serve(engine, self._rules, now)

    def consider(self, whose: Whose, ask: Ask, now: float, whole: bool = True) -> Decision:
        """What would be decided; with `whole` over every engine. Raises `Unavailable`."""
        crew, in_flight = self.crew(whose)
        self._look(now)
        crew.fit_hosts(self._hosts.count)
        wanted = float(ask.ttft or self._rules.ttft)
        rules = self._rules_for(ask, crew, in_flight)
        # Whole numbers would be another type, for which all is compiled anew.
        tokens, block, waited = map(float, (ask.tokens, crew.block_tokens, ask.waited))
        holders, lengths, in_dram = self._table.leading(ask.prints)
        mine, long = self._own.leading(ask.prints)
        best, owns = np.empty(loops.BEST, np.int64), np.empty(loops.BEST, np.int32)
        rows = np.empty((loops.BEST, PRICED))
        first = self._any_row(crew)

        def choose(spare: float) -> Any:
            return loops.choose(
                *crew.fleet, *crew.found, *in_flight.expected, marked(ask.prints),
                holders, lengths, in_dram, self._hosts.of_holder, mine, long, crew.of_holder,
                crew.own, crew.priced, best, rows, owns, in_flight.room.demand,
                self._row_of(rules), float(now), tokens, float(ask.max_new_tokens), block,
                float(crew.token_bytes), waited, first,
                whole or len(crew.by_id) <= loops.WHOLE,
                crew.answers.tokens, crew.answers.of(ask.max_new_tokens),
                in_flight.crowd.presses(rules), crew.busy, spare,
            )  # fmt: skip

        with crew.without(ask.not_at) if ask.not_at else nullcontext():
            chosen, way, room, decodes, step = choose(max(0.0, wanted - rules.ttft))
            tried = chosen == NONE and best[0] != NONE and not whole and crew.may_try(now)
            if tried:
                chosen, way, room, decodes, step = choose(np.inf)
        numbers = best.tolist()
        considered = tuple([one for at in numbers if at >= 0 and (one := crew.rows[at])])
        rows, named = rows[: len(considered)], tuple(owns[: len(considered)].tolist())
        names = self._hosts.names
        of = (ask.request, ask.tokens, len(ask.prints), ask.waited, considered, rows, named, names)
        if crew.decoders and ask.whole > crew.largest_decoded.now:
            return Decision(*of, refusal=nobody_decodes(ask, crew.largest_decoded, now))
        if (
            ask.not_at
            and ask.whole <= crew.largest_prefilled.now
            and (not considered or (crew.decoders and chosen != NONE and decodes == NONE))
        ):
            return Decision(*of, refusal=nobody_is_left())
        if not considered:
            return Decision(*of, refusal=nobody_prefills(ask, crew.largest_prefilled, now))
        if chosen == NONE:
            crowded = wanted * self._patience(in_flight)
            prefill = int(np.count_nonzero(crew.fleet.engines["prefills"]))
            refusal = too_late(ask, considered, rows, rules, wanted, crowded, prefill)
            return Decision(*of, ttft=wanted, refusal=refusal)
        if rules.gated and room > rules.forecast * rules.ttft > 0:
            refusal = no_room_in_time(ask, room, rules)
            return Decision(*of, ttft=wanted, refusal=refusal)
        if tried:
            crew.tried(now)
        prefill, row = crew.rows[chosen], tuple(crew.priced[chosen].tolist())
        assert prefill is not None, "an engine that is gone was chosen"
        decode = None if decodes == NONE else crew.rows[decodes]
        own = min(int(crew.own[chosen]), int(row[BLOCKS]))
        there = max(own, min(int(crew.found.dram[prefill.host]), int(row[BLOCKS]))) - own
        source = names[int(row[SOURCE])] if row[FETCHED] else ""
        return Decision(
            *of, prefill, row, own, there, source, way, decode, step, wanted,
            again=crew.computes_again(prefill, decode),
            # Of one length for all: else who may wait for longer would go before who may not.
            ahead=self._rules.ttft * in_flight.clients.lacks(ask.client) if rules.fair else 0.0,
        )  # fmt: skip

    def consider_place(self, whose: Whose, ask: Ask, now: float) -> Decision:
        """Who would decode a request. Raises `Unavailable`."""
        crew, in_flight = self.crew(whose)
        self._look(now)
        crew.fit_hosts(self._hosts.count)
        rules = self._rules_for(ask, crew, in_flight)
        before = self.decided(whose, ask.request)
        sent = None if before is None else before.prefill
        prefilled = sent.number if sent is not None and self.has(whose, sent) else NONE
        target = float(ask.ttft or self._rules.ttft)  # who was let in may use all of it
        engine, fits, step, size = self._decoder(crew, ask, rules.tpot, prefilled, now)
        of = (ask.request, ask.tokens, len(ask.prints), ask.waited)
        if engine is None:
            none = nobody_decodes(ask, crew.largest_decoded, now)
            if rules.gated and ask.waited >= target and isinstance(none, Overloaded):
                none = TooLate(str(none), none.retry_after_ms)
            return Decision(*of, refusal=none)
        if fits:
            return Decision(*of, decode=engine, step=step, size=size)
        alike = in_flight.crowd.presses(rules)
        room = in_flight.room.seconds(ask.request, ask.tokens, ask.whole, rules, alike)
        # Its prefill may be given up yet; once that is done it is worth waiting as long as it may.
        least = room if ask.request in in_flight.prompts else 0.0
        refusal: Overloaded = no_room(ask, engine, step, rules, room)
        if rules.gated and ask.waited + least >= target:
            refusal = room_too_late(ask, least, target)
        return Decision(*of, decode=engine, step=step, size=size, refusal=refusal)

    def decided(self, whose: Whose, request: str) -> Decision | None:
        """What was lately decided of a request."""
        return self._decided.get(whose, request)

    def last_decided(self, tenant: str, request: str) -> Decision | None:
        """The same, of the last that a tenant called so."""
        return self._decided.latest(tenant, request)

    def priority(self, decision: Decision) -> tuple[float, float]:
        """Seconds that a prompt goes to the line with, and what a second of waiting makes up."""
        assert decision.row is not None
        least = float(loops.rank_of(decision.row[WORK]))
        waited = decision.waited + decision.ahead
        return least - self._rules.aging * waited, self._rules.aging

    def balance(self, whose: Whose, now: float) -> Advice:
        """How engines are best split, and who is to switch. Raises `Unavailable`."""
        return self.crew(whose)[0].advise(self._rules, now)

    def _rules_for(self, ask: Ask, crew: Crew, in_flight: InFlight) -> Rules:
        """The fleet's with this request's targets, the first token's sooner in a crowd, and for a
        client that has had more than its share."""
        rules = self._rules
        ttft = float(ask.ttft or rules.ttft)
        tpot = crew.reachable(ask.tpot or rules.tpot, rules.pace)
        patience = self._patience(in_flight)
        if rules.fair:
            patience = in_flight.clients.patience(ask.client, patience)
        ttft *= patience
        if (ttft, tpot) == (rules.ttft, rules.tpot):
            return rules
        return rules._replace(ttft=ttft, tpot=tpot)

    def _row_of(self, rules: Rules) -> Rows:
        return self._row if rules is self._rules else np.array(rules)

    def _patience(self, in_flight: InFlight) -> float:
        """The share of a target that first tokens may take now."""
        return in_flight.crowd.patience if self._rules.hurry else 1.0

    def _decoder(
        self, crew: Crew, ask: Ask, tpot: float, prefilled: int, now: float
    ) -> tuple[Engine | None, bool, float, float]:
        """`prefilled` is the row of the engine that did, or does, so."""
        tpot, first = self._rules.pace * tpot, self._any_row(crew)
        grows = crew.answers.of(ask.max_new_tokens)
        tokens, block, token = map(float, (ask.tokens, crew.block_tokens, crew.token_bytes))
        chosen, fits, step, size = loops.decoder(
            *crew.fleet, *crew.found, *self._table.leading(ask.prints), self._hosts.of_holder,
            tokens, float(ask.whole), block, token, grows, tpot, first, prefilled, now,
        )  # fmt: skip
        return (None if chosen == NONE else crew.rows[chosen]), fits, step, size

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

    def _any_row(self, crew: Crew) -> int:
        """Of an engine, by chance: a choice begins to look there, so of equals each is the first as
        often. Rows of nobody would favour whoever comes after them."""
        for _ in range(_TRIES):
            number = int(self._dice.random() * len(crew.rows))
            if crew.rows[number] is not None:
                break
        return number

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

    def _look(self, now: float) -> None:
        """Look at which nodes may be named, and at what came to them, if that is due."""
        if now >= self._seen + LOOK_SECONDS or self._seen_version != self._table.version:
            self._seen, self._seen_version = now, self._table.version
            self._hosts.see(self._named())
            given, held = self._table.given()
            some = np.flatnonzero(self._hosts.of_holder >= 0)
            coming = self._hosts.numbers(self._coming())
            for crew in self._crews.values():
                crew.fit_hosts(self._hosts.count)
                crew.see(self._hosts.of_holder[some], coming)
                crew.place(self._hosts.of_holder[some], given[some], held[some])
