"""The engines of one tenant that serve one namespace and group, by what they report: a crew.

A row of the fleet is an engine's for as long as it reports, and nobody's after that. What it costs
is learned from its own reports; what links and disks of its host carry, from those of all its crew.
Links are a crew's own: what another tenant says of a node, or sends over its link, is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.conductor.index import HOLDERS_MAX
from kvstore.core.cost import DecodeCost, PrefillCost, TransferCost
from kvstore.core.fit import Bias, DecodeFit, PrefillFit, TransferFit
from kvstore.kernels.fleet import Fleet, Found, empty, nothing
from kvstore.kernels.prefill_choice import PRICED

SSD_SECONDS = 1 / 2e9  # of a byte, at a node that no engine calls its own
LATENCY_SECONDS = 1e-3  # of a transfer, before any was measured
NO_HOLDER = -1
OUTPUT_TOKENS = 512.0  # of a request, before any was over
_OUTPUT_KEPT = 0.99  # of what was learned of that, at each request
_ROWS_MIN = 8


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says of itself when it begins to report."""

    engine_id: str
    address: str
    node_id: str
    block_tokens: int
    token_bytes: float
    room_tokens: int
    prefill: PrefillCost | None  # None: it prefills nothing
    decode: DecodeCost | None
    link: TransferCost
    ssd: TransferCost | None
    rank: int | None = None  # which it is of the engines at its address; None: it is alone there


@dataclass(slots=True, eq=False)
class Engine:
    """An engine that reports."""

    facts: Facts
    number: int  # its row
    host: int
    heard: float  # when it last said anything
    prefill: PrefillFit | None
    decode: DecodeFit | None
    bias: Bias = field(default_factory=Bias)  # of its prefills
    running: int = 0  # prefills, and their work in seconds
    running_seconds: float = 0.0
    batch: int = 0  # as it said, and beside that what is on its way to it
    context_tokens: int = 0
    owed: int = 0
    owed_tokens: int = 0
    holder: int = NO_HOLDER  # of blocks of its own: see `own.py`


@dataclass(slots=True)
class Carries:
    """What a host's link and SSD carry."""

    link: TransferFit
    ssd: TransferFit | None


