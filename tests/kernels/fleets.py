"""Fleets for tests of what is decided over them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from kvstore.kernels.fleet import (
    LATELY_SECONDS,
    UNLABELLED,
    Fleet,
    Found,
    empty,
    enqueue,
    mark_roles,
    nothing,
    size_of,
)
from kvstore.kernels.prefill_choice import choose_prefill
from kvstore.kernels.prefill_price import Asked, unpriced
from kvstore.kernels.rules import OURS

RULES = OURS._replace(crowding=0.0)  # prices alone decide
ASKED = Asked(
    now=100.0,
    tokens=16_000.0,
    block_tokens=512.0,
    token_bytes=327_680.0,
    waited=0.0,
    factor=1.0,
)
BLOCKS = 31  # whole ones of such a prompt
SCARCE = 1.5


def fleet(engines: int) -> Fleet:
    """Idle engines of one kind that do everything, each on a host of its own."""
    made = empty(engines, engines)
    every = made.engines
    every["prefills"] = every["decodes"] = True
    every["host"] = np.arange(engines)
    every["prefill_a"], every["prefill_b"], every["prefill_c"] = 0.02, 1.1e-4, 1e-9
    every["decode_a"], every["decode_b"], every["decode_c"] = 0.03, 3e-4, 6e-8
    every["room"] = 400_000
    made.hosts["link_seconds"] = 1 / 20e9
    mark_roles(made)
    return made


def rows(engines: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return unpriced(engines)


def chosen(
    made: Fleet, found: Found, first: int = 0, **rules: float
) -> tuple[int, int, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    priced = rows(len(made.engines))
    wanted = RULES._replace(**rules)
    engine, source = choose_prefill(made, found, ASKED, wanted, SCARCE, first, priced)
    return engine, source, priced[engine]


def wait_behind(made: Fleet, engine: int, seconds: float) -> None:
    """One more prompt waits at an engine."""
    enqueue(made.lines, engine, size_of(seconds), seconds)


def labelled(made: Fleet, domains: list[int], racks: list[int]) -> Fleet:
    """The same whose hosts stand so: in domains and racks numbered from 0, or `UNLABELLED`."""
    made.hosts["domain"] = domains
    past = max(domains) + 1
    made.hosts["rack"] = [one if one == UNLABELLED else past + one for one in racks]
    return made._replace(near=np.zeros(past + max(racks) + 1, np.int32))


@st.composite
def labelled_fleets(draw: st.DrawFn) -> tuple[Fleet, Found]:
    """As below, with hosts in any domains and racks, or in none."""
    made, found = draw(busy_fleets())
    count = len(made.hosts)
    labels = st.lists(st.integers(UNLABELLED, 2), min_size=count, max_size=count)
    made = labelled(made, draw(labels), draw(labels))
    for host in made.hosts:
        host["domain_seconds"] = draw(st.sampled_from([np.inf, 1 / 700e9, 1 / 100e9]))
        host["far_seconds"] = draw(st.sampled_from([0.0, 1 / 2e9, 1 / 50e6]))
        for column in ("domain_arrives", "domain_leaves"):
            host[column] = ASKED.now + draw(st.floats(-5, 5))
    return made, found


@st.composite
def busy_fleets(draw: st.DrawFn) -> tuple[Fleet, Found]:
    """Any few engines, some of which may not be sent prompts, with any load, prefixes and links."""
    count = draw(st.integers(1, 6))
    made, found = fleet(count), nothing(count, count)
    seconds = st.floats(0, 40)
    for number in range(count):
        made.engines[number]["prefills"] = draw(st.integers(0, 4)) > 0
        made.engines[number]["busy_until"] = ASKED.now + draw(st.floats(-5, 40))
        made.engines[number]["running"] = draw(st.sampled_from([0.0, 0.5, 10.0]))
        made.engines[number]["prefill_b"] *= draw(st.floats(0.5, 2))
        for work in draw(st.lists(st.floats(1e-4, 20), max_size=4)):
            wait_behind(made, number, work)
        host = made.hosts[number]
        host["link_seconds"] = draw(st.sampled_from([1 / 20e9, 1 / 1e9, 1 / 100e6]))
        host["ssd_seconds"] = draw(st.sampled_from([np.inf, 1 / 6e9, 1 / 500e6]))
        host["placed"] = draw(st.floats(0, 1_000))
        host["sent"] = draw(st.floats(0, 2 * LATELY_SECONDS))
        for column in ("arrives", "leaves", "reads"):
            host[column] = ASKED.now + draw(seconds) - 20
        dram = draw(st.integers(0, BLOCKS))
        found.dram[number] = dram
        found.local[number] = dram
        if host["ssd_seconds"] < np.inf:
            found.local[number] = draw(st.integers(dram, BLOCKS))
        found.coming[number] = draw(st.integers(dram, BLOCKS))
    mark_roles(made)
    return made, found


@st.composite
def parted_fleets(draw: st.DrawFn) -> tuple[Fleet, Found]:
    """As above, with engines that do not decode, whose hosts have KV to hand over."""
    made, found = draw(busy_fleets() | labelled_fleets())
    for engine, host in zip(made.engines, made.hosts, strict=True):
        engine["decodes"], host["owed"] = draw(st.booleans()), draw(st.floats(0, 5))
    mark_roles(made)
    return made, found
