"""The HiCache storage backend: SGLang's pages as blocks that stand alone under its own hashes.

What is reported as read has been verified strip by strip; everything else, a dead node included, is
a miss, and the engine computes it. No call raises for the pool's sake, nor waits much past the
deadline; that a node is gone is logged once, and once that it is back.

Ranks of a tensor-parallel group never share a block: a key carries (rank, size), and a block holds
that rank's heads. SGLang's ranks store by threads of their own, not in step, and one may fail or
stop where another went on. Were a block theirs together, it would stay unreadable until the last of
them sealed it, and its memory held as long. The price is that engines of another size cannot use
it. An MLA latent is the same on every rank: SGLang has rank 0 store it, and all of them load it.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolName,
)

from kvstore.client import PAGES, Client, Keyed, KVSpec, KVStoreError, Memory

from ..unsupported import Unsupported
from .facts import Named, check_config, named
from .fleet import Fleet, Part, check_fleet, reports
from .pages import axes_of, flat_axes, flat_shape, layers_of, pages_of
from .settings import Settings
from .stats import Stats

logger = logging.getLogger(__name__)

# Models, by their names and their weights', of which this process may have others than these say:
# kept for as long as it lives, since a backend that is attached anew is given the old name.
_cleared: set[tuple[str, str]] = set()


class MoonpoolStorage(HiCacheStorage):
    """Backs SGLang's hierarchical cache with a Moonpool node. Safe to call from its threads."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: Any = None) -> None:
        self._settings = Settings.of(storage_config.extra_config or {})
        check_config(storage_config)
        if self._settings.conductors:
            check_fleet(storage_config)
        self._config = storage_config
        self._client: Client | None = None
        self._fleet: Fleet | None = None
        self._page_bytes = 0  # of what is stored, once it is known
        self._stats = Stats(storage_config.enable_storage_metrics)
        self._trouble = ""  # what was said last; said again only when it changes
        self._speaking = threading.Lock()

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool's facts and begin. Raises `Unsupported` for one that cannot be kept."""
        self._named = named(self._config, mem_pool_host, self._settings)
        super().register_mem_pool_host(mem_pool_host)
        self._axes = axes_of(mem_pool_host.layout, self._config.is_mla_model)
        self._layers, self._layer_axes = layers_of(
            mem_pool_host.kv_buffer, self._axes, mem_pool_host.page_size
        )
        if self._weights not in _cleared:
            self._begin(self._named)
        else:
            self._renew()

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Accepts the KV pool, and refuses any other: a model that has more is not supported."""
        if host_pool_name != PoolName.KV:
            self.close()  # SGLang does not, and goes on without
            raise Unsupported(
                f"the host pool {str(host_pool_name)!r} beside the KV pool is not supported: "
                "models with windows, state layers, indexers or drafts cannot use this backend"
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """Leading keys that can be had now."""
        there = self._ask(keys, lambda client, blocks: client.exists_each(blocks))
        return _leading(there)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Load pages to where they belong in the host pool; True for each that is whole there."""
        begun = time.monotonic()
        loaded = self._ask(
            keys,
            lambda client, blocks: client.load_each(blocks, self._memory(client, host_indices)),
        )
        self._stats.loaded(_leading(loaded), self._page_bytes, time.monotonic() - begun)
        return loaded

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Store pages from the host pool; True for each that is in the pool now. Where SGLang says
        which pages are before them, none of those makes room sooner than what follows it."""
        begun = time.monotonic()
        before = extra_info.prefix_keys if extra_info is not None else None

        def store(client: Client, blocks: Keyed) -> list[bool]:
            if before is not None:
                last = self._key(before[-1]) if before else ""
                blocks = client.keyed([self._key(key) for key in keys], after=last)
            return client.store_each(blocks, self._memory(client, host_indices))

        stored = self._ask(keys, store)
        self._stats.stored(stored.count(True), self._page_bytes, time.monotonic() - begun)
        return stored

    # SGLang's older interface: pages go by way of flat tensors, one copy more than the above.

    def batch_get(
        self,
        keys: list[str],
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> list[torch.Tensor | None]:
        """Pages as flat tensors, in the given ones or new; None for each that is not there."""
        begun, pages = time.monotonic(), self._flat_pages(len(keys))
        loaded = self._ask(
            keys, lambda client, blocks: client.load_each(blocks, self._flat(client, pages))
        )
        self._stats.loaded(_leading(loaded), self._page_bytes, time.monotonic() - begun)
        targets: Sequence[Any] = target_locations or [None] * len(keys)
        found: list[torch.Tensor | None] = []
        for there, page, target in zip(loaded, pages, targets, strict=True):
            if there and target is not None:
                target.view(-1).copy_(page.view(-1))
            found.append((page.flatten() if target is None else target) if there else None)
        return found

    def batch_set(
        self,
        keys: list[str],
        values: Any | None = None,
        target_locations: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        """Store flat pages; True if every one is in the pool now."""
        if values is None:
            self._say("pages given by address are not supported: set interface_v1 to 1")
            return False
        begun, pages = time.monotonic(), self._flat_pages(len(keys))
        for page, value in zip(pages, values, strict=True):
            page.view(-1).copy_(value.view(-1))
        stored = self._ask(
            keys, lambda client, blocks: client.store_each(blocks, self._flat(client, pages))
        )
        self._stats.stored(stored.count(True), self._page_bytes, time.monotonic() - begun)
        return all(stored)

    def get(
        self, key: str, target_location: Any | None = None, target_sizes: Any | None = None
    ) -> torch.Tensor | None:
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def set(
        self,
        key: str,
        value: Any | None = None,
        target_location: Any | None = None,
        target_sizes: Any | None = None,
    ) -> bool:
        return self.batch_set([key], None if value is None else [value])

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Never again hit what was stored before: weights may have changed in place.

        Other engines keep their blocks. Ranks that share a latent cannot agree on a new namespace
        from here, so after this they neither store nor hit until a backend is attached whose
        `revision` is another.
        """
        if self._client is None:
            return
        _cleared.add(self._weights)
        self.close()  # first: SGLang says that it was done, whatever is raised here
        self._renew()

    def get_stats(self) -> Any:
        """What was moved since the last call, where SGLang wants to know; else None."""
        return self._stats.take()

    def close(self) -> None:
        self._end_fleet()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def _weights(self) -> tuple[str, str]:
        return self._named.spec.model, self._named.weights

    def _renew(self) -> None:
        if self._config.is_mla_model and self._config.tp_size > 1:
            self._client = None
            self._say("cleared: attach it with another revision, for ranks that share a latent")
        else:
            self._begin(_renewed(self._named))

    def _begin(self, named: Named) -> None:
        spec = named.spec
        config, seconds = self._config, self._settings.deadline_ms / 1e3
        label = f"sglang tp {config.tp_rank}/{config.tp_size}"
        client = Client(self._settings.locator, spec, label=label, deadline_seconds=seconds)
        self._page_bytes = client.space.layout.payload_bytes
        self._client = client
        try:
            client.register()
        except KVStoreError as error:  # the engine serves without; each call looks again
            self._say(f"{self._settings.moonpool}: {error}")
        if self._settings.conductors and reports(config):
            ranks = 1 if config.is_mla_model else config.tp_size
            part = Part(self._settings, client, named.weights, self._naming, ranks)
            self._fleet = Fleet(part)

    def _end_fleet(self) -> None:
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()

    def _ask(self, keys: list[str], call: Callable[[Client, Keyed], list[bool]]) -> list[bool]:
        """Call for these keys; nothing is there, and nothing is stored, where the pool is not."""
        client = self._client
        if client is None or not keys:
            return [False] * len(keys)
        try:
            answer = call(client, client.keyed([self._key(key) for key in keys]))
        except (KVStoreError, ValueError) as error:
            self._say(f"{self._settings.moonpool}: {error}")
            return [False] * len(keys)
        if True in answer or client.reachable:
            self._say("")
        else:
            self._say(f"{self._settings.moonpool} cannot be reached")
        return answer

    @property
    def _naming(self) -> str:
        config = self._config
        # Not a rank's own where all ranks hold the same bytes.
        part = "mla" if config.is_mla_model else f"{config.tp_rank}/{config.tp_size}"
        return PAGES + part

    def _key(self, key: str) -> str:
        return f"{self._naming} {key}"

    def _memory(self, client: Client, host_indices: torch.Tensor) -> Memory:
        pages = pages_of(host_indices, self.mem_pool_host.page_size)
        return client.memory(self._layers, self._layer_axes, pages.numpy())

    def _flat_pages(self, count: int) -> torch.Tensor:
        pool = self.mem_pool_host
        shape = flat_shape(pool, self._axes, count, self._config.is_mla_model)
        return torch.empty(shape, dtype=pool.dtype)

    def _flat(self, client: Client, pages: torch.Tensor) -> Memory:
        layers, axes = layers_of(pages, flat_axes(self._axes), self.mem_pool_host.page_size)
        return client.memory(layers, axes, range(len(pages)))

    def _say(self, trouble: str) -> None:
        """Log what changed: trouble once, and its end once."""
        with self._speaking:
            if trouble == self._trouble:
                return
            before, self._trouble = self._trouble, trouble
        if trouble:
            logger.warning("Moonpool: %s; pages miss and are not stored until it is", trouble)
        elif before:
            logger.warning("Moonpool: %s answers again", self._settings.moonpool)


def _leading(pages: list[bool]) -> int:
    """SGLang uses none behind the first that is missing."""
    return pages.index(False) if False in pages else len(pages)


def _renewed(named: Named) -> Named:
    """The same facts under names that nothing was ever stored under, and weights nobody knows."""
    revision = f"cleared {secrets.token_hex(16)}"
    return Named(KVSpec.of_dict(named.spec.as_dict() | {"revision": revision}), revision)
