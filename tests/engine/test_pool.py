"""Engines on a real pool: tokens equal those of transformers, whatever the pool had or lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory, Memory, Miss, Overloaded, Writer
from kvstore.client.reserving import Reserving
from kvstore.engine import storing
from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.device import CPU
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Request
from kvstore.engine.storing import Beside
from kvstore.engine.worker import Worker
from tests.engine.asks import NEW, Run, ask, check, counters, flip_a_bit, leave
from tests.engine.runs import finish, prompt


class Engine:
    """An engine with a client of its own, as a process would have."""

    def __init__(self, model: Model, client: Client, batch_tokens: int = 128) -> None:
        self.client = client
        core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=batch_tokens))
        self.pool = Pool(client, core.cache)
        self.worker = Worker(core, self.pool)
        self.worker.start()

    def ask(self, name: str, tokens: list[int], **wishes: Any) -> Run:
        return ask(self.worker, name, tokens, **wishes)

    def close(self) -> None:
        self.worker.stop(5.0)
        self.client.close()


@pytest.fixture
def make(node: Stack, model: Model, model_dir: Path) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []
    spec = spec_of(model_dir)

    def engine(**options: int) -> Engine:
        where = InDirectory(node.children["node"].log.parent)
        made.append(Engine(model, Client(where, spec, deadline_seconds=20.0), **options))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def test_a_cold_prompt_is_computed_and_published(
    make: Callable[..., Engine], reference: Reference, node: Stack
) -> None:
    engine, tokens = make(), prompt(300, seed=1)
    run = engine.ask("a", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.pool_tokens == 0 and run.use.miss == Miss.ABSENT
    chain = engine.client.chain(tokens)
    assert engine.client.match(chain).blocks == len(chain) == 5, "the tail block too"
    check(node)


def test_only_what_a_request_looks_for_to_load_is_counted(
    make: Callable[..., Engine], node: Stack
) -> None:
    engine, tokens = make(), prompt(300, seed=2)

    def counted() -> tuple[int, int, int]:
        totals = counters(node)
        misses = sum(value for name, value in totals.items() if name.startswith("match_miss"))
        return totals["query_tokens"], totals["hit_tokens"], misses

    before = counted()
    engine.ask("cold", tokens, new=80).finish()  # its reply fills blocks, and they are stored
    cold = counted()
    engine.ask("warm", tokens).finish()
    warm = counted()
    assert [b - a for a, b in zip(before, cold, strict=True)] == [300, 0, 1]
    assert [b - a for a, b in zip(cold, warm, strict=True)] == [300, 300, 0]


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layers [a, b) of each put from now on."""
    noted, put = list[tuple[int, int]](), Writer.put

    def watched(writer: Writer, memory: Memory, part: Any = None, **more: Any) -> None:
        of = part or writer.fragment
        noted.append((of.layer_first, of.layer_first + of.layers))
        put(writer, memory, part, **more)

    monkeypatch.setattr(Writer, "put", watched)
    return noted


@pytest.mark.parametrize("length", [63, 64, 100])
def test_each_layer_of_a_prompt_is_stored_once_and_no_step_of_its_reply_stores_any(
    make: Callable[..., Engine], puts: list[tuple[int, int]], length: int
) -> None:
    make().ask("a", prompt(length, seed=90)).finish()
    assert puts[:3] == [(0, 1), (1, 2), (2, 3)]
    assert set(puts[3:]) <= {(0, 3)}, "a block that the reply has filled"


BLOCK_LAYER_BYTES = 64 * 2 * 2 * 16 * 4  # tokens, KV heads, K and V, dim, float32


@pytest.mark.parametrize(
    ("layers", "expected"), [(1, [(0, 1), (1, 2), (2, 3)]), (2, [(0, 2), (2, 3)]), (9, [(0, 3)])]
)
def test_beside_the_step_so_many_layers_are_stored_at_once_as_a_bus_is_busy_with(
    make: Callable[..., Engine],
    model: Model,
    reference: Reference,
    puts: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    layers: int,
    expected: list[tuple[int, int]],
) -> None:
    monkeypatch.setattr(storing, "TOGETHER_BYTES", layers * 2 * BLOCK_LAYER_BYTES)
    core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=128))
    core.hooks = pool = Pool(make().client, core.cache, device=replace(CPU, storing=Beside))
    tokens = prompt(256, seed=910 + layers)  # two steps of two blocks
    pool.expect("a", PoolUse())
    core.add(Request("a", tuple(tokens), NEW, ignore_eos=True))
    assert finish(core)["a"] == reference.tokens(tokens, NEW)
    assert puts[: 2 * len(expected)] == 2 * expected and pool.failures == 0
    pool.expect("b", PoolUse())
    core.add(Request("b", tuple(tokens), NEW, ignore_eos=True))
    assert finish(core)["b"] == reference.tokens(tokens, NEW), "from the pool"
    pool.close()


