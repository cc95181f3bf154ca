"""Gemma's layers that see a window need its blocks alone, and a hit ends where they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import Engine, Output, engine
from tests.connectors.vllm.models import WINDOW, prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess, eventually

BLOCK, BLOCKS = 64, 6
PROMPT = prompt(130, BLOCKS * BLOCK + 20)


class Stored:
    """The prompt in the pool as often as asked for: whole, or without some blocks."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        self.engine, self.pool = engine, pool
        (self.cold,) = engine.run(PROMPT).outputs
        groups = pool.spec.groups
        (self.window,) = [n for n, group in enumerate(groups) if group.window_tokens]
        (self.full,) = [n for n, group in enumerate(groups) if not group.window_tokens]
        self.held = [pool.get(PROMPT, group) for group in range(len(groups))]

    def without(self, group: int, *blocks: int) -> Output:
        """What a run gives when these blocks are not there; they are put back after it."""
        for index in blocks:
            self.pool.remove(PROMPT, group, index)
        self.engine.forget()
        (found,) = self.engine.run(PROMPT).outputs
        for index in blocks:
            if index * BLOCK < found.cached:  # not computed, so not published anew
                self.pool.put(PROMPT, group, index, self.held[group][index])
        eventually(lambda: all(self.pool.has(PROMPT, group)))
        return found


@pytest.fixture(scope="module")
def stored(
    shared_node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stored]:
    log, hybrid = tmp_path_factory.mktemp("windows"), {"disable_hybrid_kv_cache_manager": False}
    with engine(model("gemma3"), log / "engine.log", node=shared_node.address, **hybrid) as made:
        yield Stored(made, Pool(shared_node))


def test_the_two_groups_are_told_apart(stored: Stored) -> None:
    groups = stored.pool.spec.groups
    assert groups[stored.window].window_tokens == WINDOW
    assert groups[stored.window].layers == (0, 2)
    assert groups[stored.full].layers == (1, 3)
    assert stored.held[stored.full] and stored.held[stored.window]


def test_blocks_before_the_window_are_not_needed(stored: Stored) -> None:
    found = stored.without(stored.window, *range(BLOCKS - 2))
    assert found.cached == BLOCKS * BLOCK
    assert found.tokens == stored.cold.tokens


@pytest.mark.parametrize(
    ("group", "missing", "hit"),
    [
        # A window of 64 tokens, the next one among them, needs 63 of the last block and no other.
        ("window", 5, 5),
        ("window", 4, 6),
        ("window", 3, 6),
        ("full", 5, 5),
        ("full", 3, 3),
        ("full", 0, 0),
    ],
)
def test_a_hole_shortens_the_hit_where_it_is_needed(
    stored: Stored, group: str, missing: int, hit: int
) -> None:
    found = stored.without(getattr(stored, group), missing)
    assert found.cached == hit * BLOCK
    assert found.tokens == stored.cold.tokens
    assert found.logprobs == pytest.approx(stored.cold.logprobs, abs=1e-4)


def test_with_two_holes_the_hit_ends_where_both_groups_are_whole(stored: Stored) -> None:
    """Without block 5 five blocks would do, but the window of what comes after them is block 4."""
    found = stored.without(stored.window, 4, 5)
    assert found.cached == 4 * BLOCK
    assert found.tokens == stored.cold.tokens
