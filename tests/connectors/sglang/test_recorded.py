"""The installed SGLang is the one that was recorded, and its own checks accept the backend."""

from __future__ import annotations

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageFailureInjector

from kvstore.engine.connectors.sglang import MoonpoolStorage
from tests.connectors.record import RECORDS, record_of, recorded


def test_the_record_is_what_the_installed_engine_asks_for() -> None:
    record = recorded(RECORDS / "sglang-0.5.23.json")
    assert record == record_of(record["engine"], record["interface"], record["connector"])


def test_the_backend_is_a_storage_with_nothing_abstract_left() -> None:
    assert issubclass(MoonpoolStorage, HiCacheStorage)
    assert not MoonpoolStorage.__abstractmethods__


def test_all_that_sglang_s_proxy_passes_on_is_there() -> None:
    passed = [name for name in vars(HiCacheStorageFailureInjector) if name[0] != "_"]
    assert not [name for name in passed if not hasattr(MoonpoolStorage, name)]
