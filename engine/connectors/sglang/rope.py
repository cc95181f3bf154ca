"""Where a prompt's keys depend on what else is in its batch: a prefix then has no KV of its own.

Some RoPE is not the same for prompts longer than those it was trained for. It goes by the longest
prompt of a batch, for all of that batch alike. LongRoPE does so in SGLang's own code. Dynamic NTK
is settled there once, at start, but in Gemma 3, and where Transformers' code computes the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.srt.configs.model_config import ModelImpl
from sglang.srt.model_loader.utils import get_resolved_model_impl

_TRAINED = "original_max_position_embeddings"


def code_of(config: Any) -> str:
    """Whose code computes a model, where it is not SGLang's: as resolved, however it was asked."""
    found = get_resolved_model_impl(config)
    return "" if found == ModelImpl.SGLANG else str(found.value)


def unsteady(config: Any) -> str:
    """Why keys of a model with this config depend on their batch, and what is right; or nothing."""
    text = config.hf_text_config
    for rope in _ropes(text):
        kind = str(rope.get("rope_type") or rope.get("type"))
        if kind in ("longrope", "su"):
            trained = rope.get(_TRAINED) or getattr(text, _TRAINED, 0)
        elif "dynamic" in kind and _by_batch(config):
            trained = text.max_position_embeddings
        else:
            continue
        if config.context_len > trained:
            return (
                f"RoPE of type {kind} with prompts of up to {config.context_len} tokens: a "
                "prompt's keys then depend on what else is in its batch; "
                f"--context-length {trained} is right"
            )
    return ""


def _ropes(text: Any) -> Iterator[dict[str, Any]]:
    """What is said of RoPE, for all layers or for each kind of them."""
    said = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    yield said
    yield from (one for one in said.values() if isinstance(one, dict))


def _by_batch(config: Any) -> bool:
    return bool(code_of(config)) or config.hf_text_config.model_type == "gemma3_text"
