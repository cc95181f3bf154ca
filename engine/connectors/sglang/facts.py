"""The namespace of an SGLang engine, and what of it cannot be kept: refused here, by name.

Everything is what SGLang says of itself: the storage config, the host pool's own attributes, and,
where a server has published them, its resolved model settings. Nothing is read off a tensor.

SGLang's name of a model is the name it is served under, which says nothing about its weights. They
are named by `revision`, or by a digest of their bytes where the model is a local folder.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_model

from kvstore.client import KVGroup, KVSpec, weights_digest, weights_files

from ..unsupported import Unsupported
from .pages import axes_of
from .settings import WHERE, Settings
from .told import elsewhere, published, scaled, short, told

# Load formats beside auto whose weights are those of the model's folder or commit. Which of its
# files they are differs, as where a folder has weights in several forms.
_OF_THE_MODEL = frozenset(
    {"safetensors", "fastsafetensors", "instanttensor", "mistral", "pt", "layered"}
    | {"runai_streamer", "sharded_state", "bitsandbytes", "flash_rl"}
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def check_config(config: HiCacheStorageConfig) -> None:
    """Raise `Unsupported` for a way of sharing pages out that the pool does not know."""
    for name, right in (("attn_cp_size", 1), ("dcp_size", 1), ("tp_lcm_size", None)):
        value = getattr(config, name)
        if value != right:
            raise Unsupported(f"{name} {value} is not supported; {right} is")
    if config.should_split_heads:
        raise Unsupported("pages split by heads (tp_lcm_size) are not supported")


class Named(NamedTuple):
    """The KVSpec of one rank's host pool, and what of its revision is the weights' alone."""

    spec: KVSpec
    weights: str


def named(config: HiCacheStorageConfig, pool: Any, settings: Settings) -> Named:
    check_pool(config, pool)
    model, weights = _named(config, settings)
    said = told()
    if str(pool.dtype) == "torch.uint8" and "kv_cache_dtype" not in said and not _extra(settings):
        raise Unsupported(
            "the host pool keeps fp8 as uint8, and the server does not say which fp8: "
            f"name it by kv_cache_dtype, or in namespace_extra of {WHERE}"
        )
    if str(pool.dtype) == "torch.uint8":
        said |= scaled()
    changes = [f";{name}={value}" for name, value in said.items()]
    group = KVGroup(
        layers=tuple(range(pool.start_layer, pool.start_layer + pool.layer_num)),
        kv_heads=1 if config.is_mla_model else pool.head_num,
        head_dim=pool.kv_cache_dim if config.is_mla_model else pool.head_dim,
        block_tokens=pool.page_size,
        parts=1 if config.is_mla_model else 2,
    )
    spec = KVSpec(
        model=model,
        revision=weights + "".join(changes) + _extra(settings),
        dtype=str(pool.dtype).removeprefix("torch."),
        groups=(group,),
    )
    return Named(spec, weights)


def check_pool(config: HiCacheStorageConfig, pool: Any) -> None:
    """Raise `Unsupported` unless every byte of the pool's pages is described by `axes_of`."""
    kind = MLATokenToKVPoolHost if config.is_mla_model else MHATokenToKVPoolHost
    if type(pool) is not kind:
        raise Unsupported(
            f"a host pool of kind {type(pool).__name__}; {kind.__name__} is supported"
        )
    axes_of(pool.layout, config.is_mla_model)
    if pool.layer_num != pool.target_layer_num:
        drafts = pool.layer_num - pool.target_layer_num
        raise Unsupported(f"{drafts} layers of a draft model are packed into the pages")
    if pool.storage_format_tag is not None or pool.dcp_size != 1:
        raise Unsupported(f"pages of the format {pool.storage_format_tag!r}, DCP {pool.dcp_size}")
    if not config.is_mla_model and pool.head_dim != pool.v_head_dim:
        raise Unsupported(
            f"K of {pool.head_dim} and V of {pool.v_head_dim} per head; equal is right"
        )
    if config.is_mla_model and (pool.dsa_kv_cache_store_fp8 or pool.kv_buffer is None):
        raise Unsupported("MLA pages packed in fp8, or not held by this rank")


def _named(config: HiCacheStorageConfig, settings: Settings) -> tuple[str, str]:
    """The model's name, and what names its weights."""
    model = published(get_model)
    path = model.model_path if model else config.model_name or ""
    if settings.revision:
        return config.model_name or path or "unnamed", settings.revision
    if model and model.load_format == "dummy":
        raise Unsupported("load_format dummy draws weights at random: set revision to share KV")
    if model and (setting := elsewhere(model)):
        raise Unsupported(
            f"{setting}: weights are then not read from {path!r} as it is now: set revision in "
            f"{WHERE} to something that changes whenever they do"
        )
    load_format = str(model.load_format) if model else "auto"
    if load_format != "auto" and load_format not in _OF_THE_MODEL:
        raise Unsupported(
            f"load_format {load_format} may load other weights than {path!r} has: set revision in "
            f"{WHERE} to something that changes whenever they do"
        )
    how = "" if load_format == "auto" else f";load_format={load_format}"
    if Path(path).is_dir():
        return "local", f"blake3:{_digest(path, load_format)}{how}"
    if model and _COMMIT.fullmatch(str(model.revision)):
        return path, f"commit:{model.revision}{how}"
    raise Unsupported(
        f"the revision of {path!r} is not known: set revision in {WHERE} to something that changes "
        "whenever the weights do"
    )


@functools.cache
def _digest(path: str, load_format: str) -> str:
    """Read once a process: what is in the folder when a backend is attached again may be meant for
    the next one, and is not what this one has loaded. Nor is what has come since it began."""
    files = weights_files(Path(path), load_format)
    if any(file.stat().st_ctime >= _began() for file in files):
        raise Unsupported(
            f"{path!r} was changed since this server began, and may not be what it has loaded: set "
            f"revision in {WHERE}, or attach a backend when the server starts"
        )
    return weights_digest(path, load_format)


def _began() -> float:
    """When this process did, as files have it."""
    return float(psutil.Process().create_time())


def _extra(settings: Settings) -> str:
    return f";extra={short(settings.namespace_extra)}" if settings.namespace_extra else ""
