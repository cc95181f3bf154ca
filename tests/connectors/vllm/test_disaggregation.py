"""Prefill in one vLLM, decode in another that follows it: what one vLLM alone would have said.

prompt --> prefill (kv_producer) --layers--> pool --layers--> decode (kv_consumer) --> tokens
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm.engine import Engine, Prompt, Round, engine
from tests.connectors.vllm.models import prompt
from tests.nodes import NodeProcess, running

STALL_SECONDS = 60.0
APART = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
CHUNK = 128  # tokens of a step, so that a prompt is several
PROMPTS = [prompt(21, 600), prompt(22, 333), prompt(23, 97)]


@dataclass(frozen=True)
class Pair:
    prefill: Engine
    decode: Engine
    node: NodeProcess
    trace: Path
    alone: Round

    def hand_off(self, tokens: list[int], count: int = 8) -> Round:
        """What a proxy does: both are told at once, and of one name that nobody can guess."""
        name = uuid.uuid4().hex
        self.decode.begin(Prompt(tokens, transfer={"moonpool": {"follow": name}}), tokens=count)
        self.prefill.begin(Prompt(tokens, transfer={"moonpool": {"hand_off": name}}), tokens=1)
        self.prefill.end()
        return self.decode.end()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.trace.read_text().splitlines()]


@pytest.fixture(scope="module")
def pair(model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, logs = model("llama"), tmp_path_factory.mktemp("disaggregation")
    options: dict[str, Any] = {"max_num_batched_tokens": CHUNK, "max_num_seqs": 4}
    extra = {"trace": str(logs / "trace.jsonl"), "stall_ms": int(STALL_SECONDS * 1e3)}
    with engine(folder, logs / "alone.log", **options) as one:
        alone = one.run(*PROMPTS)
    with running(dram="256MiB", slab="8MiB") as node:
        both = {"node": node.address, "extra": extra, **options}
        with (
            # As a server's: steps of its own, also when no request is left.
            engine(
                folder, logs / "prefill.log", role="kv_producer", environment=APART, **both
            ) as prefill,
            engine(folder, logs / "decode.log", role="kv_consumer", **both) as decode,
        ):
            yield Pair(prefill, decode, node, logs / "trace.jsonl", alone)


def test_outputs_are_those_of_one_engine(pair: Pair) -> None:
    for tokens, alone in zip(PROMPTS, pair.alone.outputs, strict=True):
        (found,) = pair.hand_off(tokens).outputs
        assert found.tokens == alone.tokens
        assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        # All but the tokens of the last page, of which the very last is always computed.
        assert found.cached == (len(tokens) - 1) // 32 * 32


def test_layers_are_loaded_while_later_ones_are_computed(pair: Pair) -> None:
    pair.hand_off(prompt(24, 900))
    events = pair.events()
    name = events[-1]["name"]
    stored = [one["seconds"] for one in events if one["what"] == "stored" and one["name"] == name]
    loaded = [one["seconds"] for one in events if one["what"] == "loaded" and one["name"] == name]
    behind = [one for one in loaded if one < stored[-1]]
    assert len(stored) >= 4 * (900 // CHUNK), "each layer of each chunk is stored by itself"
    assert behind, "nothing was loaded before the last layer was stored"


def test_a_prefill_is_followed_from_within_a_block_of_which_vllm_has_the_beginning(
    pair: Pair,
) -> None:
    tokens = prompt(26, 400)
    begun = [*tokens[:96], *prompt(27, 8)]
    pair.decode.run(begun)
    assert pair.decode.run(begun).cached == [96], "a block and a half"
    (found,) = pair.hand_off(tokens).outputs
    assert found.cached == 399 // 32 * 32
    assert found.tokens == pair.prefill.run(tokens).outputs[0].tokens


def test_a_prefill_that_stores_nothing_is_waited_for_until_it_is_over(pair: Pair) -> None:
    tokens = prompt(28, 300)
    began = time.monotonic()
    # Of another prompt, as where the two servers name a prompt's KV otherwise.
    name = uuid.uuid4().hex
    pair.decode.begin(Prompt(tokens, transfer={"moonpool": {"follow": name}}), tokens=8)
    other = {"moonpool": {"hand_off": name}}
    pair.prefill.begin(Prompt(prompt(29, 300), transfer=other), tokens=1)
    pair.prefill.end()
    (found,) = pair.decode.end().outputs
    assert time.monotonic() - began < STALL_SECONDS, "it waited for what does not come"
    assert found.finish == "length" and found.cached == 0


def test_a_prefill_that_never_comes_is_computed_by_the_decode_engine(
    model: Callable[[str], Path], tmp_path: Path, pair: Pair
) -> None:
    tokens = prompt(25, 200)
    extra = {"stall_ms": 300}
    with engine(
        model("llama"),
        tmp_path / "decode.log",
        node=pair.node.address,
        role="kv_consumer",
        extra=extra,
    ) as decode:
        lost = decode.run(Prompt(tokens, transfer={"moonpool": {"follow": "nobody"}}))
        decode.forget()
        assert decode.run(tokens).tokens == lost.tokens
    assert lost.outputs[0].finish == "length"
