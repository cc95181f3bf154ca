"""A scheduler with engines and nodes that nobody runs, for tests of what it decides."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from kvstore.conductor.choices import RULES
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask, Decision
from kvstore.conductor.engines import Engine
from kvstore.conductor.facts import Facts
from kvstore.conductor.in_flight import InFlight
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.table import Table
from kvstore.core.cost import DecodeCost, PrefillCost, TransferCost
from kvstore.core.fingerprints import IN_DRAM, Prints

WHOSE: Whose = ("team", b"n" * 32, 0)
BLOCK_TOKENS = 16


def facts(name: str, **fields: Any) -> Facts:
    """10 ms a prefill and 0.1 ms a token; KV of 100 KB a token; 10 GB/s."""
    said: dict[str, Any] = {
        "engine_id": name,
        "address": "127.0.0.1:7500",
        "node_id": f"node of {name}",
        "block_tokens": BLOCK_TOKENS,
        "token_bytes": 1e5,
        "room_tokens": 100_000,
        "prefill": PrefillCost(0.01, 1e-4, 0.0),
        "decode": DecodeCost(0.01, 1e-4, 1e-8),
        "link": TransferCost(1e-3, 1e10),
        "ssd": TransferCost(1e-4, 3e9),
    }
    return Facts(**{**said, **fields})


def chain(seed: int, blocks: int = 64) -> Prints:
    """Fingerprints of a prompt's blocks."""
    return np.random.default_rng(seed).integers(0, 1 << 64, blocks, np.uint64)


def ask(request: str = "r", prints: Prints | None = None, **fields: Any) -> Ask:
    found = chain(1) if prints is None else prints
    return Ask(request, found, fields.pop("tokens", 1_024), fields.pop("waited", 0.0), **fields)


class Rig:
    """At a time that the test moves."""

    def __init__(self, seed: int = 1, **rules: float) -> None:
        self.table, self.named = Table(PoolIndex(0x9E3779B97F4A7C15)), list[str]()
        dice = random.Random(seed)
        ours, self.coming = RULES._replace(**rules), list[str]()
        nodes = {"named": lambda: self.named, "coming": lambda: self.coming}
        self.scheduler = Scheduler(self.table, dice=dice, rules=ours, **nodes)
        self.now = 1_000.0

    def engine(self, name: str, whose: Whose = WHOSE, **fields: Any) -> Engine:
        return self.scheduler.enter(whose, facts(name, **fields), self.now)

    def node(self, name: str, prints: Prints, tiers: int = IN_DRAM) -> None:
        """A node that lists these blocks and is named."""
        self.table.begin(name)
        self.table.add(name, prints, np.full(len(prints), tiers, np.uint8))
        self.table.finish(name)
        self.named.append(name)

    def schedule(self, request: str = "r", prints: Prints | None = None, **fields: Any) -> Decision:
        return self.scheduler.schedule(WHOSE, ask(request, prints, **fields), self.now)

    def sent_to(self, request: str = "r", prints: Prints | None = None, **fields: Any) -> str:
        engine = self.schedule(request, prints, **fields).prefill
        assert engine is not None
        return engine.facts.engine_id

    @property
    def in_flight(self) -> InFlight:
        return self.scheduler.crew(WHOSE)[1]

    def check(self) -> None:
        self.scheduler.check()
