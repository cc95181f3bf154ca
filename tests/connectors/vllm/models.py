"""Small real models, made here with fixed seeds: one of each kind of KV cache.

The weights have a standard deviation of 0.1 and no two are tied, so that outputs depend on the KV:
at the customary 0.02 one token repeats whatever lies in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    Gemma3TextConfig,
    PretrainedConfig,
    Qwen3Config,
)

from kvstore.engine.make_model import BOS_ID, EOS_ID, FIRST_WORD_ID, STD, make_model

VOCABULARY = 2048
POSITIONS = 2048
WINDOW = 64  # of sliding layers

SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "initializer_range": STD,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": None,
    "hidden_size": 128,
    "intermediate_size": 256,
}


def llama(folder: Path, seed: int = 0) -> Path:
    """One group of full attention."""
    sizes = {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "intermediate": 256}
    return make_model(folder, seed, head_dim=32, vocab=VOCABULARY, max_positions=POSITIONS, **sizes)


def small_llama(folder: Path) -> Path:
    """A draft for `llama`: one layer, other weights."""
    sizes = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "intermediate": 128}
    return make_model(folder, 7, head_dim=32, vocab=VOCABULARY, max_positions=POSITIONS, **sizes)


def windowed_llama(folder: Path) -> Path:
    """A draft for `llama` whose layers all see a window: vLLM gives them a group of their own."""
    sizes = {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "intermediate": 256}
    make_model(folder, 7, head_dim=32, vocab=VOCABULARY, max_positions=POSITIONS, **sizes)
    said = json.loads((folder / "config.json").read_text())
    said |= {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 4}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def qwen3(folder: Path) -> Path:
    """As Llama, with normalised queries and keys."""
    return _saved(
        folder,
        Qwen3Config(
            **SHARED,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
        ),
    )


def gemma3(folder: Path) -> Path:
    """Two groups: layers 0 and 2 see a window, 1 and 3 everything."""
    return _saved(
        folder,
        Gemma3TextConfig(
            **SHARED,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    )


def deepseek_v2(folder: Path) -> Path:
    """Multi-head latent attention: one head of 512 + 64, the only size its CPU kernel knows."""
    return _saved(
        folder,
        DeepseekV2Config(
            **SHARED,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            first_k_dense_replace=3,  # no layer has experts
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_shared_experts=1,
            moe_intermediate_size=64,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        ),
    )


MAKERS: dict[str, Callable[[Path], Path]] = {
    "llama": llama,
    "small_llama": small_llama,
    "windowed_llama": windowed_llama,
    "qwen3": qwen3,
    "gemma3": gemma3,
    "deepseek_v2": deepseek_v2,
}


def _saved(folder: Path, config: PretrainedConfig, seed: int = 0) -> Path:
    """Random weights of this configuration, and the tokenizer that `make_model` writes."""
    make_model(folder, vocab=VOCABULARY, max_positions=POSITIONS, layers=1, hidden=8, heads=1)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weight in made.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=STD)
    made.save_pretrained(folder)
    return folder


def adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter of `llama`, as PEFT writes one: of its queries and values."""
    folder.mkdir()
    rank, hidden, heads = 4, 128, {"q_proj": 128, "v_proj": 64}
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(heads)}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    draw, weights = torch.Generator().manual_seed(seed), {}
    for layer in range(4):
        for name, size in heads.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (rank, hidden)), ("B", (size, rank))):
                weights[f"{at}.lora_{part}.weight"] = torch.randn(shape, generator=draw) * STD
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


def prompt(seed: int, length: int) -> list[int]:
    """Random words of the vocabulary; the same ones at every call."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD_ID, VOCABULARY, (length,), generator=draw).tolist()
