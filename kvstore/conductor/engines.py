"""The engines of one tenant that serve one namespace and group, by what they report: a crew.

A row of the fleet is an engine's for as long as it reports, and nobody's after that. What it costs
is learned from its own reports; what links and disks of its host carry, from those of all its crew.
Links are a crew's own: what another tenant says of a node, or sends over its link, is not counted.
Where a host stands is said by the first engine there, and stays so while any of them reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.answers import Answers
from kvstore.conductor.carries import Carries
from kvstore.conductor.facts import Facts, Role
from kvstore.conductor.index import HOLDERS_MAX, Lengths
from kvstore.conductor.kin import SHOWN_SECONDS, Kin
from kvstore.conductor.labels import DOMAIN, RACK, Labels
from kvstore.conductor.largest import Largest
from kvstore.conductor.roles import Advice, Roles, switch_tie
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.fit import Bias, DecodeFit, Errors, PrefillFit
from kvstore.kernels import decision as loops
from kvstore.kernels.fleet import LINK, MARKED, Fleet, Found, empty, nothing
from kvstore.kernels.prefill_price import unpriced
from kvstore.kernels.rules import Rules
from kvstore.limits import ENGINE_ADAPTERS_MAX

SSD_SECONDS = 1 / 2e9  # of a byte, at a node that no engine calls its own
LATENCY_SECONDS = 1e-3  # of a transfer, before any was measured
NO_HOLDER = -1
_ROWS_MIN = 8


@dataclass(slots=True, eq=False)
class Engine:
    """An engine that reports."""

    facts: Facts
    number: int  # its row
    host: int
    heard: float  # when it last said anything; inf: it has, and that waits
    prefill: PrefillFit | None  # None: it does not do so now
    decode: DecodeFit | None
    errors: Errors = field(default_factory=Errors)  # of what was said of first tokens
    bias: Bias = field(default_factory=Bias)  # of its prefills, beside what it says of them
    running: int = 0  # prefills
    together: bool = False  # it has run several at once since it last ran none
    batch: int = 0  # as it said, and beside that what is on its way to it
    context_tokens: int = 0
    owed: int = 0
    owed_tokens: int = 0
    holder: int = NO_HOLDER  # of blocks of its own: see `own.py`
    adapters: dict[str, bytes] = field(default_factory=dict)  # weights by name, the last one last

    def loaded(self, adapter: str, weights: bytes) -> None:
        """It computes under an adapter, or under other weights by that name."""
        self.adapters.pop(adapter, None)
        self.adapters[adapter] = weights
        if len(self.adapters) > ENGINE_ADAPTERS_MAX:
            del self.adapters[next(iter(self.adapters))]


class Crew:
    """Who there is, in rows; `fleet` and the arrays beside it are made anew when it grows."""

    def __init__(self, facts: Facts, hosts: int, now: float) -> None:
        self.block_tokens, self.token_bytes = facts.block_tokens, facts.token_bytes
        self.naming = facts.naming
        self.revision = ""  # of the weights, once an engine says
        self.by_id: dict[str, Engine] = {}
        self.decoders = 0  # of those
        self.largest_prefilled = Largest(attrgetter("prefill"), attrgetter("prefills"), now)
        self.largest_decoded = Largest(attrgetter("decode"), attrgetter("decodes"), now)
        self._least_step = 0.0  # seconds, of one sequence alone
        self.busy = self._looked = 0.0  # share of engines that prefilled lately, by when
        self._tried = now  # one that would be late, as nobody was heard for long
        self.answers = Answers()
        self.rows: list[Engine | None] = []
        self._free: list[int] = []
        self._carries: dict[int, Carries] = {}
        self._away: set[int] = set()  # hosts of its engines whose nodes are gone
        self._labels = Labels()
        self.of_holder = np.full(HOLDERS_MAX, NO_HOLDER, np.int32)  # rows, by their holders
        self._kin = Kin()
        self.own_blocks = 0  # that its engines hold, all together
        self.roles = Roles()
        self.fleet: Fleet = empty(0, 0)
        self._lay_out(self.fleet, _ROWS_MIN, max(hosts, _ROWS_MIN))

    @contextmanager
    def without(self, addresses: Collection[str]) -> Iterator[None]:
        """Inside this the engines at these have room for nothing."""
        rows = [one.number for one in self.by_id.values() if one.facts.address in addresses]
        room = self.fleet.engines["room"]
        kept, room[rows] = room[rows], 0.0
        try:
            yield
        finally:
            room[rows] = kept

    def enter(self, facts: Facts, host: int, now: float) -> Engine:
        """A new engine, under an id that nobody of the crew has."""
        if not self._free:
            self._lay_out(self.fleet, 2 * len(self.rows), len(self.fleet.hosts))
        self.fit_hosts(host + 1)
        self.revision = self.revision or facts.revision
        number = self._free.pop()
        facts = self._of_its_kind(facts)
        prefill, decode = self.roles.enter(facts, now)
        engine = Engine(facts, number, host, now, prefill, decode)
        alone = all(one.host != host for one in self.by_id.values())
        self.rows[number] = self.by_id[facts.engine_id] = engine
        row = self.fleet.engines[number]
        row["prefills"], row["decodes"] = facts.prefills, facts.decodes
        row["switches"], row["tie"] = facts.role is not Role.AS_IT_IS, switch_tie(facts.engine_id)
        row["host"], row["room"], row["busy_until"] = host, facts.room_tokens, now
        row["alone"] = facts.whole
        if prefill is not None:  # also what it could do instead
            self._kin.enter(number, prefill.cost, self._like(facts))
            _write(row, "prefill", prefill.cost)
        if decode is not None:
            _write(row, "decode", decode.cost)
        engine.prefill = prefill if facts.prefills else None
        engine.decode = decode if facts.decodes else None
        self._reckon(now)
        self.decoders += facts.decodes
        self._measure()
        self.load(engine)
        if host not in self._carries:
            self._carries[host] = Carries(facts)
        elif alone:
            self._unlabel(host)
            self._carries[host].stand(facts)
        if alone:
            self._label(host)
            self._price_host(host)
        loops.mark_roles(self.fleet)
        return engine

    def leave(self, engine: Engine, now: float) -> None:
        """It is sent nothing any more. What was in flight there has been taken out before."""
        for largest in (self.largest_prefilled, self.largest_decoded):
            largest.left(engine.facts, now)
        del self.by_id[engine.facts.engine_id]
        self.decoders -= engine.decode is not None
        self._measure()
        self.rows[engine.number] = None
        self.fleet.engines[engine.number] = np.zeros((), self.fleet.engines.dtype)
        self.fleet.lines[:, engine.number] = np.zeros((), self.fleet.lines.dtype)
        loops.mark_roles(self.fleet)
        self._free.append(engine.number)
        self.roles.forget(self.by_id)

    def prefilled(self, engine: Engine, now: float) -> None:
        """Something was learned of its prefills: write down what they cost by now."""
        if engine.prefill is not None:
            fit, factor = engine.prefill, engine.bias.factor
            whole = PrefillCost(factor * fit.cost.a, factor * fit.cost.b, factor * fit.cost.c)
            cost = self._kin.learn(engine.number, whole, fit.taken, fit.spread, now)
            _write(self.fleet.engines[engine.number], "prefill", cost)

    def stepped(self, engine: Engine) -> None:
        """Something was learned of its steps."""
        if engine.decode is not None:
            _write(self.fleet.engines[engine.number], "decode", engine.decode.cost)

    def load(self, engine: Engine) -> None:
        """Write down what it decodes, and what is on its way to it."""
        row = self.fleet.engines[engine.number]
        row["batch"] = engine.batch + engine.owed
        row["context"] = engine.context_tokens + engine.owed_tokens

    def reachable(self, tpot: float, pace: float) -> float:
        """That target, of which steps are to take the share `pace`, or one that there are engines
        for. Where a sequence alone takes more than that share steps may take all of it; where it
        misses the target, it is no reason to refuse all others."""
        if self._least_step <= pace * tpot:
            return tpot
        return tpot / pace if self._least_step <= tpot else 2.0 * self._least_step

    def look(self, rules: Rules, now: float) -> None:
        """Look at what steps take by now, at who has prompts, and at how full engines are: this is
        done now and then, and whoever decides knows of it."""
        engines = self.fleet.engines
        self.busy = float(loops.lately_busy(self.fleet, self.busy, self._looked, now))
        loops.fade(self.fleet.hosts, now - self._looked)
        self._looked = now
        alone = (engines["decode_a"] + engines["decode_b"])[engines["decodes"]]
        self._least_step = float(alone.min()) if len(alone) else 0.0
        if self.roles.look(engines, rules.pace * self.reachable(rules.tpot, rules.pace), now):
            learned = self.roles.learned()
            for engine in map(self.by_id.get, self.roles.known):
                if engine is not None:  # also of what it does not do now, which nobody measures
                    prefill, decode = self.roles.costs(engine.facts, learned)
                    _write(engines[engine.number], "prefill", prefill, engine.bias.factor)
                    _write(engines[engine.number], "decode", decode)
        self._reckon(now)

    def moved(self, host: int, size_bytes: float, seconds: float) -> None:
        """So much came to a host over its link; from where is not known."""
        carries = self._carries.get(host)
        if carries is not None:
            carries.observe(LINK, size_bytes, seconds)
            self._price_host(host)

    def read(self, host: int, size_bytes: float, seconds: float) -> None:
        """So much was read from a host's SSD."""
        carries = self._carries.get(host)
        if carries is not None and carries.ssd is not None:
            carries.ssd.observe(size_bytes, seconds)
            self._price_host(host)

    def fetched(self, host: int, source: int, size_bytes: float, seconds: float) -> None:
        """So much came to a host from another. The slower end of the way is what it is learned of;
        the other is at least as quick."""
        hosts = self.fleet.hosts
        if max(host, source) >= len(hosts):
            return
        way, *ends = loops.ends_of(hosts, source, host)
        for at, each in zip((source, host), ends, strict=True):
            carries = self._carries.get(at)
            if carries is not None and (each >= max(ends) or each * size_bytes > seconds):
                carries.observe(way, size_bytes, seconds)
                self._price_host(at)

    def see(self, named: NDArray[np.int32], coming: Set[int]) -> None:
        """The nodes of these hosts may be named now, and those of others are there, but not known
        yet. Engines whose nodes are neither cannot load what others hold, nor hand over what they
        compute. Where no engine's node may be named, none of them has one: they do without."""
        known, away = set(named.tolist()), self.fleet.hosts["away"]
        mine = {one.host for one in self.by_id.values()}
        self._away = set() if mine.isdisjoint(known) else mine - known - coming
        away[:] = False
        away[list(self._away)] = True

    def computes_again(self, prefill: Engine, decode: Engine | None) -> bool:
        """Whether who is to decode a prompt will not be given what the other computes."""
        if not self._away or decode is None or decode is prefill:
            return False
        gone = not self._away.isdisjoint((prefill.host, decode.host))
        return gone and not prefill.facts.whole

    def place(self, hosts: NDArray[np.int32], given: Lengths, held: Lengths) -> None:
        """So many blocks came to be in these hosts' memory, and they hold so many."""
        placed = self.fleet.hosts["placed"]
        placed[hosts] = np.minimum(placed[hosts] + given, held)

    def advise(self, rules: Rules, now: float) -> Advice:
        """How its engines are best split, and who is to switch."""

        def name(row: int) -> str:
            engine = self.rows[row]
            assert engine is not None, "nobody's row is to switch"
            return engine.facts.engine_id

        tpot = rules.pace * self.reachable(rules.tpot, rules.pace)
        return self.roles.advise(self.fleet, name, self.answers.tokens, tpot, now)

    def fit_hosts(self, count: int) -> None:
        """Make room for so many hosts."""
        if count > len(self.fleet.hosts):
            self._lay_out(self.fleet, len(self.rows), max(count, 2 * len(self.fleet.hosts)))

    def forget_host(self, number: int) -> None:
        """Its number will be another's."""
        if number in self._carries:
            self._unlabel(number)
            del self._carries[number]
        if number < len(self.fleet.hosts):
            self.fleet.hosts[number] = _unknown_hosts(1)[0]
            loops.mark_roles(self.fleet)

    def check(self) -> None:
        for number, engine in enumerate(self.rows):
            row = self.fleet.engines[number]
            if engine is None:
                assert number in self._free, "a row is lost"
                assert not row["prefills"] and not row["decodes"], "nobody may be sent requests"
                line = self.fleet.lines[:, number]
                assert not line["waiting"].any(), "work waits for nobody"
                assert not line["ahead"].any(), "seconds of nothing"
                continue
            assert self.by_id[engine.facts.engine_id] is engine and engine.number == number
            assert row["batch"] == engine.batch + engine.owed
            assert row["context"] == engine.context_tokens + engine.owed_tokens
            assert engine.running >= 0 and engine.owed >= 0 and engine.owed_tokens >= 0
            assert engine.running or row["running"] == 0.0, "work of no prefill"
            assert engine.running or not engine.together, "none that run are several"
        assert self.decoders == sum(one.decode is not None for one in self.by_id.values())
        assert len(self._free) + len(self.by_id) == len(self.rows)
        hosts = self.fleet.hosts
        marked = hosts[MARKED].copy()
        loops.mark_roles(self.fleet)
        assert (marked == hosts[MARKED]).all(), "hosts do not know their engines"
        self._labels.check([*hosts["domain"].tolist(), *hosts["rack"].tolist()])
        assert len(self.fleet.near) >= self._labels.count, "a label has no row"

    def _of_its_kind(self, facts: Facts) -> Facts:
        """With the costs that others of its kind came with: each measured its own, and what little
        these differ by is chance, which is not to say who is sent requests."""
        if not facts.kind:
            return facts
        kin = [one.facts for one in self.by_id.values() if one.facts.kind == facts.kind]
        prefills = (one.prefill for one in kin if one.prefill is not None)
        decodes = (one.decode for one in kin if one.decode is not None)
        return replace(
            facts,
            prefill=facts.prefill and next(prefills, facts.prefill),
            decode=facts.decode and next(decodes, facts.decode),
        )

    def _measure(self) -> None:
        """How much the largest of its engines have room for."""
        for largest in (self.largest_prefilled, self.largest_decoded):
            largest.look(one.facts for one in self.by_id.values())

    def _like(self, facts: Facts) -> int | None:
        """The row of another that said the same of what prefills cost."""
        for one in self.by_id.values():
            if one.facts.prefill == facts.prefill and one.facts is not facts:
                return one.number
        return None

    def _reckon(self, now: float) -> None:
        """Write down what prefills cost those who do so, by their reports and their kin's."""
        engines = self.fleet.engines
        some = np.flatnonzero(engines["prefills"])
        if len(some):
            costs = self._kin.costs(some, now)
            for column, of_all in zip("abc", costs.T, strict=True):
                engines[f"prefill_{column}"][some] = of_all

    def may_try(self, now: float) -> bool:
        """Whether a prompt had better be let in that nobody would serve in time, as far as this was
        measured, and that long ago: who is sent nothing says nothing, and may have been slow for a
        while. One a minute, until some engine is heard."""
        some = np.flatnonzero(self.fleet.engines["prefills"])
        return now > self._tried + SHOWN_SECONDS and self._kin.silent(some, now)

    def tried(self, now: float) -> None:
        """One was."""
        self._tried = now

    def _price_host(self, host: int) -> None:
        self._carries[host].price(self.fleet.hosts[host])

    def _label(self, host: int) -> None:
        """Write down where a host stands. While none is labelled there are no rows of labels, and
        choices look at none."""
        row, stands = self.fleet.hosts[host], self._carries[host].stands
        row["domain"] = self._labels.take(DOMAIN, stands.domain)
        row["rack"] = self._labels.take(RACK, stands.rack)
        if self._labels.count > len(self.fleet.near):
            near = np.zeros(2 * self._labels.count, np.int32)
            self.fleet = self.fleet._replace(near=near)

    def _unlabel(self, host: int) -> None:
        stands = self._carries[host].stands
        self._labels.give_back(DOMAIN, stands.domain)
        self._labels.give_back(RACK, stands.rack)
        if not self._labels.count:
            self.fleet = self.fleet._replace(near=np.zeros(0, np.int32))

    def _lay_out(self, before: Fleet, engines: int, hosts: int) -> None:
        """Arrays of this size, with all that was in those before."""
        self.fleet = empty(engines, hosts)._replace(near=before.near)
        self.fleet.hosts[:] = _unknown_hosts(hosts)
        self.fleet.engines[: len(before.engines)] = before.engines
        self.fleet.lines[:, : len(before.engines)] = before.lines
        self.fleet.hosts[: len(before.hosts)] = before.hosts
        known = len(self.rows)
        self._kin.grow(engines)
        self.rows += [None] * (engines - known)
        self._free += range(known, engines)[::-1]
        loops.mark_roles(self.fleet)
        self.found: Found = nothing(engines, hosts)
        self.priced = unpriced(engines)
        self.own: NDArray[np.int32] = np.zeros(engines, np.int32)  # of one prompt, by row


def _write(row: Any, phase: str, cost: PrefillCost | DecodeCost, factor: float = 1.0) -> None:
    row[f"{phase}_a"], row[f"{phase}_b"] = factor * cost.a, factor * cost.b
    row[f"{phase}_c"] = factor * cost.c


def _unknown_hosts(count: int) -> NDArray[Any]:
    """Of nodes that no engine calls its own: the other end's link is what counts, and nobody knows
    where they stand."""
    hosts = empty(0, count).hosts
    hosts["ssd_seconds"] = SSD_SECONDS
    return hosts
