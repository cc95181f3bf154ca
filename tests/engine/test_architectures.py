"""Every decoder style the config admits gives transformers' tokens, from its own files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvstore.engine.config import ModelConfig
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.reference import Reference
from kvstore.engine.rope import frequencies
from tests.engine.runs import prompt, run
from tests.engine.styles import SIZES, STYLES, save_model


def _tokens_agree(folder: Path) -> bool:
    core, reference = EngineCore.load(folder, EngineSettings(pages=16)), Reference(folder)
    prompts = [prompt(length, vocab=300) for length in (5, 129)]
    return all(run(core, tokens) == reference.tokens(tokens, 12) for tokens in prompts)


@pytest.mark.parametrize("style", STYLES)
def test_a_decoder_style_gives_the_reference_tokens(style: str, tmp_path: Path) -> None:
    assert _tokens_agree(save_model(tmp_path, style))


@pytest.mark.parametrize("scaling", ["llama3", "linear"])
def test_scaled_rope_turns_as_fast_as_in_transformers(scaling: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings = SIZES | STYLES[f"llama with {scaling} rope"][1] | {"head_dim": 64}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**settings)).inv_freq
    raw = settings | {"architectures": ["LlamaForCausalLM"]}
    ours = frequencies(ModelConfig.read(raw).rope, 64)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_a_sharded_checkpoint_gives_the_reference_tokens(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2 with its biases", shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert _tokens_agree(tmp_path)


def test_a_window_that_qwen2_names_but_leaves_off_is_not_in_use(tmp_path: Path) -> None:
    config = ModelConfig.load(save_model(tmp_path, "qwen2 with its biases"))
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (True, False, False)
