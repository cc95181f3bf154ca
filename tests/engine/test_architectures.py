"""Every decoder style the config admits gives transformers' tokens, from its own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvstore.engine.config import ModelConfig
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.reference import Reference
from kvstore.engine.rope import frequencies
from tests.engine.runs import prompt, run

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 with its biases": ("Qwen2", {"sliding_window": 32, "use_sliding_window": False}),
    "qwen2 with tied embeddings": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3 with q and k norms": ("Qwen3", {"head_dim": 24}),
    "llama with grouped heads": ("Llama", {}),
    "llama with one KV head": ("Llama", {"num_key_value_heads": 1}),
    "llama with as many KV heads as heads": ("Llama", {"num_key_value_heads": 4}),
    "llama with tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "llama with every bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    ),
}


def _save(folder: Path, style: str, **saving: Any) -> Path:
    """A random model of the style, its norms and biases made to matter."""
    import transformers

    family, settings = STYLES[style]
    config = getattr(transformers, f"{family}Config")(**(SIZES | settings))
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder, **saving)
    return folder


def _tokens_agree(folder: Path) -> bool:
    core, reference = EngineCore.load(folder, EngineSettings(pages=16)), Reference(folder)
    prompts = [prompt(length, vocab=300) for length in (5, 129)]
    return all(run(core, tokens) == reference.tokens(tokens, 12) for tokens in prompts)


@pytest.mark.parametrize("style", STYLES)
def test_a_decoder_style_gives_the_reference_tokens(style: str, tmp_path: Path) -> None:
    assert _tokens_agree(_save(tmp_path, style))


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
    _save(tmp_path, "qwen2 with its biases", max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert _tokens_agree(tmp_path)


def test_a_window_that_qwen2_names_but_leaves_off_is_not_in_use(tmp_path: Path) -> None:
    config = ModelConfig.load(_save(tmp_path, "qwen2 with its biases"))
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (True, False, False)
