"""Where requests would run, over what is known of engines, nodes and what is in flight.

Pure: it is told the time, waits for nothing and sends nothing. What is considered is counted
nowhere: see `.scheduler` for that.

A request is considered among the engines of its own crew (`.crews`). Which nodes may be named is
looked at every `LOOK_SECONDS` and whenever a node's number changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
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
from kvstore.conductor.table import Table
from kvstore.core.fingerprints import Prints
from kvstore.errors import Overloaded, TooLate
from kvstore.kernels import decision as loops
from kvstore.kernels.expected import marked
from kvstore.kernels.fleet import NONE
from kvstore.kernels.prefill_price import BLOCKS, FETCHED, PRICED, READ, SOURCE
from kvstore.kernels.rules import OURS, Rules
from kvstore.limits import DECISIONS_KEPT, TPOT_MS_DEFAULT, TTFT_MS_DEFAULT

LOOK_SECONDS = 0.1
_TRIES = 16  # at a row that is somebody's
RULES = OURS._replace(
    ttft=1e-3 * TTFT_MS_DEFAULT, tpot=1e-3 * TPOT_MS_DEFAULT, latency=LATENCY_SECONDS
)


class Choices(Crews):
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

    def consider(self, whose: Whose, ask: Ask, now: float, whole: bool = True) -> Decision:
        """What would be decided; with `whole` over every engine. Raises `Unavailable`."""
        decision = self._prefilled(whose, ask, now, whole)
        if ask.may_be_cut and decision.fits_nowhere:
            decision = self._prefilled(whose, ask.cut, now, whole)
        return decision

    def consider_place(self, whose: Whose, ask: Ask, now: float) -> Decision:
        """Who would decode a request. Raises `Unavailable`."""
        decision = self._placed(whose, ask, now)
        if ask.may_be_cut and decision.fits_nowhere:
            decision = self._placed(whose, ask.cut, now)
        return decision

    def decided(self, whose: Whose, request: str) -> Decision | None:
        """What was lately decided of a request."""
        return self._decided.get(whose, request)

    def last_decided(self, tenant: str, request: str) -> Decision | None:
        """The same, of the last that a tenant called so."""
        return self._decided.latest(tenant, request)

    def _prefilled(self, whose: Whose, ask: Ask, now: float, whole: bool) -> Decision:
        crew, in_flight = self.crew(whose)
        self._look(now)
        crew.fit_hosts(self._hosts.count)
        wanted, most = float(ask.ttft or self._rules.ttft), ask.whole
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
                self._row_of(rules), float(now), tokens, float(most - ask.tokens), block,
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
        if crew.decoders and most > crew.largest_decoded.now:
            return Decision(*of, refusal=nobody_decodes(ask, crew.largest_decoded, now))
        if (
            ask.not_at
            and most <= crew.largest_prefilled.now
            and (not considered or (crew.decoders and chosen != NONE and decodes == NONE))
        ):
            return Decision(*of, refusal=nobody_is_left())
        if not considered:
            return Decision(*of, refusal=nobody_prefills(ask, crew.largest_prefilled, now))
        if chosen == NONE:
            crowded = wanted * self._patience(in_flight)
            prefill = int(np.count_nonzero(crew.fleet.engines["prefills"]))
            refusal = too_late(ask, crew.rows, crew.priced, rules, wanted, crowded, prefill)
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
        brought = int(row[FETCHED]) + int(row[READ])
        elsewhere = 0
        if own or int(row[BLOCKS]) > there + brought:  # that others may not have
            followers = 0 if decode is None or decode is prefill else int(crew.own[decodes])
            elsewhere = max(followers, int(crew.found.local.max()))
        return Decision(
            *of, prefill, row, own, there, source, way, decode, step, wanted,
            again=crew.computes_again(prefill, decode),
            elsewhere=elsewhere,
            # Of one length for all: else who may wait for longer would go before who may not.
            ahead=self._rules.ttft * in_flight.clients.lacks(ask.client) if rules.fair else 0.0,
        )  # fmt: skip

    def _placed(self, whose: Whose, ask: Ask, now: float) -> Decision:
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
            return Decision(*of, whole=ask.whole, refusal=none)
        if fits:
            return Decision(*of, decode=engine, step=step, size=size)
        alike = in_flight.crowd.presses(rules)
        room = in_flight.room.seconds(ask.request, ask.tokens, ask.whole, rules, alike)
        # Its prefill may be given up yet; once that is done it is worth waiting as long as it may.
        least = room if ask.request in in_flight.prompts else 0.0
        refusal: Overloaded = no_room(ask, engine, step, rules, room)
        if rules.gated and ask.waited + least >= target:
            refusal = room_too_late(ask, least, target)
        return Decision(
            *of, decode=engine, step=step, size=size, whole=ask.whole, refusal=refusal
        )  # fmt: skip

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

    def _any_row(self, crew: Crew) -> int:
        """Of an engine, by chance: a choice begins to look there, so of equals each is the first as
        often. Rows of nobody would favour whoever comes after them."""
        for _ in range(_TRIES):
            number = int(self._dice.random() * len(crew.rows))
            if crew.rows[number] is not None:
                break
        return number

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
