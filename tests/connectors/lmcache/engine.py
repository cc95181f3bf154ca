"""One rank of LMCache's own engine on the CPU: its token hashes, allocator, manager and loader.

What stands in for the GPU is one tensor that LMCache's chunks are copied from and to. The plug-in
is made by LMCache's own loader, from the configuration a user would write.
"""

from __future__ import annotations

import time
from typing import Any, Self

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.cache_engine import LMCacheEngine, LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector import GPUConnectorInterface
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

from kvstore.engine.connectors.lmcache.lost import LOST_NS
from tests.nodes import eventually

CHUNK, LAYERS, HEADS, DIM = 16, 3, 2, 8
PLUGIN = "pool"
MODEL = "a/model"


def settings(moonpool: str, **more: Any) -> dict[str, Any]:
    """`extra_config` as the guide has it."""
    plugin = {
        "module_path": "kvstore.engine.connectors.lmcache",
        "class_name": "MoonpoolBackend",
        "moonpool": moonpool,
        "revision": "r1",
        **more,
    }
    return {f"storage_plugin.{PLUGIN}.{k}": v for k, v in plugin.items() if v is not None}


class Kv(GPUConnectorInterface):
    """The KV of one prompt, token by token, where an engine would have its pages."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        self.tensor = torch.zeros(shape, dtype=dtype)

    def fill(self, seed: int) -> Self:
        """Any bytes, not only fine numbers."""
        drawn = torch.Generator().manual_seed(seed)
        raw = self.tensor.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=drawn, dtype=torch.uint8))
        return self

    def bytes(self, start: int, end: int) -> torch.Tensor:
        return self.tensor[:, :, start:end].contiguous().view(torch.uint8)

    def from_gpu(self, memory_obj: MemoryObj, start: int, end: int, **_: Any) -> None:
        memory_obj.tensor.copy_(self.tensor[:, :, start:end])

    def to_gpu(self, memory_obj: MemoryObj, start: int, end: int, **_: Any) -> None:
        self.tensor[:, :, start:end].copy_(memory_obj.tensor)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for one in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(*one)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for one in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(*one)

    def get_shape(self, num_tokens: int) -> torch.Size:
        parts, layers, _, hidden = self.tensor.shape
        return torch.Size([parts, layers, num_tokens, hidden])


class Engine:
    """A rank. `config` and `metadata` change what a plain one has."""

    def __init__(
        self,
        extra: dict[str, Any],
        *,
        config: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        lookups: Any = None,
    ) -> None:
        about = {
            "chunk_size": CHUNK,
            "local_cpu": False,  # nothing is found but in the pool
            "max_local_cpu_size": 0.03,
            "storage_plugins": [PLUGIN],
            "extra_config": extra,
            "py_enable_gc": True,
            **(config or {}),
        }
        rank = {
            "model_name": MODEL,
            "world_size": 1,
            "worker_id": 0,
            "kv_dtype": torch.bfloat16,
            "kv_shape": (LAYERS, 2, CHUNK, HEADS, DIM),
            "role": "worker",
            "chunk_size": CHUNK,
            **(metadata or {}),
        }
        here = {"local_world_size": rank["world_size"], "local_worker_id": rank["worker_id"]}
        self.metadata = LMCacheMetadata(**here | rank)
        [whole] = self.metadata.get_shapes(8 * CHUNK)
        self.kv = Kv(whole, self.metadata.kv_dtype)
        settled = LMCacheEngineConfig.from_defaults(**about)
        self.engine = LMCacheEngine(  # and not its builder, whose statistics take seconds to end
            settled,
            self.metadata,
            LMCacheEngineBuilder._Create_token_database(settled, self.metadata),
            self.kv,
            lambda tensor, source: None,
            lambda thing, source: thing,
        )
        self.engine.post_init(async_lookup_server=lookups)
        self.manager = self.engine.storage_manager

    @property
    def plugin(self) -> Any:
        """The backend that the loader made, or None if it refused."""
        return self.manager.storage_backends.get(PLUGIN)

    def store(self, tokens: list[int], skip: int = 0) -> None:
        """Store a prompt's KV behind so many tokens; wait until it is in the pool or given up."""
        wanted = torch.ones(len(tokens), dtype=torch.bool)
        wanted[:skip] = False
        self.engine.store(torch.tensor(tokens), mask=wanted)
        self.wait(self.keys(tokens))

    def past_doubt(self) -> None:
        """As if it were long enough ago now that a load came back short."""
        long_ns = LOST_NS + time.monotonic_ns()
        self.plugin._lost._now_ns = lambda: long_ns

    def wait(self, keys: list[CacheEngineKey]) -> None:
        eventually(lambda: not any(self.plugin.exists_in_put_tasks(key) for key in keys))

    def keys(self, tokens: list[int]) -> list[CacheEngineKey]:
        found = self.engine.token_database.process_tokens(torch.tensor(tokens))
        return [key for _, _, key in found]

    def lookup(
        self, tokens: list[int], pin_as: str = "", tags: dict[str, str] | None = None
    ) -> int:
        """Leading tokens that can be had, as vLLM asks it; without a name the pins end at once."""
        pin = {"lookup_id": pin_as or "nobody", "pin": True}
        found = self.engine.lookup(torch.tensor(tokens), request_configs=tags, **pin)
        if not pin_as:
            self.engine.lookup_unpin("nobody")
        return int(found)

    def retrieve(self, tokens: list[int], name: str = "") -> int:
        """Load a prompt's KV; how many leading tokens came."""
        mask = self.engine.retrieve(torch.tensor(tokens), req_id=name)
        count = int(mask.sum())
        assert bool(mask[:count].all()), "what comes is a prefix"
        return count

    @property
    def memory_in_use(self) -> int:
        """Bytes of LMCache's CPU memory that somebody holds."""
        allocator = self.manager.allocator_backend.get_memory_allocator()
        return int(allocator.pin_allocator.total_allocated_size)

    def close(self) -> None:
        self.engine.close()
