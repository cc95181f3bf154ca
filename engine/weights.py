"""A decoder's weights from local safetensors: every tensor the config asks for, and none left over.

A tensor left over would be a part of the model that this engine does not compute, so it is an
error, as a missing one is. Projections that read the same input are joined: one matmul, not three.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from .config import ModelConfig
from .errors import BrokenCheckpoint

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Linear:
    """weight (out, in), bias (out,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. q_norm and k_norm are (head_dim,) where the model has them."""

    input_norm: torch.Tensor
    qkv: Linear  # rows: all Q heads, then K heads, then V heads
    o: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: Linear  # rows: gate, then up
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    """embedding and lm_head are (vocab, hidden); one tensor where they are tied."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: torch.Tensor


def load(folder: str | Path, config: ModelConfig) -> Weights:
    """The weights of a Hugging Face folder, in the config's dtype."""
    tensors = dict(_tensors(Path(folder), getattr(torch, config.dtype)))
    weights = _assemble(_Checkpoint(tensors), config)
    # Old exports carry the RoPE frequencies, and tied ones a copy of the embedding: both derived.
    derived = {"lm_head.weight"} if config.tied_embeddings else set()
    unused = {n for n in tensors if not n.endswith("rotary_emb.inv_freq")} - derived
    if unused:
        raise BrokenCheckpoint(
            f"the checkpoint has {len(unused)} tensors that {config.architecture} does not use, "
            f"such as {min(unused)}"
        )
    return weights


def _tensors(folder: Path, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    for path in _files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (a handle, not a dict)
                yield name, file.get_tensor(name).to(dtype)


def _files(folder: Path) -> list[Path]:
    index, single = folder / INDEX, folder / "model.safetensors"
    if index.is_file():
        return [
            folder / n for n in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        ]
    if single.is_file():
        return [single]
    raise BrokenCheckpoint(f"{folder} has neither {single.name} nor {index.name}")


class _Checkpoint:
    """Hands each tensor out once, its shape checked."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise BrokenCheckpoint(f"the checkpoint lacks {name}")
        if tensor.shape != shape:
            raise BrokenCheckpoint(f"{name} is {tuple(tensor.shape)}, the config says {shape}")
        return tensor

    def plain(self, names: tuple[str, ...], rows: tuple[int, ...], columns: int) -> Linear:
        """The named projections joined row-wise, without bias."""
        parts = [self.take(f"{n}.weight", r, columns) for n, r in zip(names, rows, strict=True)]
        return Linear(_joined(parts))

    def biased(self, names: tuple[str, ...], rows: tuple[int, ...], columns: int) -> Linear:
        """The named projections joined row-wise, with their biases."""
        weight = self.plain(names, rows, columns).weight
        parts = [self.take(f"{n}.bias", r) for n, r in zip(names, rows, strict=True)]
        return Linear(weight, _joined(parts))


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _assemble(checkpoint: _Checkpoint, c: ModelConfig) -> Weights:
    embedding = checkpoint.take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    layers = tuple(_layer(checkpoint, f"model.layers.{i}", c) for i in range(c.layers))
    norm = checkpoint.take("model.norm.weight", c.hidden_size)
    if c.tied_embeddings:
        return Weights(embedding, layers, norm, embedding)
    head = checkpoint.take("lm_head.weight", c.vocab_size, c.hidden_size)
    return Weights(embedding, layers, norm, head)


def _layer(checkpoint: _Checkpoint, at: str, c: ModelConfig) -> LayerWeights:
    take, attention, mlp = checkpoint.take, f"{at}.self_attn", f"{at}.mlp"
    qkv = checkpoint.biased if c.qkv_bias else checkpoint.plain
    o = checkpoint.biased if c.o_bias else checkpoint.plain
    dense = checkpoint.biased if c.mlp_bias else checkpoint.plain
    q, kv, wide = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.intermediate_size
    return LayerWeights(
        input_norm=take(f"{at}.input_layernorm.weight", c.hidden_size),
        qkv=qkv(tuple(f"{attention}.{n}_proj" for n in "qkv"), (q, kv, kv), c.hidden_size),
        o=o((f"{attention}.o_proj",), (c.hidden_size,), q),
        q_norm=take(f"{attention}.q_norm.weight", c.head_dim) if c.qk_norm else None,
        k_norm=take(f"{attention}.k_norm.weight", c.head_dim) if c.qk_norm else None,
        post_norm=take(f"{at}.post_attention_layernorm.weight", c.hidden_size),
        gate_up=dense((f"{mlp}.gate_proj", f"{mlp}.up_proj"), (wide, wide), c.hidden_size),
        down=dense((f"{mlp}.down_proj",), (c.hidden_size,), wide),
    )
