"""What a vLLM engine's KV is called: its weights, what was done to them, and what turns its keys.

Two connectors run inside vLLM, the one for it and LMCache's, and both name KV by this. What has no
name that holds for every prompt is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from kvstore.client import weights_digest

from .unsupported import Unsupported
from .vllm_told import told

# Load formats beside "auto" whose weights are those of the model's folder or commit. Which of its
# files they are differs, as where a folder has weights in several forms.
OF_THE_MODEL = frozenset(
    {"hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "pt"}
    | {"runai_streamer", "runai_streamer_sharded", "sharded_state"}
)
# Longer prompts have vLLM tune the temperature of Llama 4's attention, for short ones too.
LLAMA4_UNTUNED_TOKENS_MAX = 32_768
# Ways to part a model by which a rank has its heads of some tokens alone.
OF_TOKENS = ("decode_context_parallel_size", "prefill_context_parallel_size")


class Said(Protocol):
    """What a user says of the weights, and in which setting."""

    @property
    def revision(self) -> str: ...

    @property
    def revision_key(self) -> str: ...


def revision_of(config: Any, settings: Said) -> str:
    """What names the weights, with whatever vLLM does to them on loading."""
    model, load_format = config.model_config, config.load_config.load_format
    if load_format == "dummy" and not settings.revision:
        raise Unsupported(
            f"load_format 'dummy' draws weights at random; set {settings.revision_key} to share KV"
        )
    said = settings.revision or _revision(model, load_format, settings.revision_key)
    if model.quantization:
        said += f";quantization={model.quantization}"
    for name, changed in told(config).items():
        if changed:
            text = json.dumps(changed, sort_keys=True, default=str)
            said += f";{name}={blake3(text.encode()).hexdigest()[:16]}"
    return said


def _revision(model: Any, load_format: str, key: str) -> str:
    if load_format != "auto" and load_format not in OF_THE_MODEL:
        raise Unsupported(
            f"load_format {load_format!r} may load other weights than {model.model!r} has: set "
            f"{key} to something that changes whenever they do"
        )
    how = "" if load_format == "auto" else f";load_format={load_format}"
    if model.hf_config_path and model.hf_config_path != model.model:
        raise Unsupported(
            f"hf_config_path {model.hf_config_path!r}: neither the weights' name nor the commit "
            f"that vLLM knows then names both: set {key} to something that changes whenever either "
            "does"
        )
    if model.model_weights and model.model_weights != model.model:
        raise Unsupported(
            f"model_weights {model.model_weights!r}: they are not those of {model.model!r}: set "
            f"{key} to something that changes whenever they do"
        )
    folder = Path(model.model)
    if folder.is_dir():
        return f"blake3:{weights_digest(folder, load_format)}{how}"
    commit = getattr(model.hf_config, "_commit_hash", None)
    if commit:
        return f"commit:{commit}{how}"
    raise Unsupported(
        f"the revision of {model.model!r} is not known: set {key} to something that changes "
        "whenever the weights do"
    )


def check(model: Any) -> None:
    """Refuse a model where the beginning of a prompt has no KV of its own, or none to reuse."""
    if not model.is_prefix_caching_supported:
        raise Unsupported(
            "vLLM reuses no prefixes of this model, as with MEAN, CLS or STEP pooling: its prompts "
            "are computed whole"
        )
    if getattr(model, "is_diffusion", False):
        raise Unsupported(
            "a diffusion model: KV of an answer may be of a canvas, not of its tokens"
        )
    if model.using_transformers_backend():
        check_steady(model.hf_text_config, model.max_model_len)


def turned_by(model: Any) -> dict[str, str]:
    """What turns the keys of this model, and its queries where later keys show it."""
    return rope_of(model.hf_text_config, built_for(model)) | tuning_of(model)


def built_for(model: Any) -> int:
    """The longest prompt that this model was built for: where that is to be what memory holds
    (`--max-model-len auto`), all that the model can, as vLLM looks at memory only then."""
    auto = model.original_max_model_len == -1
    length: int = model.get_and_verify_max_len(-1) if auto else model.max_model_len
    return length


def rope_of(text: Any, length: int) -> dict[str, str]:
    """What turns the keys of a model with this config, in an engine of prompts up to `length`: by
    that, and for all prompts alike, vLLM takes LongRoPE's long factors or its short ones."""
    rope, *by_layers = ropes_of(text)
    if not rope:
        return {}
    said = {"parameters": json.dumps(rope, sort_keys=True, default=str)}
    for one in (rope, *by_layers):
        if one.get("rope_type") == "longrope":
            is_long = length > one["original_max_position_embeddings"]
            said["factors"] = "long" if is_long else "short"
    return said


def check_steady(text: Any, length: int) -> None:
    """Refuse a model that Transformers' code computes, where that turns a prompt's keys by the
    longest prompt of its batch: dynamic NTK RoPE and LongRoPE, beyond the length of training."""
    for one in ropes_of(text):
        kind = str(one.get("rope_type"))
        if kind == "longrope":
            trained = one["original_max_position_embeddings"]
        elif "dynamic" in kind:
            trained = text.max_position_embeddings
        else:
            continue
        if length > trained:
            raise Unsupported(
                f"RoPE of type {kind}, computed by Transformers' code (model_impl) for prompts of "
                f"up to {length} tokens: a prompt's keys then depend on what else is in its batch; "
                f"--max-model-len {trained} is right"
            )


def ropes_of(text: Any) -> list[dict[str, Any]]:
    """What is said of RoPE for all layers, and then for each kind of them."""
    said = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    return [said, *(one for one in said.values() if isinstance(one, dict))]


def tuning_of(model: Any) -> dict[str, str]:
    """Whether Llama 4 scales its queries by where they stand, which the keys of all layers behind
    it show. As vLLM decides it: as the generation config says, else for long prompts alone."""
    if model.hf_text_config.model_type != "llama4_text":
        return {}
    said = model.try_get_generation_config() | model.override_generation_config
    is_tuned = said.get("attn_temperature_tuning", built_for(model) > LLAMA4_UNTUNED_TOKENS_MAX)
    return {"attn_temperature_tuning": str(bool(is_tuned))}
