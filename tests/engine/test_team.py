"""Ranks that share an engine on a real pool: whatever one of them meets, all do the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory, Match, Miss
from kvstore.engine.core import EngineSettings
from kvstore.engine.errors import BadRequest
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool_use import Found, agreed, same_copies
from kvstore.engine.reference import Reference
from tests.engine.asks import NEW, ask, check, flip_a_bit, leave, swap_heads
from tests.engine.runs import prompt
from tests.engine.teams import TeamEngine
from tests.nodes import eventually

Make = Callable[..., TeamEngine]


@pytest.fixture
def clients(node: Stack, model_dir: Path) -> Iterator[Callable[[int], list[Client]]]:
    spec, where = spec_of(model_dir), node.children["node"].log.parent
    yield lambda count: [
        Client(InDirectory(where), spec, deadline_seconds=20.0) for _ in range(count)
    ]


@pytest.fixture
def make(model_dir: Path, clients: Callable[[int], list[Client]]) -> Iterator[Make]:
    made: list[TeamEngine] = []

    def engine(ranks: int = 2, batch_tokens: int = 128) -> TeamEngine:
        settings = EngineSettings(pages=96, max_batch_tokens=batch_tokens)
        made.append(TeamEngine(model_dir, clients(ranks), settings))
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def looking(clients: Callable[[int], list[Client]]) -> Iterator[Client]:
    (client,) = clients(1)
    yield client
    client.close()


def test_what_a_rank_lacks_none_may_use_and_while_one_waits_all_wait() -> None:
    whole = Found(tokens=300, sealed_tokens=256, loaded_bytes=10)
    short = Found(tokens=128, sealed_tokens=128, loaded_bytes=4, miss=Miss.DAMAGED)
    assert agreed([whole]) == whole
    assert agreed([whole, short, whole]) == Found(False, 128, 128, 24, Miss.DAMAGED)
    assert agreed([whole, Found(landing=True)]).landing
    followed = Found(tokens=300, sealed_tokens=64, loaded_bytes=10)
    assert agreed([whole, followed]).sealed_tokens == 64
    for one in (whole, short):
        assert Found.of(one.numbers()) == one


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_prompt_is_published_by_heads_and_loaded_by_heads(
    make: Make, reference: Reference, looking: Client, node: Stack, ranks: int
) -> None:
    tokens = prompt(300, seed=ranks)
    first = ask(make(ranks).worker, "first", tokens)
    assert first.finish() == reference.tokens(tokens, NEW)
    assert first.use.pool_tokens == 0 and first.use.complete
    assert first.use.published_blocks == len(looking.chain(tokens)) == 5
    assert looking.match(looking.chain(tokens)).blocks == 5
    again = ask(make(ranks).worker, "again", tokens)
    assert again.finish() == reference.tokens(tokens, NEW)
    assert again.use.pool_tokens == 300
    assert again.started is not None and again.started.computed_tokens == 1
    rank_bytes = 300 * 3 * looking.space.layout.token_bytes * max(1, 2 // ranks)
    assert again.use.loaded_bytes == ranks * rank_bytes
    check(node)


@pytest.mark.parametrize("head", [0, 1])
def test_a_strip_that_one_rank_finds_damaged_is_computed_by_all(
    make: Make, reference: Reference, looking: Client, head: int
) -> None:
    tokens = prompt(320, seed=10 + head)
    ask(make().worker, "first", tokens).finish()
    flip_a_bit(looking, tokens, block=2, head=head)
    run = ask(make().worker, "again", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert (run.use.pool_tokens, run.use.miss) == (128, Miss.DAMAGED)
    assert looking.match(looking.chain(tokens)).blocks == 5, "stored anew by both"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_reach_the_pool_costs_reuse_and_nothing_else(
    make: Make,
    model_dir: Path,
    reference: Reference,
    looking: Client,
    clients: Callable[[int], list[Client]],
    tmp_path: Path,
    rank: int,
) -> None:
    known, new = prompt(200, seed=20 + rank), prompt(200, seed=30 + rank)
    ask(make().worker, "known", known).finish()
    mixed = clients(2)
    mixed[rank].close()
    mixed[rank] = Client(InDirectory(tmp_path), spec_of(model_dir))
    engine = TeamEngine(model_dir, mixed, EngineSettings(pages=32))
    try:
        run = ask(engine.worker, "lost", known)
        assert run.finish() == reference.tokens(known, NEW)
        assert run.use.pool_tokens == run.use.hand_off_tokens == 0
        run = ask(engine.worker, "unsealed", new)
        assert run.finish() == reference.tokens(new, NEW)
        assert not run.use.complete and run.use.published_blocks == 0
        found = looking.match(looking.chain(new))
        assert found in (Match(0, 0, Miss.UNSEALED), Match(0, 0, Miss.ABSENT))
    finally:
        engine.close()


def test_ranks_do_not_mix_the_heads_of_two_writers(
    make: Make, reference: Reference, looking: Client
) -> None:
    tokens = prompt(256, seed=35)
    ask(make().worker, "first", tokens).finish()
    engine, opened = make(), threading.Event()
    open_first, open_second = engine.pools[0]._open, engine.pools[1]._open

    def then_say_so(*of: Any) -> None:
        open_first(*of)
        opened.set()

    def after_a_change(*of: Any) -> None:
        assert opened.wait(60.0)
        swap_heads(looking, tokens, block=1)
        open_second(*of)

    engine.pools[0]._open = then_say_so  # type: ignore[method-assign]
    engine.pools[1]._open = after_a_change  # type: ignore[method-assign]
    run = ask(engine.worker, "again", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert (run.use.pool_tokens, run.use.miss) == (0, Miss.EVICTED)


def test_copies_are_the_same_by_slot_or_by_root() -> None:
    assert same_copies([(1, 2)]) and same_copies([(1, 2), (1, 0)]) and same_copies([(1, 2), (3, 2)])
    assert not same_copies([(1, 2), (3, 4)]) and not same_copies([(1, 0), (3, 0)])


def test_one_team_follows_another_while_it_writes(
    make: Make, reference: Reference, node: Stack
) -> None:
    prefill, decode = make(2, batch_tokens=64), make(4)
    followed = 0
    for seed in range(40, 44):
        tokens = prompt(500 + seed, seed=seed)
        writing = ask(prefill.worker, f"p{seed}", tokens, new=1)
        run = ask(decode.worker, f"d{seed}", tokens, hand_offs=writing.hand_off())
        assert run.finish() == reference.tokens(tokens, NEW)
        writing.finish()
        assert run.use.pool_tokens + run.use.hand_off_tokens == len(tokens)
        followed += run.use.hand_off_tokens
    assert followed > 0, "some of it was read before it was sealed"
    check(node)


def test_requests_side_by_side_and_one_that_is_cancelled_leave_the_ranks_in_step(
    make: Make, reference: Reference, node: Stack
) -> None:
    engine = make(2, batch_tokens=64)
    prompts = [prompt(length, seed=50) for length in (3, 150, 64, 65, 1, 200)]
    runs = [ask(engine.worker, f"r{i}", tokens) for i, tokens in enumerate(prompts)]
    gone = ask(engine.worker, "gone", prompt(900, seed=51))
    leave(engine.worker, gone)
    runs.append(ask(engine.worker, "late", prompts[1]))
    for run, tokens in zip(runs, [*prompts, prompts[1]], strict=True):
        assert run.finish() == reference.tokens(tokens, NEW)
    assert not gone.tokens or gone.started is not None
    for core in engine.cores:
        core.cache.check()
        eventually(lambda core=core: core.cache.allocator.free == core.cache.allocator.pages)
    check(node)


def test_a_request_that_is_refused_is_refused_by_all(make: Make, reference: Reference) -> None:
    engine, tokens = make(), prompt(400, seed=60)
    run = ask(engine.worker, "same", tokens)
    with pytest.raises(BadRequest, match="waiting or running"):
        ask(engine.worker, "same", prompt(10)).finish()
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.published_blocks >= 7, "the twin did not take its windows away"
    assert ask(engine.worker, "next", tokens).finish() == reference.tokens(tokens, NEW)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_fails_at_one_rank_ends_the_engine(make: Make, rank: int) -> None:
    engine = make()

    def fail(*_: object) -> None:
        raise OSError("a fault of this rank alone")

    engine.pools[rank].layer_done = fail  # type: ignore[method-assign]
    with pytest.raises(Exception):  # noqa: B017  (whichever of the two errors rank 0 has)
        ask(engine.worker, "r", prompt(100)).finish()
    eventually(lambda: engine.worker.error is not None and engine.errors)
    assert "a fault of this rank alone" in f"{engine.worker.error} {engine.errors}"