class Crew:
    """Who there is, in rows; `fleet` and the arrays beside it are made anew when it grows."""

    def __init__(self, facts: Facts, hosts: int) -> None:
        self.block_tokens, self.token_bytes = facts.block_tokens, facts.token_bytes
        self.by_id: dict[str, Engine] = {}
        self.decoders = 0  # of those
        self._least_step = 0.0  # seconds, of one sequence alone
        self.output_tokens = OUTPUT_TOKENS  # that a request comes to, in the mean
        self.rows: list[Engine | None] = []
        self._free: list[int] = []
        self._carries: dict[int, Carries] = {}
        self.of_holder = np.full(HOLDERS_MAX, NO_HOLDER, np.int32)  # rows, by their holders
        self.own_blocks = 0  # that its engines hold, all together
        self._lay_out(empty(0, 0), _ROWS_MIN, max(hosts, _ROWS_MIN))

    def enter(self, facts: Facts, host: int, now: float) -> Engine:
        """A new engine, under an id that nobody of the crew has."""
        if not self._free:
            self._lay_out(self.fleet, 2 * len(self.rows), len(self.fleet.hosts))
        self.fit_hosts(host + 1)
        number = self._free.pop()
        prefill = None if facts.prefill is None else PrefillFit(facts.prefill)
        decode = None if facts.decode is None else DecodeFit(facts.decode)
        engine = Engine(facts, number, host, now, prefill, decode)
        self.rows[number] = self.by_id[facts.engine_id] = engine
        self.decoders += decode is not None
        row = self.fleet.engines[number]
        row["prefills"], row["decodes"] = prefill is not None, decode is not None
        row["host"], row["room"], row["busy_until"] = host, facts.room_tokens, now
        self.price(engine)
        self.load(engine)
        if host not in self._carries:
            ssd = None if facts.ssd is None else TransferFit(facts.ssd)
            self._carries[host] = Carries(TransferFit(facts.link), ssd)
            self._price_host(host)
        return engine

    def leave(self, engine: Engine) -> None:
        """It is sent nothing any more. What was in flight there has been taken out before."""
        del self.by_id[engine.facts.engine_id]
        self.decoders -= engine.decode is not None
        self.rows[engine.number] = None
        self.fleet.engines[engine.number] = np.zeros((), self.fleet.engines.dtype)
        self._free.append(engine.number)

    def price(self, engine: Engine) -> None:
        """Write down what it costs by now."""
        row = self.fleet.engines[engine.number]
        if engine.prefill is not None:
            prefill = engine.prefill.cost
            row["prefill_a"], row["prefill_b"], row["prefill_c"] = prefill.a, prefill.b, prefill.c
        if engine.decode is not None:
            decode = engine.decode.cost
            row["decode_a"], row["decode_b"], row["decode_c"] = decode.a, decode.b, decode.c

    def load(self, engine: Engine) -> None:
        """Write down what it decodes, and what is on its way to it."""
        row = self.fleet.engines[engine.number]
        row["batch"] = engine.batch + engine.owed
        row["context"] = engine.context_tokens + engine.owed_tokens

    def reachable(self, tpot: float) -> float:
        """That target, or one that there are engines for: where even a sequence alone misses it, it
        is no reason to refuse all others."""
        return tpot if self._least_step <= tpot else 2.0 * self._least_step

    def look(self) -> None:
        """Look at what steps take by now, for the line above."""
        engines = self.fleet.engines
        alone = (engines["decode_a"] + engines["decode_b"])[engines["decodes"]]
        self._least_step = float(alone.min()) if len(alone) else 0.0

    def over(self, sequences: int, output_tokens: int) -> None:
        """So many requests were decoded to their ends."""
        kept = _OUTPUT_KEPT**sequences
        mean = output_tokens / sequences
        self.output_tokens = kept * self.output_tokens + (1 - kept) * mean

    def moved(self, engine: Engine, size_bytes: float, seconds: float, of_ssd: bool) -> None:
        """An engine has measured a transfer of its host."""
        carries = self._carries[engine.host]
        fit = carries.ssd if of_ssd else carries.link
        if fit is not None:
            fit.observe(size_bytes, seconds)
            self._price_host(engine.host)

    def fit_hosts(self, count: int) -> None:
        """Make room for so many hosts."""
        if count > len(self.fleet.hosts):
            self._lay_out(self.fleet, len(self.rows), max(count, 2 * len(self.fleet.hosts)))

    def forget_host(self, number: int) -> None:
        """Its number will be another's."""
        self._carries.pop(number, None)
        if number < len(self.fleet.hosts):
            self.fleet.hosts[number] = _unknown_hosts(1)[0]

    def check(self) -> None:
        for number, engine in enumerate(self.rows):
            row = self.fleet.engines[number]
            if engine is None:
                assert number in self._free, "a row is lost"
                assert not row["prefills"] and not row["decodes"], "nobody may be sent requests"
                assert not row["waiting"].any(), "work waits for nobody"
                assert not row["ahead"].any(), "seconds of nothing"
                continue
            assert self.by_id[engine.facts.engine_id] is engine and engine.number == number
            assert row["batch"] == engine.batch + engine.owed
            assert row["context"] == engine.context_tokens + engine.owed_tokens
            assert engine.running >= 0 and engine.owed >= 0 and engine.owed_tokens >= 0
            assert engine.running or engine.running_seconds == 0
        assert self.decoders == sum(one.decode is not None for one in self.by_id.values())
        assert len(self._free) + len(self.by_id) == len(self.rows)

    def _price_host(self, host: int) -> None:
        carries, row = self._carries[host], self.fleet.hosts[host]
        row["link_seconds"] = 1 / carries.link.cost.bytes_per_second
        row["ssd_seconds"] = np.inf
        if carries.ssd is not None:
            row["ssd_seconds"] = 1 / carries.ssd.cost.bytes_per_second

    def _lay_out(self, before: Fleet, engines: int, hosts: int) -> None:
        """Arrays of this size, with all that was in those before."""
        self.fleet = empty(engines, hosts)
        self.fleet.hosts[:] = _unknown_hosts(hosts)
        for now, then in zip(self.fleet, before, strict=True):
            now[: len(then)] = then
        known = len(self.rows)
        self.rows += [None] * (engines - known)
        self._free += range(known, engines)[::-1]
        self.found: Found = nothing(engines, hosts)
        self.priced: NDArray[np.float64] = np.zeros((engines, PRICED))
        self.own: NDArray[np.int32] = np.zeros(engines, np.int32)  # of one prompt, by row


def _unknown_hosts(count: int) -> NDArray[Any]:
    """Of nodes that no engine calls its own: the other end's link is what counts."""
    hosts = empty(0, count).hosts
    hosts["ssd_seconds"] = SSD_SECONDS
    return hosts
