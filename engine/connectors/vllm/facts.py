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

from kvstore.client import Invalid, KVGroup, KVSpec

from ..unsupported import Unsupported
from ..vllm_name import OF_TOKENS, check, revision_of, turned_by
from .settings import Settings

BLOCK_TOKENS_MIN = 64  # of a block, unless another size is set
# Read in their sources: a page holds, for each head and token, K then V (or one latent).
TOKEN_BY_TOKEN = frozenset({"FLASH_ATTN", "TRITON_ATTN", "CPU_MLA"})
# Ways to part a model that nothing here was tried with. Ranks of a dense model run with
# data parallelism are engines by themselves, to which vLLM says a size of 1.
SPLITS = ("pipeline_parallel_size", "data_parallel_size", *OF_TOKENS)


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
    vllm_groups: int  # how many vLLM has: a draft's may be one of its own

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
    check(model)
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
        rope=turned_by(model),
    )
    kept = tuple(facts for facts, _ in pairs)
    return Facts(spec, kept, str(caches.kv_cache_layout), len(caches.kv_cache_groups))


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


def _group(
    config: VllmConfig, index: int, spec: Any, names: list[str]
) -> tuple[GroupFacts, KVGroup]:
    kind, called = type(spec), f"KV cache group {index} ({names[0]} and {len(names) - 1} more)"
    if kind not in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec):
        raise Unsupported(
            f"{called} is a {kind.__name__}; full, sliding-window and MLA attention are supported"
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
    head_first, heads, total, writes = _heads(config, spec, mla, called)
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


def _heads(
    config: VllmConfig, spec: AttentionSpec, mla: bool, called: str
) -> tuple[int, int, int, bool]:
    """This rank's first KV head, how many it has, how many there are, and whether it stores."""
    tp, rank = config.parallel_config.tensor_parallel_size, get_tensor_model_parallel_rank()
    total = 1 if mla else config.model_config.get_total_num_kv_heads()
    if total >= tp:
        heads, first, writes = total // tp, rank * (total // tp), True
    else:  # ranks outnumber heads: several hold the same one, and the first of them stores it
        heads, first, writes = 1, rank * total // tp, rank % (tp // total) == 0
    if spec.num_kv_heads != heads:
        raise Unsupported(
            f"{called} has {spec.num_kv_heads} KV heads at a rank, not {heads}, as of the model's "
            f"{total} over {tp} ranks: layers that differ in how many they have are not supported"
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
