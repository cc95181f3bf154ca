"""What engines hold in memory of their own: blocks that are there for one engine and nobody else.

Like all that conductors know of blocks these are hints. They are kept as the nodes' are, in an
index by fingerprint; an engine is one of its holders from its first block on, until it holds
nothing any more or leaves. Blocks beyond what an engine, its tenant or all together may have are
not counted: that is no reason to send it nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvstore.conductor.engines import NO_HOLDER, Crew, Engine
from kvstore.conductor.index import Lengths, PoolIndex
from kvstore.core.fingerprints import Prints
from kvstore.core.turns import Places
from kvstore.errors import Overloaded
from kvstore.limits import ENGINE_BLOCKS_MAX, OWN_BLOCKS_MAX

_HELD = 1  # the one tier that there is


class Own:
    """Of all engines. `factor` is secret and odd: see `PoolIndex`."""

    def __init__(self, factor: int, blocks_max: int = OWN_BLOCKS_MAX) -> None:
        self._index = PoolIndex(factor, blocks_max)
        self._places = Places(blocks_max)

    def hold(self, tenant: str, crew: Crew, engine: Engine, prints: Prints) -> None:
        """These blocks are there from now on, as far as there is room for them."""
        if not len(prints) or self.count(engine) + len(prints) > ENGINE_BLOCKS_MAX:
            return
        if not self._places.try_take(tenant, len(prints)):
            return
        before = self.count(engine)
        try:
            self._holder(crew, engine)
            self._index.put_all(engine.holder, prints, np.full(len(prints), _HELD, np.uint8))
        except Overloaded:
            pass  # those that found room count
        more = self.count(engine) - before
        self._places.give_back(tenant, len(prints) - more)
        crew.own_blocks += more

    def drop(self, tenant: str, crew: Crew, engine: Engine, prints: Prints) -> None:
        """These are not there any more."""
        before = self.count(engine)
        if before and len(prints):
            self._index.put_all(engine.holder, prints, np.zeros(len(prints), np.uint8))
            self._give_back(tenant, crew, before - self.count(engine))

    def clear(self, tenant: str, crew: Crew, engine: Engine) -> None:
        """It holds nothing any more."""
        if engine.holder == NO_HOLDER:
            return
        self._give_back(tenant, crew, self.count(engine))
        self._index.drop(engine.holder)
        crew.of_holder[engine.holder] = NO_HOLDER
        engine.holder = NO_HOLDER

    def leading(self, prints: Prints) -> tuple[Lengths, Lengths]:
        """Holders of the first block of a chain, and how many leading blocks each of them has. Good
        until the next call."""
        return self._index.longest(prints)

    def count(self, engine: Engine) -> int:
        """How many blocks an engine holds."""
        return 0 if engine.holder == NO_HOLDER else self._index.count(engine.holder)

    def sweep(self) -> None:
        """Make some room where engines left."""
        self._index.sweep()

    def check(self, crews: Iterable[Crew]) -> None:
        self._index.check()
        taken = holders = 0
        for crew in crews:
            engines = [one for one in crew.by_id.values() if one.holder != NO_HOLDER]
            assert crew.own_blocks == sum(map(self.count, engines)), "a crew is miscounted"
            known = {one.holder: one.number for one in engines}
            rows = crew.of_holder
            assert {int(one): int(rows[one]) for one in np.flatnonzero(rows >= 0)} == known
            taken, holders = taken + crew.own_blocks, holders + len(engines)
        assert self._places.total - self._places.free == taken, "blocks are nobody's"
        assert self._index.holders == holders, "a holder is nobody's"

    def _holder(self, crew: Crew, engine: Engine) -> None:
        if engine.holder == NO_HOLDER:
            engine.holder = self._index.add()
            self._index.show(engine.holder)
            crew.of_holder[engine.holder] = engine.number

    def _give_back(self, tenant: str, crew: Crew, count: int) -> None:
        self._places.give_back(tenant, count)
        crew.own_blocks -= count
