"""Models of random weights, made where they are computed: figures of a GPU are taken with these.

There is no folder to read or to hash, so one of 8 billion weights is there in seconds.
"""

from __future__ import annotations

import torch

from kvstore.client import KVGroup, KVSpec
from kvstore.engine.config import ModelConfig
from kvstore.engine.device import Device
from kvstore.engine.model import Model
from kvstore.engine.weights import LayerWeights, Linear, Weights

BLOCK_TOKENS = 64
DEVIATION = 0.02  # of the weights
LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=4096,
    intermediate_size=14_336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab_size=128_256,
    max_positions=32_768,
    rms_eps=1e-5,
    dtype="bfloat16",
)


def random_model(config: ModelConfig, device: Device) -> Model:
    """The same one each time, on one kind of device."""
    torch.manual_seed(0)
    return Model(config, _weights(config, device.place), device=device)


def namespace_of(name: str, config: ModelConfig) -> KVSpec:
    """Of a bench alone, for blocks of `BLOCK_TOKENS`."""
    group = KVGroup(tuple(range(config.layers)), config.kv_heads, config.head_dim, BLOCK_TOKENS)
    return KVSpec(f"bench/{name}", "1", config.dtype, (group,))


def token_bytes(config: ModelConfig) -> int:
    """KV of one token."""
    item: int = getattr(torch, config.dtype).itemsize
    return config.layers * config.kv_heads * 2 * config.head_dim * item


def _weights(config: ModelConfig, place: torch.device) -> Weights:
    dtype: torch.dtype = getattr(torch, config.dtype)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=place).normal_(0.0, DEVIATION)

    def ones() -> torch.Tensor:
        return torch.ones(config.hidden_size, dtype=dtype, device=place)

    hidden, wide = config.hidden_size, config.intermediate_size
    heads = config.heads * config.head_dim
    layers = tuple(
        LayerWeights(
            input_norm=ones(),
            qkv=Linear(drawn(heads + 2 * config.kv_heads * config.head_dim, hidden)),
            o=Linear(drawn(hidden, heads)),
            q_norm=None,
            k_norm=None,
            post_norm=ones(),
            gate_up=Linear(drawn(2 * wide, hidden)),
            down=Linear(drawn(hidden, wide)),
        )
        for _ in range(config.layers)
    )
    embedding, head = drawn(config.vocab_size, hidden), drawn(config.vocab_size, hidden)
    return Weights(embedding, layers, ones(), head)
