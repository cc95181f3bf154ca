"""The storage plug-in that LMCache loads: lookups, loads and stores of one rank's chunks.

Whatever goes wrong is a miss, or a chunk that is not stored; nothing here raises into the engine.
The names, arguments and return values are those of LMCache's `StoragePluginInterface`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from kvstore.client.later import later

from ..unsupported import Unsupported
from .facts import ADAPTER, facts_of
from .lost import Lost
from .node import Node
from .order import Order
from .pins import Pins
from .settings import Settings
from .stores import Stores
from .trust import Trust

log = init_logger(__name__)

T = TypeVar("T")
Told = Callable[[CacheEngineKey], None]

THREADS = 4  # for calls that LMCache's event loop awaits
ROOM_SECONDS = 0.005  # between two looks for room in LMCache's CPU memory


class MoonpoolBackend(StoragePluginInterface):
    """LMCache's chunks in a Moonpool. Raises, when it is made, for what it cannot keep right."""

    def __init__(
        self,
        dst_device: str = "cpu",
        config: Any = None,
        metadata: Any = None,
        local_cpu_backend: Any = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        if config is None or metadata is None:
            raise Unsupported("LMCache's config and metadata are wanted")
        if local_cpu_backend is None and metadata.role != "scheduler":
            raise Unsupported("chunks are loaded into LMCache's CPU memory: set max_local_cpu_size")
        settings = Settings.of(config, type(self))
        self._facts = facts_of(config, metadata, settings)
        self._deadline_seconds = settings.deadline_ms / 1e3
        spec, ranks = self._facts.spec, metadata.world_size
        self._lost = Lost(f"{spec.model} {spec.revision} {ranks}", ranks)
        self._node = Node(self._facts, settings, metadata.worker_id)
        self._pins = Pins(self._node, settings.pin_ms / 1e3)
        self._order = Order()
        elsewhere = metadata.local_world_size != ranks
        self._trust = Trust(self._order, self._lost, self._node.tell, elsewhere)
        self._stores = Stores(self._node, self._order, settings.pending_chunks)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moonpool-load")
        self._most = _room(local_cpu_backend)
        self._closed = False
        if local_cpu_backend is not None:
            self._outlive(local_cpu_backend)
            self._order.hear(local_cpu_backend)
            self._trust.guard(local_cpu_backend)

    def __str__(self) -> str:
        return type(self).__name__

    # Lookups

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self._leading_found([key], pin) == 1

    def batched_contains(self, keys: list[CacheEngineKey], pin: bool = False) -> int:
        found = self._leading_found(self._loadable(keys) if pin else keys, pin)
        if found < len(keys) and not pin:
            # LMCache asks without a pin when it begins to load what a lookup promised.
            self._trust.short(keys[found])
        return found

    def _leading_found(self, keys: list[CacheEngineKey], pin: bool) -> int:
        names = self._names(keys)
        if not names:
            return 0
        self._order.tell(keys)
        if pin:
            return self._safe(lambda: self._pins.take(names), 0)
        nothing = [False] * len(names)
        found = self._safe(lambda: self._node.exists(names), nothing)
        return next((index for index, there in enumerate(found) if not there), len(found))

    async def batched_async_contains(
        self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False
    ) -> int:
        some = self._loadable(keys)
        asked = later(self._threads, lambda: self._leading_found(some, pin))
        return await asyncio.wrap_future(asked) if asked else 0

    def pin(self, key: CacheEngineKey) -> bool:
        return self.contains(key, pin=True)

    def unpin(self, key: CacheEngineKey) -> bool:
        return self._safe(lambda: self._pins.drop(key.to_string()), False)

    def touch_cache(self) -> None:
        """Nothing: the node orders its blocks by its own clock."""

    # Loads

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        found = self._load(keys)
        self._trust.loaded(keys, found)
        return found

    def _load(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        names = self._names(keys)
        if not names or self.local_cpu_backend is None or not self._node.answers:
            return [None] * len(keys)  # and nothing is evicted to make room for nothing
        chunks: list[MemoryObj] = []
        self._safe(lambda: self._find_room(len(names), chunks), None)
        nothing = [False] * len(chunks)
        loaded = self._safe(lambda: self._node.load(names[: len(chunks)], chunks), nothing)
        found: list[MemoryObj | None] = [None] * len(keys)
        for index, (chunk, good) in enumerate(zip(chunks, loaded, strict=True)):
            if good:
                found[index] = chunk
            else:
                chunk.ref_count_down()
        return found

    def get_non_blocking(
        self, key: CacheEngineKey, location: str | None = None
    ) -> Future[MemoryObj | None] | None:
        return later(self._threads, lambda: self._load([key])[0])

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        """The leading chunks that can be had. It ends the pins of `batched_async_contains`.

        Fewer than were looked up break no promise: the scheduler is told how many came.
        """
        asked = later(self._threads, lambda: self._leading(keys))
        if asked is None:
            return []
        try:
            return await asyncio.shield(asyncio.wrap_future(asked))
        except asyncio.CancelledError:
            asked.add_done_callback(lambda late: _let_go(late.result()))
            raise

    # Stores

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        return key in self._stores

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Told | None = None,
    ) -> list[Future[None]] | None:
        submitted = self._safe(lambda: self._submit(keys, objs, on_complete_callback), None)
        return [submitted] if submitted is not None else None

    async def async_batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Told | None = None,
    ) -> None:
        self.batched_submit_put_task(keys, objs, transfer_spec, on_complete_callback)

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys: list[CacheEngineKey], force: bool = True) -> int:
        names = self._names(keys)
        return self._safe(lambda: self._node.remove(names), 0) if names else 0

    # The rest

    def get_allocator_backend(self) -> Any:
        if self.local_cpu_backend is None:
            raise Unsupported("a scheduler has no CPU memory to allocate from")
        return self.local_cpu_backend

    def close(self) -> None:
        self._closed = True
        self._stores.end()
        self._threads.shutdown(wait=True)
        self._pins.close()
        self._node.close()
        self._lost.close()

    def _outlive(self, memory: Any) -> None:
        """End our moves before LMCache frees the memory they read from and write to.

        LMCache closes that memory first and its plug-ins after it. A store under way would read
        freed memory, and could seal what it found there.
        """
        free = memory.close

        def close() -> None:
            self.close()
            free()

        memory.close = close

    def _names(self, keys: Sequence[CacheEngineKey]) -> list[str]:
        """What the chunks are called in the pool; none if they cannot be kept there."""
        if self._closed or not self._as_expected() or not all(map(self._named, keys)):
            return []
        return [key.to_string() for key in keys]

    def _as_expected(self) -> bool:
        meant = self._facts.still(self.metadata)
        if not meant:
            self._node.tell(
                f"chunks are now {self.metadata.get_shapes()} of {self.metadata.get_dtypes()}, "
                f"not {self._facts.shape} of {self._facts.dtype}: they are not kept"
            )
        return meant

    def _named(self, key: CacheEngineKey) -> bool:
        meant = self._facts.tells(key)
        if not meant:
            self._node.tell(
                "the engine has LoRA adapters, and LMCache's keys do not say whose KV a chunk is: "
                f"kept are those of requests that say it, by lmcache.tag.{ADAPTER}"
            )
        return meant

    def _submit(
        self, keys: Sequence[CacheEngineKey], objs: Sequence[MemoryObj], told: Told | None
    ) -> Future[None] | None:
        if self._closed or not self._as_expected():
            return None
        self._order.tell(keys)
        sure = self._trust.count(keys)
        kept = []
        for key, obj in zip(keys[:sure], objs[:sure], strict=True):
            refusal = self._facts.refusal(obj)
            if refusal:
                self._node.tell(f"not stored: {refusal}")
            elif self._named(key):
                kept.append((key, obj))
        return self._stores.submit([key for key, _ in kept], [obj for _, obj in kept], told)

    def _loadable(self, keys: list[CacheEngineKey]) -> list[CacheEngineKey]:
        """As many of a prompt as fit into LMCache's memory, beside those before them: a lookup
        comes here for what that memory has not, and pins there what it has."""
        before, _ = self._order.line(keys[0]) if keys else ((), True)
        some = keys[: max(0, self._most - len(before))]
        if len(some) < len(keys):
            self._node.tell(
                f"max_local_cpu_size has room for {self._most} chunks: no more of a prompt are "
                "looked for"
            )
        return some

    def _find_room(self, count: int, chunks: list[MemoryObj]) -> None:
        """Fill `chunks` with up to `count`; fewer if LMCache has no room within the deadline."""
        until = time.monotonic() + self._deadline_seconds
        while len(chunks) < min(count, self._most) and time.monotonic() < until:
            # Not LMCache's busy loop: that one has no end.
            one = self.local_cpu_backend.allocate(
                [self._facts.shape], [self._facts.dtype], self._facts.format, busy_loop=False
            )
            if one is None:
                time.sleep(ROOM_SECONDS)
            else:
                chunks.append(one)
        if len(chunks) < count:
            self._node.tell("LMCache's CPU memory has no room to load into: a miss")

    def _leading(self, keys: list[CacheEngineKey]) -> list[MemoryObj]:
        found = self._load(keys)
        for key in keys:
            self.unpin(key)
        count = found.index(None) if None in found else len(found)
        _let_go([one for one in found[count:] if one is not None])
        return [one for one in found[:count] if one is not None]

    def _safe(self, call: Callable[[], T], otherwise: T) -> T:
        """Make a call whose failure would be a bug of ours, and not let the engine pay for it."""
        try:
            return call()
        except Exception:
            log.exception("Moonpool: a bug, and a miss; please report it")
            return otherwise


def _room(memory: Any) -> int:
    """How many chunks LMCache's memory holds; a scheduler loads none, whatever it finds.

    LMCache's own figure is of what was configured, which with MLA may be another rank's.
    """
    allocator = getattr(memory, "memory_allocator", None)
    align = getattr(allocator, "align_bytes", None)
    if align is None:
        return sys.maxsize
    size = getattr(allocator, "size", None) or getattr(allocator, "cpu_size", None)  # of enable_p2p
    if size is None:
        return int(memory.calculate_chunk_budget())
    return int(size // (-(-memory.get_full_chunk_size_bytes() // align) * align))


def _let_go(chunks: Sequence[MemoryObj]) -> None:
    for chunk in chunks:
        chunk.ref_count_down()
