"""Compiles every loop of the conductor, by using each once: else its first callers would wait for
that. Some 20 seconds where this is the machine's first time, else one."""

from __future__ import annotations

import random

import numpy as np

from kvstore.conductor import index
from kvstore.conductor.crews import Whose
from kvstore.conductor.decision import Ask
from kvstore.conductor.engines import Crew, Engine
from kvstore.conductor.facts import Facts
from kvstore.conductor.index import PoolIndex
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.stored import stored_prints
from kvstore.conductor.table import Table
from kvstore.core.cost import DecodeCost, PrefillCost, TransferCost
from kvstore.kernels import decision as loops
from kvstore.kernels import expected


def compiled() -> None:
    """Return once every loop is."""
    index.compiled()
    stored_prints(bytes(32), bytes(32), 0, [bytes(32)])
    scheduler = Scheduler(Table(PoolIndex(1)), lambda: (), random.Random(0))
    whose: Whose = ("", b"", 0)
    costs = PrefillCost(1e-3, 1e-5, 0.0), DecodeCost(1e-3, 1e-5, 0.0)
    facts = Facts("warm", "", "", 1, 1.0, 1 << 20, *costs, TransferCost(0.0, 1.0), None)
    engine = scheduler.enter(whose, facts, 0.0)
    ask = Ask("warm", np.arange(8, dtype=np.uint64), 16, 0.0)
    decision = scheduler.schedule(whose, ask, 0.0)
    scheduler.crew(whose)[1].crowd.lost("another", 0.0)
    scheduler.priority(decision)
    _park(scheduler, whose, engine)
    _learn(scheduler.crew(whose)[0], engine)
    scheduler.crew(whose)[0].roles.asked_elsewhere(0.0)
    scheduler.balance(whose, 0.0)
    scheduler.sweep(0.0)
    loops.owe(scheduler.crew(whose)[0].fleet.hosts, 0, 0.0)
    expected.move(expected.empty(2), expected.empty(2))
    scheduler.leave(whose, engine, 0.0)


def _park(scheduler: Scheduler, whose: Whose, engine: Engine) -> None:
    """Have one wait for room, get some, and another give up."""
    crew, in_flight = scheduler.crew(whose)
    engine.context_tokens = engine.facts.room_tokens
    crew.load(engine)
    in_flight.send("warm", engine, 1.0, np.zeros(1, np.uint64), 0.0, 1.0, 16)
    in_flight.began("warm", engine, 0.0)
    in_flight.ended("warm", engine, 0.0)
    ask = Ask("warm", np.zeros(0, np.uint64), 16, 0.0)
    scheduler.place(whose, ask, 0.0, lambda _: None)
    engine.context_tokens = 0
    crew.load(engine)
    scheduler.serve(whose, engine, 0.0)
    in_flight.crowd.lost("warm", 0.0)


def _learn(crew: Crew, engine: Engine) -> None:
    """Else the first report of a step would hold up all streams of reports, and end them."""
    assert engine.prefill is not None and engine.decode is not None
    engine.prefill.observe(64, 0, 0.1)
    engine.decode.observe(2, 100, 0.01)
    engine.bias.observe(0.1, 0.1)
    crew.fetched(engine.host, engine.host, 1e6, 0.1)
