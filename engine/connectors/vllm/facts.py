"""The namespace of a vLLM engine, and which part of each block one of its ranks holds.

Everything is what vLLM resolved: its KV cache groups and their specs, its attention backends, its
dtype and revision. Nothing is read off a tensor's shape. What this connector cannot keep right is
refused here, by name, before the engine serves.

A backend known to keep K then V of each token together shares blocks with every engine that does.
Any other orders the bytes within a page in a way of its own (vLLM's CPU attention tiles them for
the processor): its pages travel whole, and only to engines with that same interior.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.version import __version__ as VERSION

from kvstore.client import Invalid, KVGroup, KVSpec, weights_digest

from .settings import Settings
from .told import told

BLOCK_TOKENS_MIN = 64  # of a block, unless another size is set
# Read in their sources: a page holds, for each head and token, K then V (or one latent).
TOKEN_BY_TOKEN = frozenset({"FLASH_ATTN", "TRITON_ATTN", "CPU_MLA"})
# Ways to part a model that nothing here was tried with. Ranks of a dense model run with
# data parallelism are engines by themselves, to which vLLM says a size of 1.
SPLITS = (
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)


# Load formats beside "auto" whose weights are those of the model's folder or commit. Which of its
# files they are differs, as where a folder has weights in several forms.
OF_THE_MODEL = frozenset(
    {"hf", "safetensors", "fastsafetensors", "instanttensor", "mistral", "npcache", "pt"}
    | {"runai_streamer", "runai_streamer_sharded", "sharded_state"}
)
# Longer prompts have vLLM tune the temperature of Llama 4's attention, for short ones too.
LLAMA4_UNTUNED_TOKENS_MAX = 32_768


class Unsupported(ValueError):
    """This engine's KV cannot be kept in the pool; the message names what stands in the way."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One of vLLM's KV cache groups as the pool keeps it, and this rank's part of its blocks."""

    vllm_group: int
    layer_names: tuple[str, ...]  # in slot order
    page_tokens: int  # tokens of a vLLM block of this group
    head_first: int
    heads: int
    writes: bool  # False where another rank holds the same heads and stores them
    window_tokens: int  # whose pages vLLM keeps; 0: every earlier token is needed


@dataclass(frozen=True, slots=True)
class Facts:
    """What both sides of the connector agree on."""

    spec: KVSpec
    groups: tuple[GroupFacts, ...]
    strides: str  # the layout vLLM chose for its tensors, as it names it

    @property
    def origin(self) -> int:
        """Names the engine, its version and the layout of its memory; the same on every rank."""
        sizes = [[g.page_tokens, g.heads, len(g.layer_names)] for g in self.groups]
        said = json.dumps(["vllm", VERSION, self.strides, sizes])
        return int.from_bytes(blake3(said.encode()).digest(8), "little") or 1


def facts_of(config: VllmConfig, caches: KVCacheConfig, settings: Settings) -> Facts:
    """The facts of one worker. Raises `Unsupported` naming what stands in the way."""
    parallel = config.parallel_config
    for name in SPLITS:
        if getattr(parallel, name) != 1:
            raise Unsupported(f"{name} {getattr(parallel, name)} is not supported; 1 is")
    model = config.model_config
    if not model.is_prefix_caching_supported:
        raise Unsupported(
            "vLLM reuses no prefixes of this model, as with MEAN, CLS or STEP pooling: its prompts "
            "are computed whole"
        )
    if model.using_transformers_backend():
        check_steady(model.hf_text_config, model.max_model_len)
    drafts = draft_layers(config, caches)
    pairs = [
        _group(
            config, index, group.kv_cache_spec, [n for n in group.layer_names if n not in drafts]
        )
        for index, group in enumerate(caches.kv_cache_groups)
        if not set(group.layer_names) <= drafts
    ]
    block_tokens = _block_tokens(settings, [facts.page_tokens for facts, _ in pairs])
    spec = _spec(
        settings,
        model=settings.model or str((model.architectures or ["unknown"])[0]),
        revision=revision_of(config, settings),
        dtype=str(caches.kv_cache_groups[0].kv_cache_spec.dtype).removeprefix("torch."),
        groups=tuple(
            KVGroup(**{**_fields(group), "block_tokens": block_tokens}) for _, group in pairs
        ),
        rope=rope_of(model.hf_text_config, model.max_model_len) | tuning_of(model),
    )
    return Facts(spec, tuple(facts for facts, _ in pairs), str(caches.kv_cache_layout))


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
    is_tuned = said.get("attn_temperature_tuning", model.max_model_len > LLAMA4_UNTUNED_TOKENS_MAX)
    return {"attn_temperature_tuning": str(bool(is_tuned))}


def _spec(settings: Settings, **facts: Any) -> KVSpec:
    """The spec under the codec that is set; `Unsupported` where this engine's KV cannot have it."""
    try:
        return KVSpec(**facts, codec=settings.codec)
    except Invalid as error:
        if settings.codec == "none":
            raise
        raise Unsupported(f"kv_connector_extra_config.codec: {error}") from error


