"""The installed LMCache is the one that was recorded, and its own classes accept the plug-in."""

from __future__ import annotations

from collections.abc import Callable

from lmcache.v1.storage_backend.abstract_backend import (
    StorageBackendInterface,
    StoragePluginInterface,
)
from lmcache.v1.storage_backend.audit_backend import AuditBackend

from kvstore.engine.connectors.lmcache import MoonpoolBackend
from tests.connectors.lmcache.engine import CHUNK, Engine
from tests.connectors.record import RECORDS, record_of, recorded

LEFT_TO_LMCACHE = {"cancel_request"}  # nothing of a request is kept here


def test_the_record_is_what_the_installed_lmcache_asks_for() -> None:
    record = recorded(RECORDS / "lmcache-0.5.6.json")
    assert record == record_of(record["engine"], record["interface"], record["connector"])


def test_the_plug_in_is_one_with_nothing_abstract_left() -> None:
    assert issubclass(MoonpoolBackend, StoragePluginInterface)
    assert not MoonpoolBackend.__abstractmethods__


def test_every_method_of_the_interface_is_ours() -> None:
    asked = {name for name in vars(StorageBackendInterface) if name[0] != "_"}
    assert asked - LEFT_TO_LMCACHE <= vars(MoonpoolBackend).keys()


def test_lmcache_s_audit_wraps_it(engine_of: Callable[..., Engine]) -> None:
    ours, tokens = engine_of(), [3] * 2 * CHUNK
    ours.store(tokens)
    audited = AuditBackend(ours.plugin)
    assert audited.contains(ours.keys(tokens)[0]) and str(ours.plugin) == "MoonpoolBackend"
    assert ours.plugin.get_allocator_backend() is ours.manager.local_cpu_backend
    assert ours.plugin.touch_cache() is None
