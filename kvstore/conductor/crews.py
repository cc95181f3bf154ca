"""Who reports to a conductor: engines, by tenant, namespace and group, with what is in flight there
and what they hold in memory of their own. Bounded; one that falls silent is no more.
"""

from __future__ import annotations

from typing import TypeAlias

from kvstore.conductor.decision import NOBODY_MS
from kvstore.conductor.engines import Crew, Engine
from kvstore.conductor.facts import Facts
from kvstore.conductor.hosts import Hosts
from kvstore.conductor.in_flight import InFlight
from kvstore.conductor.left import Left
from kvstore.conductor.own import Own
from kvstore.conductor.table import Table
from kvstore.core.carried import Carried
from kvstore.core.fingerprints import Prints
from kvstore.core.turns import Places
from kvstore.errors import Invalid, Overloaded, Unavailable
from kvstore.limits import (
    CREWS_MAX,
    EXPECTED_BLOCKS_MAX,
    IN_FLIGHT_MAX,
    REPORT_SILENCE_SECONDS,
    REPORTS_MAX,
)

Whose: TypeAlias = tuple[str, bytes, int]  # tenant, namespace, group


class Crews:
    """Pure: it is told the time."""

    def __init__(self, table: Table, secret: int) -> None:
        """`secret` is odd, and nobody else's."""
        self._crews: dict[Whose, Crew] = {}
        self._in_flight: dict[Whose, InFlight] = {}
        self._hosts = Hosts(table, self._forget_host)
        self._places = Places(CREWS_MAX)
        self._of_flights = Places(IN_FLIGHT_MAX), Places(EXPECTED_BLOCKS_MAX)
        self._own, self._left = Own(secret), Left()
        self._engines = 0

    @property
    def engines(self) -> int:
        """That report."""
        return self._engines

    def crew(self, whose: Whose) -> tuple[Crew, InFlight]:
        """Raises `Unavailable` where no engine reports."""
        crew = self._crews.get(whose)
        if crew is None:
            text = "no engine of yours reports that it serves this namespace and group"
            raise Unavailable(text, NOBODY_MS)
        return crew, self._in_flight[whose]

    def enter(self, whose: Whose, facts: Facts, now: float) -> Engine:
        """An engine begins to report; one of its node under its id is no more. Raises `Invalid`
        where one of another node reports under it, or where it is of another kind than the others
        there, and `Overloaded`."""
        crew = self._crews.get(whose)
        if crew is not None:
            before = crew.by_id.get(facts.engine_id)
            if before is not None:
                _check_node(before.facts, facts)
            _check_same(crew, facts, alone=len(crew.by_id) == (before is not None))
            _check_stands(crew, facts)
            if before is not None:
                self.leave(whose, before, now)
                crew = self._crews.get(whose)
        if self._engines >= REPORTS_MAX:
            raise Overloaded(f"{self._engines} engines report, all that may", NOBODY_MS)
        if crew is None:
            if not self._places.try_take(whose[0]):
                held = self._places.held(whose[0])
                text = f"{held} kinds of engines of {whose[0]} report: no tenant takes all places"
                raise Overloaded(text, NOBODY_MS)
            crew = self._crews[whose] = Crew(facts, self._hosts.count, now)
            self._in_flight[whose] = InFlight(crew, whose[0], *self._of_flights)
        self._engines += 1
        self._left.discard(whose[0], facts.address)
        return crew.enter(facts, self._hosts.use(facts.node_id), now)

    def leave(self, whose: Whose, engine: Engine, now: float) -> None:
        """It is sent nothing any more; what was in flight there counts no more."""
        if not self.has(whose, engine):
            return
        crew, in_flight = self._crews[whose], self._in_flight[whose]
        in_flight.leave(engine, now)
        self._own.clear(whose[0], crew, engine)
        crew.leave(engine, now)
        self._engines -= 1
        if not crew.by_id:
            in_flight.end()
            del self._crews[whose], self._in_flight[whose]
            self._places.give_back(whose[0])
        self._hosts.release(engine.facts.node_id)

    def leave_for_good(self, whose: Whose, engine: Engine, now: float) -> None:
        """It says so itself."""
        self.leave(whose, engine, now)
        self._left.add(whose[0], engine.facts.address, now)

    def left(self, tenant: str, now: float) -> set[str]:
        """Addresses of engines that lately said that they leave."""
        return self._left.of(tenant, now)

    def own(
        self, whose: Whose, engine: Engine, cleared: bool, dropped: Prints, held: Prints
    ) -> None:
        """What an engine holds in memory of its own has changed so, in this order."""
        crew = self._crews[whose]
        if cleared:
            self._own.clear(whose[0], crew, engine)
        self._own.drop(whose[0], crew, engine, dropped)
        self._own.hold(whose[0], crew, engine, held)

    def has(self, whose: Whose, engine: Engine) -> bool:
        """Whether it may be sent requests."""
        crew = self._crews.get(whose)
        return crew is not None and crew.by_id.get(engine.facts.engine_id) is engine

    def carried(self, node: str, one: Carried) -> None:
        """A node says what its host's link or SSD carried."""
        host, source = self._hosts.find(node), self._hosts.find(one.source)
        if host is None:
            return  # nobody's
        for crew in self._crews.values():
            if one.of_ssd:
                crew.read(host, one.size_bytes, one.seconds)
            elif source is not None:
                crew.fetched(host, source, one.size_bytes, one.seconds)
            elif not one.source:
                crew.moved(host, one.size_bytes, one.seconds)

    def stood_still(self, seconds: float, now: float) -> None:
        """For so long nobody was listened to: what engines said meanwhile is yet to be read."""
        for crew in self._crews.values():
            for engine in crew.by_id.values():
                engine.heard = max(engine.heard, min(now, engine.heard + seconds))

    def leave_silent(self, now: float) -> list[str]:
        """Engines that were not heard of are no more; their ids."""
        silent = [
            (whose, engine)
            for whose, crew in self._crews.items()
            for engine in crew.by_id.values()
            if engine.heard <= now - REPORT_SILENCE_SECONDS
        ]
        for whose, engine in silent:
            self.leave(whose, engine, now)
        return [engine.facts.engine_id for _, engine in silent]

    def crews_of(self, tenant: str) -> list[Whose]:
        return [whose for whose in self._crews if whose[0] == tenant]

    def check(self) -> None:
        self._hosts.check()
        for whose, crew in self._crews.items():
            crew.check()
            self._in_flight[whose].check()
        assert self._engines == sum(len(crew.by_id) for crew in self._crews.values())
        assert self._crews.keys() == self._in_flight.keys()
        self._own.check(self._crews.values())
        self._places.check()
        for number, places in enumerate(self._of_flights):
            places.check()
            held = sum(one.held[number] for one in self._in_flight.values())
            assert held == places.total - places.free, "something in flight is nobody's"

    def _forget_host(self, number: int) -> None:
        for crew in self._crews.values():
            crew.forget_host(number)