def _block_tokens(settings: Settings, page_tokens: list[int]) -> int:
    """Tokens of a block: as set, else the least from 64 on that is whole pages of every group."""
    whole = math.lcm(*page_tokens)
    if settings.block_tokens % whole:
        raise Unsupported(
            f"block_tokens {settings.block_tokens} and vLLM's block of {whole} tokens: set "
            "kv_connector_extra_config.block_tokens to a multiple of it, or not at all"
        )
    return settings.block_tokens or whole * -(-BLOCK_TOKENS_MIN // whole)


def draft_layers(config: VllmConfig, caches: KVCacheConfig) -> set[str]:
    """Layers of a draft model: their KV is left out, and the draft goes without it after a load."""
    names = {name for group in caches.kv_cache_groups for name in group.layer_names}
    if config.speculative_config is None:
        return set()
    layers = config.model_config.get_total_num_hidden_layers()
    return {
        name
        for name in names
        if name.startswith("draft_model.") or extract_layer_index(name) >= layers
    }


def revision_of(config: VllmConfig, settings: Settings) -> str:
    """What names the weights, with whatever vLLM does to them on loading."""
    model = config.model_config
    if config.load_config.load_format == "dummy" and not settings.revision:
        raise Unsupported("load_format 'dummy' draws weights at random; set `revision` to share KV")
    said = settings.revision or _revision(model, config.load_config.load_format)
    if model.quantization:
        said += f";quantization={model.quantization}"
    for name, changed in told(config).items():
        if changed:
            text = json.dumps(changed, sort_keys=True, default=str)
            said += f";{name}={blake3(text.encode()).hexdigest()[:16]}"
    return said


def _revision(model: Any, load_format: str) -> str:
    if load_format != "auto" and load_format not in OF_THE_MODEL:
        raise Unsupported(
            f"load_format {load_format!r} may load other weights than {model.model!r} has: set "
            "kv_connector_extra_config.revision to something that changes whenever they do"
        )
    how = "" if load_format == "auto" else f";load_format={load_format}"
    if model.hf_config_path and model.hf_config_path != model.model:
        raise Unsupported(
            f"hf_config_path {model.hf_config_path!r}: neither the weights' name nor the commit "
            "that vLLM knows then names both: set kv_connector_extra_config.revision to something "
            "that changes whenever either does"
        )
    if model.model_weights and model.model_weights != model.model:
        raise Unsupported(
            f"model_weights {model.model_weights!r}: they are not those of {model.model!r}: set "
            "kv_connector_extra_config.revision to something that changes whenever they do"
        )
    folder = Path(model.model)
    if folder.is_dir():
        return f"blake3:{weights_digest(folder, load_format)}{how}"
    commit = getattr(model.hf_config, "_commit_hash", None)
    if commit:
        return f"commit:{commit}{how}"
    raise Unsupported(
        f"the revision of {model.model!r} is not known: set kv_connector_extra_config.revision "
        "to something that changes whenever the weights do"
    )


def _group(
    config: VllmConfig, index: int, spec: Any, names: list[str]
) -> tuple[GroupFacts, KVGroup]:
    kind = type(spec)
    if kind not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec):
        raise Unsupported(
            f"KV cache group {index} ({names[0]} and {len(names) - 1} more) is a {kind.__name__}; "
            "full, sliding-window and MLA attention are supported"
        )
    if spec.kv_quant_mode != KVQuantMode.NONE:
        raise Unsupported(f"kv_cache_dtype {config.cache_config.cache_dtype!r}: use 'auto'")
    if spec.page_size_padded is not None or spec.num_head_slots or spec.tokens_per_state != 1:
        raise Unsupported(f"KV cache group {index} packs its pages in a way that is not supported")
    if getattr(spec, "non_causal", False):
        raise Unsupported(
            f"KV cache group {index} is not causal: a token's KV depends on those that follow it"
        )
    names = sorted(names, key=extract_layer_index)
    backend, isa = _backend(config, names)
    mla = kind is MLAAttentionSpec
    head_first, heads, total, writes = _heads(config, spec, mla)
    window = spec.sliding_window if kind is SlidingWindowSpec else 0
    split = backend in TOKEN_BY_TOKEN
    packed = spec.state_content_size_bytes // spec.dtype.itemsize
    even = split and not mla and spec.head_size == spec.head_size_v
    group = KVGroup(
        layers=tuple(extract_layer_index(name) for name in names),
        kv_heads=total,
        head_dim=spec.head_size if even else packed,
        parts=2 if even else 1,
        reuse="window" if window else "chain",
        window_tokens=window,
        interior="" if split else f"vllm {backend} {isa} {spec.block_size}",
    )
    # Drafts of several modules compute the last tokens anew: for them vLLM keeps more than it sees.
    kept = window + spec.extra_retained_tokens if window else 0
    facts = GroupFacts(index, tuple(names), spec.block_size, head_first, heads, writes, kept)
    return facts, group


def _heads(config: VllmConfig, spec: AttentionSpec, mla: bool) -> tuple[int, int, int, bool]:
    """This rank's first KV head, how many it has, how many there are, and whether it stores."""
    tp, rank = config.parallel_config.tensor_parallel_size, get_tensor_model_parallel_rank()
    total = 1 if mla else config.model_config.get_total_num_kv_heads()
    if total >= tp:
        heads, first, writes = total // tp, rank * (total // tp), True
    else:  # ranks outnumber heads: several hold the same one, and the first of them stores it
        heads, first, writes = 1, rank * total // tp, rank % (tp // total) == 0
    if spec.num_kv_heads != heads:
        raise Unsupported(
            f"a rank has {spec.num_kv_heads} KV heads of {total} over {tp} ranks, not {heads}"
        )
    return first, heads, total, writes


def _backend(config: VllmConfig, names: list[str]) -> tuple[str, str]:
    """The attention backend's name, and the instruction set it tiles for, as the layers say."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase, names)
    kinds = {
        (layer.get_attn_backend().get_name(), str(getattr(layer, "isa", "")))
        for layer in layers.values()
    }
    if len(kinds) != 1 or len(layers) != len(names):
        raise Unsupported(f"the layers of one KV cache group have several backends: {kinds}")
    return kinds.pop()


def _fields(group: KVGroup) -> dict[str, Any]:
    return {name: getattr(group, name) for name in KVGroup.__slots__}
