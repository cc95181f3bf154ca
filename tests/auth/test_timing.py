"""How long a Match and an Open take tells a tenant nothing of what another has stored.

250 timings of prompts that another tenant stored and 250 of as many prompts that nobody did,
interleaved by chance, go into a test of Kolmogorov and Smirnov. The control has to see what a hit
makes of it. It is a test of chance: of two tries one is enough, so it is wrong once in 10^5 runs.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from typing import TypeAlias

import pytest

from kvstore.block import Chain
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth import ks
from tests.auth.people import TENANTS, People, caller_of
from tests.nodes import Caller, NodeProcess, prompt

TIMINGS, PROMPTS, BLOCKS, SEED = 250, 5, 512, 7
PAUSE_SECONDS = 0.018  # what each names costs as much as 15 calls, of which 1,000 a second are made
ALIKE, DIFFERENT = 1e-3, 1e-6
Timings: TypeAlias = list[tuple[str, float]]
numbers = itertools.count(1_000_000)


def new_prompts(blocks: int = BLOCKS) -> list[Chain]:
    return [prompt(next(numbers), blocks) for _ in range(PROMPTS)]


def timed(caller: Caller, blocks: Chain) -> float:
    time.sleep(PAUSE_SECONDS)
    began = time.perf_counter()
    caller.match(blocks)
    handles = caller.ask("Open", **caller.about(blocks)).handles
    seconds = time.perf_counter() - began
    if held := [one for one in handles if one]:
        caller.ask("Close", handles=held)
    return seconds


def interleaved(caller: Caller, kinds: dict[str, list[Chain]], seed: int) -> Timings:
    """(kind, seconds) of each prompt, asked as often as every other, in an order of chance."""
    order = [(kind, one) for kind, prompts in kinds.items() for one in prompts]
    order *= TIMINGS // PROMPTS
    random.Random(seed).shuffle(order)
    for _, blocks in order[:50]:
        timed(caller, blocks)  # whatever is cold at first is not timed
    return [(kind, timed(caller, blocks)) for kind, blocks in order]


def of(kind: str, found: Timings) -> list[float]:
    return [seconds for one, seconds in found if one == kind]


@pytest.fixture(scope="module")
def two(people: People, tls_node: NodeProcess) -> tuple[Caller, Caller, list[Chain]]:
    """Callers of two tenants, and what the first of them stored."""
    ours, other = (caller_of(tls_node, people, tenant) for tenant in TENANTS)
    stored = new_prompts()
    for blocks in stored:
        assert ours.put(blocks) == [pb.PutReply.STORED] * BLOCKS
    return ours, other, stored


def test_another_tenants_prompts_take_as_long_as_those_that_nobody_stored(
    two: tuple[Caller, Caller, list[Chain]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, other, stored = two

    def p_values(seed: int) -> tuple[float, float]:
        found = interleaved(other, {"stored": stored, "never": new_prompts()}, seed)
        pairs = list(itertools.pairwise(found))
        after = {
            kind: [late[1] for early, late in pairs if early[0] == kind]
            for kind in ("stored", "never")
        }
        # Nor does what was asked before: what the node has just looked at is warm for nobody.
        return (
            ks.p_value(of("stored", found), of("never", found)),
            ks.p_value(after["stored"], after["never"]),
        )

    tries = [p_values(SEED)]
    if min(tries[0]) <= ALIKE:
        tries.append(p_values(SEED + 1))
    with capsys.disabled():
        print(f" [p {tries[-1][0]:.3g}, by what came before {tries[-1][1]:.3g}]", end="")
    assert min(tries[-1]) > ALIKE, tries


def test_ones_own_do_not_or_the_test_above_would_be_blind(
    two: tuple[Caller, Caller, list[Chain]], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, _, stored = two

    def p_value(seed: int) -> float:
        found = interleaved(ours, {"stored": stored, "never": new_prompts()}, seed)
        return ks.p_value(of("stored", found), of("never", found))

    p = p_value(SEED)
    if p >= DIFFERENT:  # a busy machine hides it
        p = p_value(SEED + 1)
    with capsys.disabled():
        print(f" [p {p:.3g}]", end="")
    assert p < DIFFERENT


def test_the_p_value_is_that_of_the_tables() -> None:
    for x, p in ((1.2238, 0.1), (1.3581, 0.05), (1.6276, 0.01), (1.9495, 0.001)):
        assert math.isclose(ks.tail(x), p, rel_tol=2e-3)
    assert ks.distance([1, 2, 3], [4, 5, 6]) == 1.0
    assert math.isclose(ks.distance([1, 3], [2, 4]), 0.5)
    same = [random.Random(1).random() for _ in range(250)]
    assert ks.p_value(same, same) == 1.0
    assert ks.p_value(same, [x + 0.3 for x in same]) < 1e-6


def test_chance_alone_seldom_looks_like_a_difference() -> None:
    dice = random.Random(2)
    samples = [[dice.gauss(0, 1) for _ in range(TIMINGS)] for _ in range(400)]
    pairs = zip(samples[::2], samples[1::2], strict=True)
    assert sum(ks.p_value(a, b) <= 0.05 for a, b in pairs) in range(2, 25)
