"""A load that comes back short is computed over, and none of what comes of that is kept.

    step 1   looked up: chunks 0 to 4      loaded: 0, 1, 2
             vLLM computes 5, over whatever its blocks for 3 and 4 hold
             LMCache stores 5: wrong, under its right name
    step 2   vLLM, which was told, computes 3, 4 and 5 again
             LMCache stores them: 5 is there already

Whoever loads that prompt then had 5 wrong, for as long as the pool kept it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvstore.engine.connectors.lmcache import lost
from kvstore.engine.connectors.lmcache.lost import EVERYTHING, LOST_NS, ROWS, Lost
from tests.connectors.lmcache.engine import CHUNK, Engine

Engines = Callable[..., Engine]
OTHERS = [99] * 2 * CHUNK
OF_TWO = {"world_size": 2}


def prompt(name: int, chunks: int = 6) -> list[int]:
    return [name * 100 + at // CHUNK for at in range(chunks * CHUNK)]


def own_memory(engine: Engine) -> Any:
    return engine.manager.storage_backends["LocalCPUBackend"]


def lost_in_the_pool(engine: Engine, tokens: list[int]) -> None:
    engine.plugin.remove(engine.keys(tokens)[3])


def lost_behind_own_memory(engine: Engine, tokens: list[int]) -> None:
    """What was looked up in two places LMCache looks up again, and then loads less."""
    engine.plugin.remove(engine.keys(tokens)[3])


def lost_in_own_memory(engine: Engine, tokens: list[int]) -> None:
    own_memory(engine).remove(engine.keys(tokens)[3])


WAYS = [(lost_in_the_pool, 0), (lost_behind_own_memory, 2), (lost_in_own_memory, 5)]


@pytest.mark.parametrize(("lose", "own"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_what_is_computed_over_a_short_load_is_not_kept(
    engine_of: Engines, heard: list[str], lose: Any, own: int
) -> None:
    tokens, name = prompt(1), lose.__name__
    hit, got = 5 * CHUNK, 3 * CHUNK
    engine_of(revision=name).store(tokens[:hit])
    ours = engine_of(config={"local_cpu": True}, revision=name)
    if own:
        ours.lookup(tokens[: own * CHUNK])
        ours.store(tokens[: own * CHUNK])
    assert ours.lookup(tokens, "a request") == hit
    lose(ours, tokens)
    assert ours.retrieve(tokens[:hit], "a request") == got
    ours.engine.lookup_unpin("a request")
    ours.kv.fill(1)
    ours.store(tokens, skip=hit)
    ours.kv.fill(2)
    ours.store(tokens, skip=got)
    reader, last = engine_of(revision=name), ours.keys(tokens)[5]
    assert not reader.plugin.contains(last) and not own_memory(ours).contains(last)
    assert len(heard) == 1 and "could not be loaded: what the engine computes" in heard[0], heard
    ours.past_doubt()
    ours.store(tokens, skip=got)
    assert reader.lookup(tokens) == reader.retrieve(tokens) == len(tokens)
    assert torch.equal(reader.kv.bytes(hit, len(tokens)), ours.kv.bytes(hit, len(tokens)))


def came_short(ours: Engine, tokens: list[int]) -> None:
    """A load of a prompt, of which all but its last chunk is stored, gets its first three."""
    ours.lookup(tokens[:-CHUNK])
    ours.store(tokens[:-CHUNK])
    ours.lookup(tokens, "a request")
    lost_in_the_pool(ours, tokens)
    assert ours.retrieve(tokens[:-CHUNK], "a request") == 3 * CHUNK
    ours.engine.lookup_unpin("a request")


def kept(ours: Engine, tokens: list[int], skip: int = 0) -> int:
    """How many chunks are in the pool once they were looked up, computed and stored."""
    ours.lookup(tokens)
    ours.store(tokens, skip)
    return [ours.plugin.contains(key) for key in ours.keys(tokens)].count(True)


def test_a_prompt_that_shares_a_part_of_the_lost_chunk_is_not_kept_from_there_on(
    engine_of: Engines,
) -> None:
    """It has that part from vLLM's blocks, which hold anything, and a chunk of its own name."""
    ours, tokens = engine_of(revision="a part"), prompt(2)
    came_short(ours, tokens)
    theirs = [*tokens[: 3 * CHUNK + 8], *OTHERS]
    assert kept(ours, theirs, skip=3 * CHUNK) == 3
    assert kept(ours, OTHERS) == 2, "another prompt is"


def test_the_lost_chunk_itself_is_not_taken_for_computed_again(engine_of: Engines) -> None:
    """Another prompt of that step, whose lookup found less, submits it from the same blocks."""
    ours, tokens = engine_of(revision="itself"), prompt(3)
    came_short(ours, tokens)
    assert kept(ours, tokens[: 4 * CHUNK], skip=3 * CHUNK) == 3