def _check_node(before: Facts, facts: Facts) -> None:
    """Two that have one id would take it from each other for ever: the first has it until it is
    silent, as an engine is that comes back with another node."""
    if before.node_id != facts.node_id:
        raise Invalid(
            f"engine.engine_id = {facts.engine_id!r}: an engine of node {before.node_id} reports "
            "under it. Loopback addresses of two hosts are alike: who serves at one reports to a "
            "conductor that no other host's engines report to"
        )


def _check_same(crew: Crew, facts: Facts, alone: bool) -> None:
    """All engines of a namespace and group have blocks of one kind, under one kind of names."""
    for name in ("block_tokens", "token_bytes", "naming"):
        mine, theirs = getattr(facts, name), getattr(crew, name)
        if mine != theirs and not alone:
            said = f"other engines of this namespace say {theirs!r}"
            raise Invalid(f"engine.{name} = {mine!r}: {said}")


def _check_stands(crew: Crew, facts: Facts) -> None:
    """All engines of a host say that it stands at the same place; they said so one by one."""
    for one in crew.by_id.values():
        if one.facts.node_id == facts.node_id and one.facts.engine_id != facts.engine_id:
            for field, name in (("rack", "rack"), ("nvlink_domain", "domain")):
                mine, theirs = getattr(facts, name), getattr(one.facts, name)
                if mine != theirs:
                    text = f"{one.facts.engine_id}, of the same node, says {theirs!r}"
                    raise Invalid(f"engine.{field} = {mine!r}: {text}")
            return
