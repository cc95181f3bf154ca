"""Where a prompt's keys depend on its batch, the pool is refused; elsewhere it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglang.srt.configs.model_config import ModelImpl
from sglang.srt.layers.rotary_embedding import base
from sglang.srt.layers.rotary_embedding.rope_variant import (
    DynamicNTKScalingRotaryEmbedding,
    Phi3LongRoPEScaledRotaryEmbedding,
)
from sglang.srt.models.gemma3_causal import Gemma3RotaryEmbedding
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.connectors.sglang.engine import Engine, mha_pool
from tests.connectors.sglang.published import LONGEST, TRAINED, server

Engines = Callable[..., Engine]
DIM = 64  # of a head
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": TRAINED,
    "short_factor": [1.0] * (DIM // 2),
    "long_factor": [9.0] * (DIM // 2),
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
ALONE = [3, 4]  # tokens of a prompt, by where they stand
WITHIN, BEYOND = [*ALONE, TRAINED - 1], [*ALONE, LONGEST - 1]  # and a token of another's


def keys(rope: Any, positions: list[int]) -> torch.Tensor:
    """What one of SGLang's own makes of the first two tokens' keys."""
    states = torch.ones(len(positions), DIM)
    return rope(torch.tensor(positions), states.clone(), states.clone())[1][:2]


def turns(rope: Any, positions: list[int]) -> torch.Tensor:
    """By what one of Transformers', or of its kind, turns the first two tokens' keys."""
    return rope(torch.ones(1), torch.tensor([positions]))[0][0, :2].clone()


def test_sglang_turns_longrope_s_keys_by_what_else_is_in_their_batch() -> None:
    factors = {name: LONG[name] for name in ("short_factor", "long_factor")}
    rope = Phi3LongRoPEScaledRotaryEmbedding(
        DIM, DIM, LONGEST, TRAINED, 10_000, True, torch.float32, **factors
    )
    assert torch.equal(keys(rope, ALONE), keys(rope, WITHIN))
    assert not torch.equal(keys(rope, ALONE), keys(rope, BEYOND))


def test_sglang_itself_settles_dynamic_rope_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_is_cpu", True)  # else it wants the kernel of a GPU
    rope = DynamicNTKScalingRotaryEmbedding(DIM, DIM, TRAINED, 10_000, True, 4.0, torch.float32)
    assert torch.equal(keys(rope.forward_native, ALONE), keys(rope.forward_native, BEYOND))


@pytest.mark.parametrize(
    ("rope", "config", "said"),
    [
        (LlamaRotaryEmbedding, LlamaConfig, DYNAMIC),
        (LlamaRotaryEmbedding, LlamaConfig, LONG),
        (Gemma3RotaryEmbedding, Gemma3TextConfig, DYNAMIC),
    ],
    ids=["dynamic, transformers", "longrope, transformers", "dynamic, gemma 3"],
)
def test_others_code_turns_keys_by_what_else_is_in_their_batch(
    rope: Any, config: Any, said: Any
) -> None:
    sizes = {"hidden_size": DIM, "num_attention_heads": 1, "head_dim": DIM}
    text = config(**sizes, max_position_embeddings=TRAINED)
    text.rope_parameters = {"rope_theta": 10_000.0, "factor": 4.0} | said
    made = rope(text)
    assert torch.equal(turns(made, ALONE), turns(made, WITHIN))
    assert not torch.equal(turns(made, ALONE), turns(made, BEYOND))


@pytest.mark.parametrize("rope", [LONG, {"full_attention": LONG}, LONG | {"rope_type": "su"}])
@pytest.mark.parametrize("impl", [ModelImpl.SGLANG, ModelImpl.TRANSFORMERS])
def test_longrope_is_refused_where_prompts_may_be_longer_than_it_was_trained_for(
    engine_of: Engines, rope: Any, impl: ModelImpl
) -> None:
    with (
        server(rope, impl=impl, model_path="m"),
        pytest.raises(ValueError, match="--context-length 8 is"),
    ):
        engine_of(mha_pool("page_first"))
    with server(rope, longest=TRAINED, impl=impl, model_path="m"):
        engine_of(mha_pool("page_first"))


@pytest.mark.parametrize("rope", [DYNAMIC, {"full_attention": DYNAMIC, "sliding_attention": {}}])
@pytest.mark.parametrize(
    "theirs", [{"impl": ModelImpl.TRANSFORMERS}, {"model_type": "gemma3_text"}]
)
def test_dynamic_rope_is_refused_where_it_goes_by_the_batch(
    engine_of: Engines, rope: Any, theirs: Any
) -> None:
    with (
        server(rope, model_path="m", **theirs),
        pytest.raises(ValueError, match=r"RoPE of type dynamic .* --context-length 8 is right"),
    ):
        engine_of(mha_pool("page_first"))
    with server(rope, longest=TRAINED, model_path="m", **theirs):
        engine_of(mha_pool("page_first"))
    with server(rope, model_path="m"):  # by SGLang's own code
        engine_of(mha_pool("page_first"))
