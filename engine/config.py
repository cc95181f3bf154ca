"""A model's shape, read from config.json: whatever is read here is computed exactly, or refused.

It can promise that because it names what is supported and refuses the rest: a setting that would
change the numbers (rope scaling, sliding window, quantization, activation) never passes unread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvstore.end_tokens import end_tokens

from .errors import UnsupportedModel

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPE_TYPES = ("default", "linear", "llama3")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position settings. `kind` is one of ROPE_TYPES; the last three are llama3's."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama, Qwen2 or Qwen3 style decoder."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    rms_eps: float
    dtype: str = "float32"
    rope: RopeConfig = field(default_factory=RopeConfig)
    tied_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UnsupportedModel(
                f"{self.heads} attention heads do not divide over {self.kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim {self.head_dim} is odd; RoPE rotates pairs")

    @classmethod
    def load(cls, folder: str | Path) -> ModelConfig:
        """The config of a Hugging Face model folder."""
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise UnsupportedModel(f"{path} is not there; a Hugging Face model folder has one")
        ends = tuple(sorted(end_tokens(path.parent)))  # first: it refuses what is no JSON object
        return replace(cls.read(json.loads(path.read_text())), eos_ids=ends)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """The config from the parsed config.json, less the tokens that end an answer."""
        architecture = _architecture(raw)
        _refuse_unread_settings(raw)
        heads = _size(raw, "num_attention_heads")
        hidden = _size(raw, "hidden_size")
        qwen2 = architecture == "Qwen2ForCausalLM"
        bias = bool(raw.get("attention_bias", False)) and not qwen2
        max_positions = int(raw.get("max_position_embeddings") or 2048)
        return cls(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            layers=_size(raw, "num_hidden_layers"),
            heads=heads,
            kv_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=_head_dim(raw, architecture, hidden, heads),
            vocab_size=_size(raw, "vocab_size"),
            max_positions=max_positions,
            rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
            dtype=_dtype(raw),
            rope=_rope(raw, max_positions),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=qwen2 or bias,
            o_bias=bias,
            mlp_bias=bool(raw.get("mlp_bias", False)) and architecture == "LlamaForCausalLM",
            qk_norm=architecture == "Qwen3ForCausalLM",
        )


def _architecture(raw: Mapping[str, Any]) -> str:
    found = list(raw.get("architectures") or [])
    if len(found) == 1 and found[0] in ARCHITECTURES:
        return str(found[0])
    named = ", ".join(map(str, found)) or "none"
    raise UnsupportedModel(
        f"architectures: {named} is not supported; this engine runs {', '.join(ARCHITECTURES)}"
    )


def _refuse_unread_settings(raw: Mapping[str, Any]) -> None:
    """Refuse settings that change the numbers and are not computed here."""
    if raw.get("quantization_config"):
        raise UnsupportedModel("quantization_config: only unquantized weights are supported")
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"hidden_act: {activation!r} is not supported; only silu is")
    # Qwen configs name a window that use_sliding_window leaves off: that one is not in use.
    window = raw.get("sliding_window")
    if window and raw.get("use_sliding_window", True):
        raise UnsupportedModel(f"sliding_window: {window} is in use; only full attention works")
    others = sorted(set(raw.get("layer_types") or ()) - {"full_attention"})
    if others:
        raise UnsupportedModel(f"layer_types: {', '.join(others)}; only full_attention works")


def _size(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModel(f"{key}: {value!r} in config.json must be a whole number from 1")
    return value


def _head_dim(raw: Mapping[str, Any], architecture: str, hidden: int, heads: int) -> int:
    if raw.get("head_dim"):
        return int(raw["head_dim"])
    # Qwen3 alone does not derive a missing head_dim: its default is 128 whatever the hidden size.
    return 128 if architecture == "Qwen3ForCausalLM" else hidden // heads


def _dtype(raw: Mapping[str, Any]) -> str:
    # Newer configs say dtype, older ones torch_dtype; where neither speaks, full precision is safe.
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype: {name!r} is not supported; use {', '.join(DTYPES)}")
    return name


def _rope(raw: Mapping[str, Any], max_positions: int) -> RopeConfig:
    # Newer configs keep all of it in rope_parameters; older ones have rope_theta beside an
    # optional rope_scaling whose type is spelt "type" or "rope_type".
    found: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in found.values()):
        raise UnsupportedModel("rope_parameters: one RoPE for all layers is supported, not several")
    kind = str(found.get("rope_type") or found.get("type") or "default")
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(f"rope_type: {kind!r} is not supported; use {', '.join(ROPE_TYPES)}")
    partial = found.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModel(f"partial_rotary_factor: {partial} is not supported; only 1 is")
    needed = {"default": (), "linear": ("factor",)}.get(
        kind, ("factor", "low_freq_factor", "high_freq_factor")
    )
    missing = [key for key in needed if key not in found]
    if missing:
        raise UnsupportedModel(f"rope_type {kind!r} lacks {', '.join(missing)}")
    original = found.get("original_max_position_embeddings") or max_positions
    return RopeConfig(
        theta=float(found.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        kind=kind,
        factor=float(found.get("factor") or 1.0),
        low_freq_factor=float(found.get("low_freq_factor") or 1.0),
        high_freq_factor=float(found.get("high_freq_factor") or 4.0),
        original_positions=int(original),
    )