def test_windows_are_waited_for_by_the_first_layer_that_is_stored_and_no_sooner(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, reply, put = list[str](), Reserving.reply, Pool.layer_done

    def replied(asked: Reserving) -> Any:
        moments.append("answer")
        return reply(asked)

    def layer_done(pool: Pool, layer: int, chunks: Any) -> None:
        moments.append(f"layer {layer}")
        put(pool, layer, chunks)

    monkeypatch.setattr(Reserving, "reply", replied)
    monkeypatch.setattr(Pool, "layer_done", layer_done)
    make().ask("a", prompt(64, seed=92)).finish()
    assert moments[:4] == ["layer 0", "answer", "layer 1", "layer 2"]


def test_a_prompt_whose_windows_are_refused_is_computed_and_no_other_is_held_back(
    make: Callable[..., Engine], reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: Reserving) -> Any:
        raise Overloaded("no room")

    engine, tokens = make(), prompt(200, seed=93)
    with monkeypatch.context() as full:
        full.setattr(Reserving, "reply", refused)
        run = engine.ask("a", tokens)
        assert run.finish() == reference.tokens(tokens, NEW)
    assert not run.use.complete and run.use.published_blocks == 0
    assert engine.pool.failures == 2, "the prompt's, and those of its reply"
    again = engine.ask("b", tokens)
    assert again.finish() == reference.tokens(tokens, NEW)
    assert again.use.complete and engine.client.match(engine.client.chain(tokens)).blocks == 4


def test_windows_whose_hand_off_is_refused_are_not_asked_for_again_by_what_would_be_stored(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, reply = list[Reserving](), Reserving.reply

    def refused_once(one: Reserving) -> Any:
        asked.append(one)
        if len(asked) > 1:
            return reply(one)
        one.drop()
        raise Overloaded("no room")

    engine, tokens = make(), prompt(200, seed=94)
    monkeypatch.setattr(Reserving, "reply", refused_once)
    run = engine.ask("a", tokens, new=1)  # a prefill: whoever follows is told of its windows
    run.finish()
    assert len(asked) == 1 and engine.pool.failures == 1
    assert not run.use.complete and run.use.published_blocks == 0


def test_a_request_that_ends_as_storing_breaks_lets_its_windows_go(
    make: Callable[..., Engine], model: Model, node: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=128))
    core.hooks = pool = Pool(make().client, core.cache, device=replace(CPU, storing=Beside))
    settles, settle = threading.Event(), Beside.settle

    def broken(writer: Writer, *_: Any, **__: Any) -> None:
        assert settles.wait(30.0)
        raise ZeroDivisionError

    def settled(one: Beside) -> Any:
        settles.set()
        return settle(one)

    monkeypatch.setattr(Writer, "put", broken)
    monkeypatch.setattr(Beside, "settle", settled)
    pool.expect("a", PoolUse())
    core.add(Request("a", tuple(prompt(64, seed=95)), 1))
    with pytest.raises(ZeroDivisionError):
        core.step()
    assert not core.abort("a"), "it has ended"
    pool.forget("a")
    check(node)
    pool.close()


@pytest.mark.parametrize("length", [256, 300, 64, 65, 63])
def test_a_full_prefix_hit_computes_the_last_prompt_token_only(
    make: Callable[..., Engine], reference: Reference, length: int
) -> None:
    tokens = prompt(length, seed=2)
    make().ask("first", tokens).finish()
    run = make().ask("again", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.pool_tokens == length
    assert run.started is not None and run.started.computed_tokens == 1


def test_a_partial_hit_computes_from_the_last_whole_block(
    make: Callable[..., Engine], reference: Reference
) -> None:
    shared = prompt(200, seed=3)
    make().ask("first", shared + prompt(70, seed=4)).finish()
    tokens = shared + prompt(90, seed=5)
    run = make().ask("second", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.pool_tokens == 192 and run.use.miss == Miss.ABSENT


@pytest.mark.parametrize("shared, found", [(192, 192), (191, 128), (128, 128)])
def test_what_a_step_computes_of_two_prompts_is_computed_for_one(
    make: Callable[..., Engine], model: Model, reference: Reference, shared: int, found: int
) -> None:
    core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=128))
    core.hooks = pool = Pool(make().client, core.cache)
    first = prompt(230, seed=41)  # 128 tokens in a step, and 102 in another that has room for more
    second = [*first[:shared], *prompt(50, seed=42)]
    outputs: dict[str, tuple[int, ...]] = {}
    for name, tokens in (("first", first), ("second", second)):
        pool.expect(name, PoolUse())
        core.add(Request(name, tuple(tokens), NEW, ignore_eos=True))
    while not core.idle:
        ends = [one for one in core.step() if isinstance(one, FinishEvent)]
        outputs |= {one.request_id: one.output for one in ends}
        if ends and ends[0].request_id == "second":
            assert ends[0].cached_tokens == found
    for name, tokens in (("first", first), ("second", second)):
        assert list(outputs[name]) == reference.tokens(tokens, NEW)


def test_the_second_turn_finds_the_blocks_of_the_reply(
    make: Callable[..., Engine], reference: Reference
) -> None:
    first = prompt(120, seed=6)
    reply = make().ask("turn 1", first, new=40).finish()
    second = first + reply + prompt(30, seed=7)
    run = make().ask("turn 2", second)
    assert run.finish() == reference.tokens(second, NEW)
    assert run.use.pool_tokens == 128, "two blocks, of which the second holds reply tokens"


def test_a_decode_engine_follows_a_prefill_layer_by_layer_while_it_is_written(
    make: Callable[..., Engine], reference: Reference, node: Stack
) -> None:
    prefill, decode, opened = make(batch_tokens=64), make(), threading.Event()
    open_them, seal = decode.pool._open, prefill.pool.chunk_done

    def then_say_so(*of: Any) -> None:
        open_them(*of)
        opened.set()

    def once_they_are_open(*of: Any) -> None:
        assert opened.wait(60.0)
        seal(*of)

    decode.pool._open = then_say_so  # type: ignore[method-assign]
    prefill.pool.chunk_done = once_they_are_open  # type: ignore[method-assign]
    for seed in range(10, 14):
        opened.clear()
        tokens = prompt(500 + seed, seed=seed)
        writing = prefill.ask(f"p{seed}", tokens, new=1)
        run = decode.ask(f"d{seed}", tokens, hand_offs=writing.hand_off())
        assert run.finish() == reference.tokens(tokens, NEW)
        writing.finish()
        assert run.use.pool_tokens + run.use.hand_off_tokens == len(tokens)
        assert run.use.hand_off_tokens > 0, "some of it was read before it was sealed"
    check(node)


def test_a_followed_prefill_that_is_cancelled_costs_a_recompute(
    make: Callable[..., Engine], reference: Reference, node: Stack
) -> None:
    prefill, decode = make(batch_tokens=64), make()
    tokens = prompt(900, seed=20)
    writing = prefill.ask("p", tokens, new=1)
    run = decode.ask("d", tokens, hand_offs=writing.hand_off())
    leave(prefill.worker, writing)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.hand_off_tokens < len(tokens)
    check(node)


def test_a_flipped_bit_is_a_counted_miss_and_the_tokens_stay_right(
    make: Callable[..., Engine], reference: Reference
) -> None:
    engine, tokens = make(), prompt(320, seed=30)
    engine.ask("first", tokens).finish()
    flip_a_bit(engine.client, tokens, block=2)
    run = make().ask("again", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert run.use.pool_tokens == 128 and run.use.miss == Miss.DAMAGED
    # The recompute stored the block anew, and so listed what lies behind it.
    assert engine.client.match(engine.client.chain(tokens)).blocks == 5


def test_what_another_writer_had_sealed_first_was_not_published_here(
    node: Stack, model: Model, model_dir: Path
) -> None:
    where, tokens = InDirectory(node.children["node"].log.parent), tuple(prompt(640, seed=45))
    uses, cores = [PoolUse(), PoolUse()], []
    with Client(where, spec_of(model_dir), deadline_seconds=20.0) as client:
        for use in uses:
            core = EngineCore(model, EngineSettings(pages=96, max_batch_tokens=320))
            core.hooks = pool = Pool(client, core.cache)
            pool.expect("r", use)
            core.add(Request("r", tokens, 1))
            cores.append(core)
        # The second finds half of it, and computes the other half before the first gets there.
        for core in (*cores, cores[0]):
            core.step()
        assert all(core.idle for core in cores)
        assert [use.published_blocks for use in uses] == [5, 5]
    assert all(use.complete for use in uses)


def test_a_request_can_do_without_a_node(
    model: Model, model_dir: Path, reference: Reference, tmp_path: Path
) -> None:
    engine = Engine(model, Client(InDirectory(tmp_path), spec_of(model_dir)))
    tokens = prompt(150, seed=40)
    run = engine.ask("alone", tokens)
    assert run.finish() == reference.tokens(tokens, NEW)
    assert engine.pool.failures > 0
    assert not run.use.complete, "nobody is told that it was published"
    engine.close()
