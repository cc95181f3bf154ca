"""A prefill engine on one node publishes, a decode engine on another fetches or follows: the tokens
are those of one process, also when the node that was published to dies.

prefill ──▶ node a ──▶ node b ◀── decode
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.engine.reference import Reference
from tests.cluster.engines import NEW, Engine
from tests.cluster.three import SOON_SECONDS, Three
from tests.engine.runs import prompt
from tests.nodes import eventually

LENGTH = 200  # tokens: three whole blocks of 64, and a short one


@pytest.fixture(scope="module")
def engines(standing: Three, model_dir: Path) -> Iterator[tuple[Engine, Engine]]:
    pair = (
        Engine("prefill", standing.all["a"].directory, model_dir),
        Engine("decode", standing.all["b"].directory, model_dir),
    )
    for one in pair:
        one.start()
    for one in pair:
        one.wait_ready()
    yield pair
    for one in pair:
        one.close()


def test_what_one_engine_published_another_host_fetches_and_goes_on_from(
    three: Three, engines: tuple[Engine, Engine], reference: Reference
) -> None:
    prefill, decode = engines

    def fetched(seed: int) -> bool:
        tokens = prompt(LENGTH, seed)
        *_, last = prefill.prefill(f"p{seed}", tokens)
        assert last.done.published
        answer = decode.generate(f"d{seed}", tokens)
        assert answer.tokens == reference.tokens(tokens, NEW)
        return answer.fetched >= 192

    seeds = iter(range(100, 200))
    eventually(lambda: fetched(next(seeds)), SOON_SECONDS)


def test_a_prefill_is_followed_on_another_host_layer_by_layer(
    three: Three, engines: tuple[Engine, Engine], reference: Reference
) -> None:
    prefill, decode = engines

    def followed(seed: int) -> bool:
        tokens = prompt(LENGTH, seed)
        replies = prefill.prefill(f"p{seed}", tokens)
        hand_off = next(replies).hand_off
        answer = decode.generate(f"d{seed}", tokens, hand_off)
        assert answer.tokens == reference.tokens(tokens, NEW)
        list(replies)
        return answer.followed >= 64

    seeds = iter(range(200, 300))
    eventually(lambda: followed(next(seeds)), SOON_SECONDS)


def test_no_request_fails_and_no_token_is_wrong_while_the_publishers_node_dies(
    three: Three, engines: tuple[Engine, Engine], reference: Reference
) -> None:
    prefill, decode = engines
    prompts = [prompt(LENGTH, 300 + seed) for seed in range(20)]
    wanted = [reference.tokens(tokens, NEW) for tokens in prompts]
    for number, tokens in enumerate(prompts):
        list(prefill.prefill(f"k{number}", tokens))
    done = 0
    for turn in range(10):
        for number, tokens in enumerate(prompts):
            if done == 10:
                three.kill("a")
            answer = decode.generate(f"{turn} {number}", tokens)
            assert answer.tokens == wanted[number], f"request {done}"
            done += 1
    assert done == 200
