"""SGLang's own cache controller, as far as it moves pages: what it stores it finds and loads."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest
from sglang.srt.managers.cache_controller import (
    HiCacheController,
    PrefetchOperation,
    StorageOperation,
)
from sglang.srt.mem_cache.utils import get_storage_hash_str

from tests.connectors.sglang.engine import PAGE, Engine, fill, mha_pool, mla_pool, page_bytes, slots

Engines = Callable[..., Engine]
LAYOUTS = [(mha_pool, "page_first"), (mha_pool, "page_head"), (mla_pool, "layer_first")]


def controller_of(engine: Engine, zero_copy: bool) -> Any:
    """One rank's controller, without the scheduler, the device and the threads around it."""
    made: Any = object.__new__(HiCacheController)
    made.storage_backend, made.storage_host_pool = engine.storage, engine.pool
    made.mem_pool_host, made.page_size = engine.pool, PAGE
    if zero_copy:  # as `interface_v1` in the extra config has it
        made.page_get_func, made.page_set_func = made._page_get_zero_copy, made._page_set_zero_copy
    else:
        made.page_get_func, made.page_set_func = made._generic_page_get, made._generic_page_set
    made.prefetch_sync_queue = Queue()
    return made


@pytest.mark.parametrize("zero_copy", [True, False])
@pytest.mark.parametrize(("make", "layout"), LAYOUTS)
def test_what_one_controller_backs_up_another_prefetches(
    engine_of: Engines, make: Any, layout: str, zero_copy: bool
) -> None:
    # The first page is each case's own, and so are the hashes of all that come after it.
    tokens = [int(zero_copy), len(layout), *range(5 * PAGE - 2)]
    hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
    ours, theirs = engine_of(make(layout)), engine_of(make(layout))
    fill(ours.pool, 5)
    backup = StorageOperation(slots(3, 1, 4, 9, 2), tokens, hash_value=hashes)
    controller_of(ours, zero_copy)._page_backup(backup)
    assert backup.completed_tokens == 5 * PAGE

    fetcher = controller_of(theirs, zero_copy)
    longer = PrefetchOperation("request", [*tokens, *range(PAGE)])
    found, count = fetcher._storage_hit_query(longer)
    assert (found, count) == (hashes, 5 * PAGE), "the page after the last is a miss"
    longer.hash_value, longer.host_indices = found, slots(8, 7, 0, 5, 6)
    assert fetcher._page_transfer(longer) == 5
    pairs = zip((3, 1, 4, 9, 2), (8, 7, 0, 5, 6), strict=True)
    assert all(page_bytes(ours.pool, a) == page_bytes(theirs.pool, b) for a, b in pairs)


def test_pages_are_stored_behind_those_that_the_controller_says_are_before_them(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sglang.srt.managers.cache_controller.STORAGE_BATCH_SIZE", 2)
    tokens = [77, *range(5 * PAGE - 1)]
    hashes = get_storage_hash_str(tokens, None, page_size=PAGE)
    ours, stored = engine_of(mha_pool("page_first")), []
    client = ours.storage._client
    store = client.store_each
    monkeypatch.setattr(
        client, "store_each", lambda some, memory: stored.append(some) or store(some, memory)
    )
    for before in (["first", "last"], [], None):
        backup = StorageOperation(slots(0, 1, 2, 3, 4), tokens, hash_value=hashes)
        backup.prefix_keys = before
        controller_of(ours, zero_copy=True)._page_backup(backup)
    names = [ours.storage._key(one) for one in ("last", *hashes)]
    keys = client.keyed(names).hashes
    said = [one.after for one in stored]
    assert said == [keys[0], keys[2], keys[4], b"", keys[2], keys[4], None, None, None]
