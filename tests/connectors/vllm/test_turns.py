"""What one engine publishes of a conversation, and what it loads of it again.

Each test takes prompts of its own. `forget` empties vLLM's own prefix cache, so that what comes
after it can only come from the pool; a run before it is the reference: a local hit of that length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import Engine, Prompt, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.nodes import NodeProcess, eventually

BLOCK, PAGE = 64, 32


@dataclass(frozen=True)
class Served:
    engine: Engine
    pool: Pool


@pytest.fixture(scope="module")
def served(
    shared_node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("turns") / "engine.log"
    with engine(model("llama"), log, node=shared_node.address) as made:
        yield Served(made, Pool(shared_node))


def test_a_second_turn_hits_the_blocks_of_the_reply(served: Served) -> None:
    first = prompt(10, 3 * BLOCK + 8)
    (reply,) = served.engine.run(first, tokens=BLOCK).outputs
    second = [*first, *reply.tokens, *prompt(11, 20)]
    end = 4 * BLOCK  # the last token of the reply was never computed
    eventually(lambda: all(served.pool.has(second[:end])))
    local = served.engine.run(second)
    assert (local.cached, local.external[1]) == ([end], 0)
    served.engine.forget()
    loaded = served.engine.run(second)
    assert loaded.external == (len(second), end)
    assert loaded.outputs == local.outputs


def test_a_block_that_decoding_completes_is_published_before_the_request_ends(
    served: Served,
) -> None:
    started = prompt(12, BLOCK - 4)
    served.engine.begin(started, tokens=160)
    # Which tokens come is not known yet, so the pool is asked for a new block and not for which.
    before = served.pool.counter("sealed_blocks")
    eventually(lambda: served.pool.counter("sealed_blocks") > before)
    (reply,) = served.engine.end().outputs
    whole = [*started, *reply.tokens]
    eventually(lambda: all(served.pool.has(whole[: (len(whole) - 1) // BLOCK * BLOCK])))


@pytest.mark.parametrize(
    "local", [2 * BLOCK, 2 * BLOCK + PAGE, PAGE], ids=["at", "inside", "inside the first"]
)
def test_what_vllm_has_itself_is_not_loaded(served: Served, local: int) -> None:
    whole = prompt(20 + local, 6 * BLOCK + 20)
    begun = [*whole[:local], *prompt(30 + local, 8)]
    served.engine.run(whole)
    reference = served.engine.run(whole)
    served.engine.forget()
    served.engine.run(begun)  # now vLLM has the pages of its first `local` tokens
    beginning = served.engine.run(begun)
    assert beginning.cached == [local]
    loaded = served.engine.run(whole)
    assert loaded.external == (len(whole) - local, 6 * BLOCK - local)
    assert loaded.outputs == reference.outputs
    assert served.engine.run(begun).outputs == beginning.outputs, "shared pages were written to"


def test_a_whole_local_hit_asks_the_pool_for_nothing(served: Served) -> None:
    whole = prompt(40, 2 * BLOCK + 20)
    served.engine.run(whole)
    again = served.engine.run(whole)
    assert (again.cached, again.external[1]) == ([2 * BLOCK], 0)


def test_requests_of_two_cache_salts_never_hit_each_other(served: Served) -> None:
    tokens = prompt(50, 3 * BLOCK + 20)
    for salt in ("one", "two", None):
        served.engine.forget()
        new = served.engine.run(Prompt(tokens, salt))
        assert (new.cached, new.external[1]) == ([0], 0), f"{salt} hit what was there before it"
        eventually(lambda salt=salt: all(served.pool.has(tokens, salt=salt or "")))
        served.engine.forget()
        same = served.engine.run(Prompt(tokens, salt))
        assert (same.cached, same.external[1]) == ([3 * BLOCK], 3 * BLOCK)
        assert same.tokens == new.tokens


def test_a_batch_loads_what_each_of_its_prompts_has(served: Served) -> None:
    prompts = [prompt(60 + n, n * BLOCK + 20) for n in (1, 2, 3, 4)]
    cold = served.engine.run(*prompts)
    served.engine.forget()
    loaded = served.engine.run(*prompts, together=True)
    assert loaded.cached == [n * BLOCK for n in (1, 2, 3, 4)]
    assert loaded.tokens == cold.tokens
    for one, other in zip(loaded.outputs, cold.outputs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_prompts_shorter_than_a_block_are_left_alone(served: Served) -> None:
    before = served.pool.blocks
    ran = served.engine.run(prompt(70, 1), prompt(71, 40), tokens=4)
    assert (ran.cached, ran.external[1]) == ([0, 0], 0)
    assert served.pool.blocks == before
