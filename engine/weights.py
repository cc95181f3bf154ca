"""A decoder's weights from local safetensors: every tensor the config asks for, and none left over.

A tensor left over would be a part of the model that this engine does not compute, so it is an
error, as a missing one is. Projections that read the same input are joined: one matmul, not three.
A rank of several reads its own rows and columns, and no more.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from .errors import BrokenCheckpoint
from .shard import Shard

INDEX = "model.safetensors.index.json"
Part = tuple[int, range]  # of how many rows or columns a checkpoint has, those that a rank reads


@dataclass(frozen=True, slots=True)
class Linear:
    """weight (out, in), bias (out,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer, or a rank's part of it, whose o and down give summands of the output.

    q_norm and k_norm are (head_dim,) where the model has them.
    """

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
    """embedding is (vocab, hidden), and so is lm_head: one tensor where they are tied.

    A rank of several has its rows of lm_head, with rows of zeros where the vocabulary has ended.
    """

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    lm_head: torch.Tensor


def load(folder: str | Path, shard: Shard, place: torch.device) -> Weights:
    """The weights of a Hugging Face folder that `shard` computes with, in its config's dtype."""
    config = shard.config
    with ExitStack() as opened:
        slices = {
            name: file.get_slice(name)
            for path in _files(Path(folder))
            for file in [opened.enter_context(_opened(path))]
            for name in file.keys()  # noqa: SIM118  (a handle, not a dict)
        }
        weights = _assemble(_Checkpoint(slices, getattr(torch, config.dtype), place), shard)
    # Old exports carry the RoPE frequencies, and tied ones a copy of the embedding: both derived.
    derived = {"lm_head.weight"} if config.tied_embeddings else set()
    unused = {n for n in slices if not n.endswith("rotary_emb.inv_freq")} - derived
    if unused:
        raise BrokenCheckpoint(
            f"the checkpoint has {len(unused)} tensors that {config.architecture} does not use, "
            f"such as {min(unused)}"
        )
    return weights


def _files(folder: Path) -> list[Path]:
    index, single = folder / INDEX, folder / "model.safetensors"
    if index.is_file():
        try:
            named = json.loads(index.read_text())["weight_map"].values()
            return [folder / name for name in sorted(set(named))]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{index} does not say which file has which tensor, as its `weight_map` would"
            raise BrokenCheckpoint(f"{text}: {error!r}") from None
    if single.is_file():
        return [single]
    raise BrokenCheckpoint(f"{folder} has neither {single.name} nor {index.name}")


def _opened(path: Path) -> Any:
    """A file of tensors: what a download left half, or Git LFS as a pointer, is told of by name."""
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        text = f"{path} is no safetensors file, or not all of one ({error}): download it again"
        raise BrokenCheckpoint(text) from None


class _Checkpoint:
    """Hands each tensor out once, its shape checked, or some of its rows or columns."""

    def __init__(self, slices: dict[str, Any], dtype: torch.dtype, place: torch.device) -> None:
        self._slices, self._dtype, self._place = slices, dtype, place

    def take(
        self, name: str, *shape: int, rows: range | None = None, columns: range | None = None
    ) -> torch.Tensor:
        found = self._slices.pop(name, None)
        if found is None:
            raise BrokenCheckpoint(f"the checkpoint lacks {name}")
        if tuple(found.get_shape()) != shape:
            raise BrokenCheckpoint(f"{name} is {tuple(found.get_shape())}, the config says {shape}")
        if columns is not None:
            tensor = found[:, columns.start : columns.stop].contiguous()
        elif rows is not None:
            tensor = found[rows.start : rows.stop]
        else:
            tensor = found[:]
        loaded: torch.Tensor = tensor.to(self._place, self._dtype)
        return loaded

    def plain(self, names: tuple[str, ...], rows: tuple[Part, ...], columns: int) -> Linear:
        """Some rows of each of the named projections, joined, without bias."""
        parts = [
            self.take(f"{n}.weight", whole, columns, rows=own)
            for n, (whole, own) in zip(names, rows, strict=True)
        ]
        return Linear(_joined(parts))

    def biased(self, names: tuple[str, ...], rows: tuple[Part, ...], columns: int) -> Linear:
        """Some rows of each of the named projections, joined, with their biases."""
        weight = self.plain(names, rows, columns).weight
        parts = [
            self.take(f"{n}.bias", whole, rows=own)
            for n, (whole, own) in zip(names, rows, strict=True)
        ]
        return Linear(weight, _joined(parts))

    def summand(self, name: str, rows: int, columns: Part) -> Linear:
        """Some columns of a projection, without bias: all ranks' outputs add up to the whole's."""
        whole, own = columns
        return Linear(self.take(f"{name}.weight", rows, whole, columns=own))

    def biased_summand(self, name: str, rows: int, columns: Part) -> Linear:
        """The same, with the bias at one rank, so that the sum has it once."""
        bias = self.take(f"{name}.bias", rows)
        weight = self.summand(name, rows, columns).weight
        return Linear(weight, bias if columns[1].start == 0 else None)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _assemble(checkpoint: _Checkpoint, shard: Shard) -> Weights:
    c = shard.config
    embedding = checkpoint.take("model.embed_tokens.weight", c.vocab_size, c.hidden_size)
    layers = tuple(_layer(checkpoint, f"model.layers.{i}", shard) for i in range(c.layers))
    norm = checkpoint.take("model.norm.weight", c.hidden_size)
    rows = shard.vocab_rows
    if c.tied_embeddings:
        head = embedding[rows.start : rows.stop]
    else:
        head = checkpoint.take("lm_head.weight", c.vocab_size, c.hidden_size, rows=rows)
    if len(head) < len(rows):
        head = torch.nn.functional.pad(head, (0, 0, 0, len(rows) - len(head)))
    return Weights(embedding, layers, norm, head)


def _layer(checkpoint: _Checkpoint, at: str, shard: Shard) -> LayerWeights:
    c, attention, mlp = shard.config, f"{at}.self_attn", f"{at}.mlp"
    take = checkpoint.take
    qkv = checkpoint.biased if c.qkv_bias else checkpoint.plain
    o = checkpoint.biased_summand if c.o_bias else checkpoint.summand
    gate_up = checkpoint.biased if c.mlp_bias else checkpoint.plain
    down = checkpoint.biased_summand if c.mlp_bias else checkpoint.summand
    q, kv = (c.heads * c.head_dim, shard.q_rows), (c.kv_heads * c.head_dim, shard.kv_rows)
    wide = (c.intermediate_size, shard.mlp_rows)
    return LayerWeights(
        input_norm=take(f"{at}.input_layernorm.weight", c.hidden_size),
        qkv=qkv(tuple(f"{attention}.{n}_proj" for n in "qkv"), (q, kv, kv), c.hidden_size),
        o=o(f"{attention}.o_proj", c.hidden_size, q),
        q_norm=take(f"{attention}.q_norm.weight", c.head_dim) if c.qk_norm else None,
        k_norm=take(f"{attention}.k_norm.weight", c.head_dim) if c.qk_norm else None,
        post_norm=take(f"{at}.post_attention_layernorm.weight", c.hidden_size),
        gate_up=gate_up((f"{mlp}.gate_proj", f"{mlp}.up_proj"), (wide, wide), c.hidden_size),
        down=down(f"{mlp}.down_proj", c.hidden_size, wide),
    )