def test_where_a_prompt_s_first_chunk_is_lost_nothing_is_kept(engine_of: Engines) -> None:
    """Any prompt may begin as it does, for less than a chunk."""
    ours, tokens = engine_of(revision="first"), prompt(4, 1)
    ours.store(tokens)
    ours.lookup(tokens, "a request")
    ours.plugin.remove(ours.keys(tokens)[0])
    assert ours.retrieve(tokens, "a request") == 0
    assert kept(ours, OTHERS) == 0
    ours.past_doubt()
    assert kept(ours, OTHERS) == 2


def test_a_chunk_of_which_nobody_knows_what_is_before_it_is_not_kept(engine_of: Engines) -> None:
    ours, tokens = engine_of(revision="unknown"), prompt(5)
    ours.store(OTHERS)
    assert ours.lookup(OTHERS) == 2 * CHUNK, "it is where nothing is in doubt"
    came_short(ours, tokens)
    unknown = prompt(6, 3)
    ours.store(unknown, skip=CHUNK)
    assert not any(map(ours.plugin.contains, ours.keys(unknown)))


def test_a_rank_whose_own_load_was_whole_hears_of_the_others(engine_of: Engines) -> None:
    """What it computes is computed from what they hold, too."""
    tokens, hit = prompt(7), 5 * CHUNK
    one, other = (
        engine_of(metadata={**OF_TWO, "worker_id": rank}, revision="of two") for rank in (0, 1)
    )
    for rank in (one, other):
        rank.lookup(tokens[:hit])
        rank.store(tokens[:hit])
    for rank in (one, other):
        assert rank.lookup(tokens, "a request") == hit
    lost_in_the_pool(one, tokens)
    assert one.retrieve(tokens[:hit], "a request") == 3 * CHUNK
    assert other.retrieve(tokens[:hit], "a request") == hit
    for rank in (one, other):
        rank.store(tokens, skip=hit)
        assert not rank.plugin.contains(rank.keys(tokens)[5])


def test_where_ranks_are_on_other_hosts_nothing_is_kept_behind_a_load(
    engine_of: Engines, heard: list[str]
) -> None:
    tokens = prompt(8)
    ours = engine_of(metadata={**OF_TWO, "local_world_size": 1}, revision="elsewhere")
    assert kept(ours, tokens[:-CHUNK]) == 5, "it was computed whole"
    assert ours.lookup(tokens, "a request") == ours.retrieve(tokens[:-CHUNK], "a request")
    ours.engine.lookup_unpin("a request")
    assert kept(ours, tokens, skip=5 * CHUNK) == 5
    assert "several hosts, where loads may fail unheard" in heard[0]


def test_a_scheduler_that_is_told_how_many_came_was_promised_nothing(engine_of: Engines) -> None:
    ours, tokens = engine_of(revision="ahead"), prompt(9)
    ours.lookup(tokens)
    ours.store(tokens)
    keys = ours.keys(tokens)
    lost_in_the_pool(ours, tokens)
    assert asyncio.run(ours.plugin.batched_async_contains("a lookup", keys, True)) == 3
    found = asyncio.run(ours.plugin.batched_get_non_blocking("a lookup", keys))
    for one in found:
        one.ref_count_down()
    assert len(found) == 3 and kept(ours, tokens, skip=3 * CHUNK) == 6


def test_a_mark_lapses_and_is_everyone_s_only_where_there_is_no_row_left() -> None:
    now = [5]
    marks = Lost("an engine", 1, lambda: now[0])
    marks.mark(7)
    now[0] += LOST_NS - 1
    marks.mark(8)
    assert marks.marked() == {7, 8}
    now[0] += 1
    assert marks.marked() == {8}
    many = {8 + step * (ROWS - 1) for step in range(ROWS - 1)}
    for name in (*many, *many):
        marks.mark(name)
    assert marks.marked() == many
    marks.mark(7)
    assert marks.marked() == many | {EVERYTHING}


def test_marks_of_before_the_host_s_start_are_nothing(host: None) -> None:
    before = Lost("an engine", 2, lambda: 3 * LOST_NS)
    before.mark(7)
    assert Lost("an engine", 2, lambda: 3 * LOST_NS).marked() == {7}
    assert Lost("another", 2, lambda: 3 * LOST_NS).marked() == set()
    assert Lost("an engine", 2, lambda: LOST_NS).marked() == set()


def test_ranks_that_cannot_tell_one_another_are_refused(
    engine_of: Engines, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost, "SHARED", Path("/nowhere"))
    assert engine_of(revision="alone").plugin is not None
    assert engine_of(metadata=OF_TWO).plugin is None
    assert "of loads that failed" in heard[0] and "in /nowhere is wanted" in heard[0]
