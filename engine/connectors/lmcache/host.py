"""The vLLM around this plug-in: what it was told decides KV, and LMCache does not say it.

vLLM's workers make their connectors, and so LMCache this plug-in, with their configuration at hand.
It is named as vLLM's own connector names it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..unsupported import Unsupported
from ..vllm_images import images_of
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Host:
    """What decides a chunk's KV beside what LMCache says of it."""

    revision: str
    rope: Mapping[str, str] = field(default_factory=dict)
    layer_first: int = 0  # of the model, in this rank
    adapters: bool = False  # LoRA: KV depends on which of them a request has, if any


def host_of(model: str, layers: int, settings: Settings) -> Host:
    """The host of a rank whose chunks have so many layers. Raises `Unsupported`."""
    config = _current()
    if config is not None:
        return _of_vllm(config, layers, settings)
    if "tensorrt_llm" in sys.modules:
        raise Unsupported(
            "LMCache in TensorRT-LLM looks prompts up as vLLM's begins to load them: whether a "
            "load came back short, so that what is computed behind it is wrong, cannot be told"
        )
    if not settings.revision:
        raise Unsupported(
            f"nothing here says what {model!r} is and how it is computed: set "
            f"{settings.revision_key} to something that changes whenever either does"
        )
    return Host(settings.revision)


def _current() -> Any:
    """The configuration of the vLLM this is in; None in anything else."""
    vllm = sys.modules.get("vllm.config")
    if vllm is None:
        return None
    current = getattr(vllm, "get_current_vllm_config_or_none", None)
    config = current() if current else None
    if config is None:
        raise Unsupported(
            "vLLM does not show here what it was told: its workers do, its scheduler "
            "(enable_scheduler_bypass_lookup) does not"
        )
    return config


def _of_vllm(config: Any, layers: int, settings: Settings) -> Host:
    from ..vllm_name import OF_TOKENS, check, revision_of, turned_by  # they import vLLM

    model, parallel = config.model_config, config.parallel_config
    for name in OF_TOKENS:
        if getattr(parallel, name) != 1:
            raise Unsupported(f"{name} {getattr(parallel, name)} is not supported; 1 is")
    if config.weight_transfer_config is not None:
        raise Unsupported(
            "weight_transfer_config: weights may come in place, and nobody tells LMCache, which "
            "would load what it stored by the old ones"
        )
    if model.enable_prompt_embeds:
        raise Unsupported(
            "enable_prompt_embeds: LMCache names prompts by their tokens, which embeddings have not"
        )
    _check_names_of_images(config)
    _check_causal(config)
    check(model)
    first, end = model.get_layers_start_end_indices(parallel)
    if layers > end - first:
        raise Unsupported(
            f"a chunk has {layers} layers, and this rank's part of the model {end - first}: the "
            "others are a draft's, whose weights nothing names; use no speculative_config"
        )
    revision, adapters = revision_of(config, settings) + images_of(model), bool(config.lora_config)
    return Host(revision, turned_by(model), first, adapters)


def _check_causal(config: Any) -> None:
    for name, layer in config.compilation_config.static_forward_context.items():
        spec_of = getattr(layer, "get_kv_cache_spec", None)  # layers of other kinds are there, too
        if spec_of is not None and getattr(spec_of(config), "non_causal", False):
            raise Unsupported(
                f"the attention of layer {name!r} is not causal: a token's KV depends on those "
                "that follow it, which no prefix says"
            )


def _check_names_of_images(config: Any) -> None:
    told = config.model_config.multimodal_config
    if told is None or told.language_model_only:
        return
    if told.mm_processor_cache_gb == 0 and not config.cache_config.enable_prefix_caching:
        raise Unsupported(
            "mm_processor_cache_gb 0 and no enable_prefix_caching: vLLM then names images, which "
            "LMCache's keys are made of, by a count of its own, that has other images in another "
            "process; leave one of the two on"
        )
