"""Random models of every decoder style the config admits, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

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


def save_model(folder: Path, style: str, shard_size: str = "1GB", **settings: Any) -> Path:
    """A random model of the style, its norms and biases made to matter."""
    import transformers

    family, own = STYLES[style]
    config = getattr(transformers, f"{family}Config")(**(SIZES | own | settings))
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder
