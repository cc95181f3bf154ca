"""A model's shape by its `config.json`, as it is published beside the weights.

What is read are the names that Llama, Mistral, Qwen, Gemma and DeepSeek use, dense or with experts.
What would make another shape of it, such as layers without attention, is refused and not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstore.core.model_shape import Latent, ModelShape
from kvstore.errors import Invalid

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_WIDTH = "intermediate_size"
_ATTENTION = ("full_attention", "sliding_attention")
# Of a kind that begins so, whose code ties words where nothing is written.
_TIED = (
    *("gemma", "vaultgemma", "cohere", "ernie4_5", "granite_swa"),
    *("minicpm3", "smollm3", "starcoder2", "youtu"),
)
_USUAL = {  # of layers that are all alike
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "interleave_moe_layer_step": 1,
    "full_attention_interval": 1,
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def shape_of(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Of the language model, where there is more to it. Raises `Invalid` naming the field that is
    missing or not understood."""
    read = _Fields(_part(config, "text_config") or config)
    kind = str(read.of.get("model_type") or config.get("model_type") or "")
    if kind.startswith("llama4"):  # some attend to chunks only, some have experts, of other widths
        raise Invalid(f"config.json: model_type is {kind!r}, whose layers are not understood")
    read.refuse_other_layers()
    heads = read.some("num_attention_heads")
    experts = next((key for key in _EXPERTS if read.has(key)), "")
    shape: dict[str, Any] = {
        "layers": read.whole("num_hidden_layers"),
        "hidden": read.whole("hidden_size"),
        "heads": heads,
        "vocabulary": read.whole("vocab_size"),
        "tied": _tied(kind, read.of, config),
        "parameter_bytes": _parameter_bytes(read.of, config),
    }
    if read.has("kv_lora_rank"):
        full = read.of.get("q_lora_rank", 0) is None
        shape["latent"] = Latent(
            None if full else read.whole("q_lora_rank"),
            *(read.whole(key) for key in ("kv_lora_rank", "qk_rope_head_dim")),
        )
        shape |= {"kv_heads": heads, "head_dim": read.whole("v_head_dim")}
    else:
        shape["kv_heads"] = read.whole("num_key_value_heads", heads)
        shape["head_dim"] = read.whole("head_dim", shape["hidden"] // heads)
    if not experts:
        return ModelShape(name, intermediate=read.whole(_WIDTH), **shape)
    width = read.some("moe_intermediate_size" if read.has("moe_intermediate_size") else _WIDTH)
    return ModelShape(
        name,
        intermediate=read.whole(_WIDTH, 0),
        experts=read.whole(experts),
        experts_active=read.whole("num_experts_per_tok"),
        experts_shared=read.whole("n_shared_experts", 0)
        or read.whole("shared_expert_intermediate_size", 0) // width,
        expert_intermediate=width,
        dense_layers=read.whole("first_k_dense_replace", 0),
        **shape,
    )


class _Fields:
    """Of one `config.json`, or of the part of it that is of the language model."""

    def __init__(self, of: Mapping[str, Any]) -> None:
        self.of = of

    def has(self, key: str) -> bool:
        """Whether it says so much, and not that there is none."""
        return bool(self.of.get(key))

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.of.get(key)
        if value is None:
            value = default
        if type(value) is not int or value < 0:
            raise Invalid(f"config.json: {key} is {value!r}, where a whole number is wanted")
        return value

    def some(self, key: str) -> int:
        """One that others are divided by."""
        if not (value := self.whole(key)):
            raise Invalid(f"config.json: {key} is 0, where there is at least one")
        return value

    def refuse_other_layers(self) -> None:
        kinds = self.of.get("layer_types") or []
        others = [one for one in kinds if one not in _ATTENTION] if type(kinds) is list else [kinds]
        if others:
            raise Invalid(f"config.json: layer_types has {others[0]!r}")
        for key, usual in _USUAL.items():
            if self.of.get(key, usual) != usual:
                raise Invalid(f"config.json: {key} is {self.of[key]!r}, and {usual} is understood")
        if self.has("linear_num_value_heads"):
            heads = self.of["linear_num_value_heads"]
            raise Invalid(f"config.json: linear_num_value_heads is {heads!r}, and 0 is understood")
        if self.of.get("mlp_only_layers"):
            raise Invalid("config.json: mlp_only_layers names layers, and none is understood")


def _part(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Empty where there is none."""
    found = config.get(key) or {}
    if not isinstance(found, Mapping):
        raise Invalid(f"config.json: {key} is {found!r}, where an object is wanted")
    return found


def _tied(kind: str, text: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the weights that words are read by are those that they are told by."""
    key = "tie_word_embeddings"
    said = next((of[key] for of in (text, config) if of.get(key) is not None), None)
    return kind.startswith(_TIED) if said is None else said is True


def _parameter_bytes(text: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """As weights lie in memory: what they were quantized to, or their type."""
    key = "quantization_config"
    quantized = _part(config, key) or _part(text, key)
    if quantized:
        bits = quantized.get("bits", 8 if "fp8" in str(quantized.get("quant_method")) else None)
        if bits not in (4, 8):
            raise Invalid(
                f"config.json: quantization_config has {bits!r} bits by "
                f"{quantized.get('quant_method')!r}, and 4 and 8 are understood"
            )
        return float(bits) / 8
    kind = text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = str(kind).removeprefix("torch.")
    if dtype not in _BYTES:
        raise Invalid(f"config.json: torch_dtype is {dtype}, none of {', '.join(_BYTES)}")
    return _BYTES[dtype]
