"""One rank of an SGLang engine, as far as its storage backend sees it: a host pool and a config.

The pools are SGLang's own, over device pools of a few KiB on the CPU; the backend is made as SGLang
makes it, by the factory's `dynamic` entry.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage import StorageBackendFactory

PAGE, PAGES, LAYERS, HEADS, DIM = 4, 16, 3, 4, 8
MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
LATENT, ROPE = 24, 8


def mha_pool(layout: str, heads: int = HEADS, dtype: torch.dtype = torch.bfloat16) -> Any:
    device = MHATokenToKVPool(PAGE * PAGES, PAGE, dtype, heads, DIM, LAYERS, "cpu", False)
    return _host(MHATokenToKVPoolHost, device, layout)


def mla_pool(layout: str) -> Any:
    size = (LATENT, ROPE, LAYERS)
    device = MLATokenToKVPool(PAGE * PAGES, PAGE, torch.bfloat16, *size, "cpu", False)
    return _host(MLATokenToKVPoolHost, device, layout, target_layer_num=LAYERS)


def _host(kind: type, device: Any, layout: str, **more: Any) -> Any:
    info = device.get_device_pool_infos()[0].buffer_info
    about = {"device_capacity_tokens": PAGE * PAGES, "pin_memory": False, **more}
    with host_memory_budget_scope(1 << 28):  # else 10 GB of the machine's are asked for
        return kind(info, 1.0, 0, PAGE, layout, start_layer=0, end_layer=LAYERS, **about)


def fill(pool: Any, seed: int) -> None:
    """Any bytes, not only fine numbers."""
    drawn = torch.Generator().manual_seed(seed)
    raw = pool.kv_buffer.view(torch.uint8)
    raw.copy_(torch.randint(0, 256, raw.shape, generator=drawn, dtype=torch.uint8))


def page_bytes(pool: Any, page: int) -> bytes:
    """A page in one order whatever the layout: layer, token, then K and V of each head."""
    flat = pool.get_data_page(page * PAGE).view(torch.uint8)
    mla = isinstance(pool, MLATokenToKVPoolHost)
    size = 2 * (LATENT + ROPE if mla else DIM)
    heads = 1 if mla else pool.head_num
    if mla:
        axes, dims = {"page_first": "tlhd"}.get(pool.layout, "lthd"), {"k": 1}
    else:
        axes = {"page_first": "ktlhd", "page_head": "khtld"}.get(pool.layout, "klthd")
        dims = {"k": 2}
    dims |= {"l": LAYERS, "t": PAGE, "h": heads, "d": size}
    page_of = flat.reshape([dims[axis] for axis in axes])
    order = [axes.index(axis) for axis in "ltkhd" if axis in axes]
    return page_of.permute(order).contiguous().numpy().tobytes()


def slots(*pages: int) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


class Engine:
    """A backend on a pool, attached in the order SGLang's controller does it."""

    def __init__(
        self,
        pool: Any,
        *,
        moonpool: str,
        tp: tuple[int, int] = (0, 1),
        model_name: str = "model",
        metrics: bool = False,
        config: dict[str, Any] | None = None,
        **extra: Any,
    ) -> None:
        self.pool, self.config_tp = pool, tp
        extra.setdefault("revision", "r1")
        about = {
            "backend_name": "moonpool",
            "module_path": "kvstore.engine.connectors.sglang",
            "class_name": "MoonpoolStorage",
            "interface_v1": 1,
            "deadline_ms": 4_000,
            "moonpool": moonpool,
        }
        facts = {
            "tp_rank": tp[0],
            "tp_size": tp[1],
            "pp_rank": 0,
            "pp_size": 1,
            "attn_cp_rank": 0,
            "attn_cp_size": 1,
            "is_mla_model": isinstance(pool, MLATokenToKVPoolHost),
            "enable_storage_metrics": metrics,
            "is_page_first_layout": pool.layout == "page_first",
            "model_name": model_name,
            "extra_config": about | extra,
        }
        self.config = HiCacheStorageConfig(**(facts | (config or {})))
        self.storage: Any = StorageBackendFactory.create_backend("dynamic", self.config, pool)
        try:
            self.storage.register_mem_pool_host(pool)
            self.storage.register_mem_host_pool_v2(pool, PoolName.KV)
            self.storage.on_host_pools_registered()
        except Exception:
            self.storage.close()
            raise

    def store(self, keys: list[str], *pages: int, before: list[str] | None = None) -> list[bool]:
        """`before` are the keys of what is before them, as SGLang says them where it is told to."""
        info = HiCacheStorageExtraInfo(prefix_keys=before)
        return self.storage.batch_set_v1(keys, slots(*pages), info)

    def load(self, keys: list[str], *pages: int) -> list[bool]:
        return self.storage.batch_get_v1(keys, slots(*pages))
