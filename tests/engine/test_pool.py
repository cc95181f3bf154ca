"""Engines on a real pool: tokens equal those of transformers, whatever the pool had or lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.stack import Stack
from kvstore.client import Client, InDirectory, Miss, Writer
from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Request
from kvstore.engine.worker import Worker
from tests.engine.asks import NEW, Run, ask, check, flip_a_bit, leave
from tests.engine.runs import prompt


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


@pytest.mark.parametrize("length", [63, 64, 100])
def test_each_layer_of_a_prompt_is_stored_once_and_no_step_of_its_reply_stores_any(
    make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    stored: list[int] = []
    put_layer = Writer.put_layer

    def noted(writer: Writer, layer: int, *about: Any, **more: Any) -> None:
        stored.append(layer)
        put_layer(writer, layer, *about, **more)

    monkeypatch.setattr(Writer, "put_layer", noted)
    make().ask("a", prompt(length, seed=90)).finish()
    assert stored == [0, 1, 2]


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
    prefill, decode = make(batch_tokens=64), make()
    for seed in range(10, 14):
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
