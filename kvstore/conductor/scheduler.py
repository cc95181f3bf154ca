"""Decides where requests run, over what is known of engines, nodes and what is in flight.

Pure: it is told the time, waits for nothing and sends nothing. A decision that stands is counted
at once as that engine's load, and so is known to the next; a refusal changes nothing. A request
that is asked for anew is not any more where it was sent before, whatever the answer.

Engines are held by tenant, namespace and group, and a request is decided among its own. Which nodes
may be named is looked at every `LOOK_SECONDS` and whenever a node's number changes.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.engines import LATENCY_SECONDS, Crew, Engine, Facts
from kvstore.conductor.hosts import Hosts
from kvstore.conductor.in_flight import Allowance, InFlight
from kvstore.conductor.table import Table
from kvstore.core.fingerprints import Prints
from kvstore.core.turns import Places
from kvstore.errors import Invalid, KVStoreError, Overloaded, Unavailable
from kvstore.kernels import decision as loops
from kvstore.kernels.prefill_choice import (
    BLOCKS,
    FETCHED,
    FIRST_TOKEN,
    NONE,
    READ,
    READY,
    WAIT,
    WORK,
    Asked,
    Rules,
)
from kvstore.limits import (
    CREWS_MAX,
    DECISIONS_KEPT,
    EXPECTED_BLOCKS_MAX,
    IN_FLIGHT_MAX,
    REPORT_SILENCE_SECONDS,
    REPORTS_MAX,
)

LOOK_SECONDS = 0.1
RESERVE_TOKENS = 512.0  # that a request may come to decode: room for it is wanted beside its KV
RETRY_MS_MIN, RETRY_MS_MAX = 20, 10_000
_NOBODY_MS = 1_000  # until there may be an engine
_TRIES = 16  # at a row that is somebody's
RULES = Rules(
    ttft=30.0,  # as Mooncake's published targets are
    tpot=0.1,
    gated=1.0,
    shortest_first=1.0,
    aging=0.1,
    charge=1.0,
    margin=1.0,
    fetch=1.0,
    foresight=1.0,
    latency=LATENCY_SECONDS,
)

Whose: TypeAlias = tuple[str, bytes, int]  # tenant, namespace, group


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is to run somewhere."""

    request: str
    prints: Prints  # of the leading blocks of its prompt
    tokens: int
    waited: float  # seconds
    ttft: float = 0.0  # its own targets, in seconds; 0: the fleet's
    tpot: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, and over what. `rows` are of `prefill_choice.priced`."""

    ask: Ask
    considered: tuple[Engine, ...]  # the cheapest first
    rows: NDArray[np.float64]  # of those
    prefill: Engine | None = None
    row: NDArray[np.float64] | None = None  # of the engine that prefills
    there: int = 0  # leading blocks in its host's DRAM
    source: str = ""  # node that blocks are fetched from
    decode: Engine | None = None
    step: float = 0.0  # seconds of a decode step with it
    ttft: float = 0.0  # the target
    refusal: KVStoreError | None = None


class Scheduler:
    """`named` says which nodes of the table may be named now."""

    def __init__(
        self,
        table: Table,
        named: Callable[[], Iterable[str]],
        dice: random.Random,
        rules: Rules = RULES,
    ) -> None:
        self._table, self._named, self._dice, self._rules = table, named, dice, rules
        self._crews: dict[Whose, Crew] = {}
        self._in_flight: dict[Whose, InFlight] = {}
        self._hosts = Hosts(table, self._forget_host)
        self._seen, self._seen_version = float("-inf"), -1
        self._places = Places(CREWS_MAX)
        self._allowed = Allowance(IN_FLIGHT_MAX), Allowance(EXPECTED_BLOCKS_MAX)
        self._decisions: OrderedDict[tuple[str, str], Decision] = OrderedDict()
        self._engines = 0

    def crew(self, whose: Whose) -> tuple[Crew, InFlight]:
        """Raises `Unavailable` where no engine reports."""
        crew = self._crews.get(whose)
        if crew is None:
            text = "no engine of yours reports that it serves this namespace and group"
            raise Unavailable(text, _NOBODY_MS)
        return crew, self._in_flight[whose]

    def enter(self, whose: Whose, facts: Facts, now: float) -> Engine:
        """An engine begins to report; one under its id is no more. Raises `Invalid` where it is
        of another kind than the others there, and `Overloaded`."""
        crew = self._crews.get(whose)
        if crew is not None:
            before = crew.by_id.get(facts.engine_id)
            _check_same(crew, facts, alone=len(crew.by_id) == (before is not None))
            if before is not None:
                self.leave(whose, before, now)
                crew = self._crews.get(whose)
        if self._engines >= REPORTS_MAX:
            raise Overloaded(f"{self._engines} engines report, all that may", _NOBODY_MS)
        if crew is None:
            if not self._places.try_take(whose[0]):
                held = self._places.held(whose[0])
                text = f"{held} kinds of engines of {whose[0]} report: no tenant takes all places"
                raise Overloaded(text, _NOBODY_MS)
            crew = self._crews[whose] = Crew(facts, self._hosts.count)
            self._in_flight[whose] = InFlight(crew, *self._allowed)
        self._engines += 1
        return crew.enter(facts, self._hosts.use(facts.node_id), now)

    def leave(self, whose: Whose, engine: Engine, now: float) -> None:
        """It is sent nothing any more; what was in flight there counts no more."""
        if not self.has(whose, engine):
            return
        crew, in_flight = self._crews[whose], self._in_flight[whose]
        in_flight.leave(engine, now)
        crew.leave(engine)
        self._engines -= 1
        if not crew.by_id:
            del self._crews[whose], self._in_flight[whose]
            self._places.give_back(whose[0])
        self._hosts.release(engine.facts.node_id)

    def has(self, whose: Whose, engine: Engine) -> bool:
        """Whether it may be sent requests."""
        crew = self._crews.get(whose)
        return crew is not None and crew.by_id.get(engine.facts.engine_id) is engine

    def sweep(self, now: float) -> list[str]:
        """Drop what is over: engines that were not heard of, whose ids come back, and requests."""
        silent = [
            (whose, engine)
            for whose, crew in self._crews.items()
            for engine in crew.by_id.values()
            if engine.heard <= now - REPORT_SILENCE_SECONDS
        ]
        for whose, engine in silent:
            self.leave(whose, engine, now)
        for in_flight in self._in_flight.values():
            in_flight.expire(now)
        return [engine.facts.engine_id for _, engine in silent]

    def schedule(self, whose: Whose, ask: Ask, now: float) -> Decision:
        """Who prefills a prompt, and who would decode it. Raises what refuses it."""
        _, in_flight = self.crew(whose)
        if ask.request in in_flight.prompts:  # it was sent somewhere, and is not to go there
            in_flight.drop(ask.request, now)
        decision = self.consider(whose, ask, now, whole=False)
        self._keep(whose[0], decision)
        if decision.refusal is not None:
            raise decision.refusal
        self._carry_out(whose, decision, now)
        return decision

    def place(self, whose: Whose, ask: Ask, now: float) -> Decision:
        """Who decodes a request whose prompt is prefilled. Raises what refuses it."""
        crew, in_flight = self.crew(whose)
        in_flight.forgive(ask.request)  # where it was to be decoded before
        tpot = ask.tpot or self._rules.tpot
        engine, fits, step = self._decoder(crew, ask, tpot)
        if engine is None:
            raise Unavailable("no engine of yours decodes this namespace and group", _NOBODY_MS)
        if not fits:
            text = (
                f"no engine has room for {ask.tokens} tokens more and keeps {1e3 * tpot:.0f} ms a "
                f"token: {engine.facts.engine_id}, the best, would take {1e3 * step:.0f} ms"
            )
            raise Overloaded(text, RETRY_MS_MIN)
        in_flight.owe(ask.request, engine, ask.tokens, now)
        return Decision(ask, (), np.zeros((0, 0)), decode=engine, step=step)

    def consider(self, whose: Whose, ask: Ask, now: float, whole: bool = True) -> Decision:
        """What would be decided; with `whole` over every engine. Raises `Unavailable`."""
        crew, in_flight = self.crew(whose)
        self._look(now)
        crew.fit_hosts(self._hosts.count)
        rules = self._rules
        if ask.ttft:
            rules = rules._replace(ttft=float(ask.ttft))
        # Whole numbers would be another type, for which all is compiled anew.
        tokens, block, waited = map(float, (ask.tokens, crew.block_tokens, ask.waited))
        asked = Asked(now, tokens, block, float(crew.token_bytes), waited, 1.0)
        holders, lengths, in_dram = self._table.leading(ask.prints)
        best = np.empty(loops.BEST, np.int64)
        chosen, source = loops.choose(
            crew.fleet, crew.found, holders, lengths, in_dram, self._hosts.of_holder,
            in_flight.expected, ask.prints, asked, rules, self._any_row(crew),
            whole or len(crew.by_id) <= loops.WHOLE, crew.priced, best,
        )  # fmt: skip
        considered = tuple([row for one in best.tolist() if one >= 0 and (row := crew.rows[one])])
        rows = crew.priced[best[: len(considered)]]
        if chosen == NONE:
            refusal = _refusal(ask, considered, rows, rules, len(crew.by_id))
            return Decision(ask, considered, rows, ttft=rules.ttft, refusal=refusal)
        prefill, row = crew.rows[chosen], crew.priced[chosen].copy()
        assert prefill is not None, "an engine that is gone was chosen"
        decode, _, step = self._decoder(crew, ask, ask.tpot or rules.tpot)
        there = min(int(crew.found.dram[prefill.host]), int(row[BLOCKS]))
        source_name = self._hosts.name(source) if row[FETCHED] else ""
        return Decision(
            ask, considered, rows, prefill, row, there, source_name, decode, step, rules.ttft
        )

    def decided(self, tenant: str, request: str) -> Decision | None:
        """What was lately decided of a request."""
        return self._decisions.get((tenant, request))

    def priority(self, decision: Decision) -> tuple[float, float]:
        """Seconds that a prompt goes to the line with, and what a second of waiting makes up."""
        assert decision.row is not None
        least = float(loops.rank_of(decision.row[WORK]))
        return least - self._rules.aging * decision.ask.waited, self._rules.aging

    def check(self) -> None:
        self._hosts.check()
        for whose, crew in self._crews.items():
            crew.check()
            self._in_flight[whose].check()
        assert self._engines == sum(len(crew.by_id) for crew in self._crews.values())
        assert self._crews.keys() == self._in_flight.keys()
        self._places.check()
        for number, allowed in enumerate(self._allowed):
            held = sum(one.held[number] for one in self._in_flight.values())
            assert held == allowed.taken, "something in flight is nobody's"

    def _decoder(self, crew: Crew, ask: Ask, tpot: float) -> tuple[Engine | None, bool, float]:
        first = self._any_row(crew)
        chosen, fits, step = loops.decoder(
            crew.fleet, float(ask.tokens), RESERVE_TOKENS, float(tpot), first
        )
        return (None if chosen == NONE else crew.rows[chosen]), fits, step

    def _any_row(self, crew: Crew) -> int:
        """Of an engine, by chance: a choice begins to look there, so of equals each is the first as
        often. Rows of nobody would favour whoever comes after them."""
        for _ in range(_TRIES):
            number = self._dice.randrange(len(crew.rows))
            if crew.rows[number] is not None:
                break
        return number

    def _carry_out(self, whose: Whose, decision: Decision, now: float) -> None:
        """Count it as load of its engine, and of the links and disks that bring its blocks."""
        engine, row, ask = decision.prefill, decision.row, decision.ask
        assert engine is not None and row is not None
        crew, in_flight = self._crews[whose], self._in_flight[whose]
        takes = float(row[FIRST_TOKEN])
        in_flight.send(ask.request, engine, float(row[WORK]), ask.prints, now, takes)
        if row[FETCHED]:
            crew.fleet.hosts["arrives"][engine.host] = now + row[READY]
            source = self._hosts.number(decision.source)
            crew.fleet.hosts["leaves"][source] = now + row[READY]
        if row[READ]:
            crew.fleet.hosts["reads"][engine.host] = now + row[READY]

    def _keep(self, tenant: str, decision: Decision) -> None:
        """Remember it for a while."""
        key = (tenant, decision.ask.request)
        self._decisions[key] = decision
        self._decisions.move_to_end(key)
        if len(self._decisions) > DECISIONS_KEPT:
            self._decisions.popitem(last=False)

    def _look(self, now: float) -> None:
        """Look at which nodes may be named, if that is due."""
        if now >= self._seen + LOOK_SECONDS or self._seen_version != self._table.version:
            self._seen, self._seen_version = now, self._table.version
            self._hosts.see(self._named())

    def _forget_host(self, number: int) -> None:
        for crew in self._crews.values():
            crew.forget_host(number)


def _check_same(crew: Crew, facts: Facts, alone: bool) -> None:
    """All engines of a namespace and group have blocks of one kind."""
    for name in ("block_tokens", "token_bytes"):
        mine, theirs = getattr(facts, name), getattr(crew, name)
        if mine != theirs and not alone:
            raise Invalid(f"engine.{name} = {mine}: other engines of this namespace say {theirs}")


def _refusal(
    ask: Ask, considered: tuple[Engine, ...], rows: NDArray[np.float64], rules: Rules, count: int
) -> KVStoreError:
    """Why nobody is to prefill a prompt."""
    if not considered:
        return Unavailable("no engine of yours prefills this namespace and group", _NOBODY_MS)
    begins = np.maximum(rows[:, WAIT], rows[:, READY])
    soonest = int(np.argmin(begins + rows[:, WORK]))
    begin, work = float(begins[soonest]), float(rows[soonest, WORK])
    late = 1e3 * (begin + rules.margin * work - rules.ttft)
    return Overloaded(
        f"its first token would come {ask.waited + begin + work:.3g} s after the request, and "
        f"{rules.ttft:.3g} s are wanted: {considered[soonest].facts.engine_id}, the soonest of "
        f"{count} engines, begins in {begin:.3g} s and takes {work:.3g} s",
        min(max(round(late), RETRY_MS_MIN), RETRY_MS_MAX),
    )
