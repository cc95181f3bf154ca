"""A connector that keeps nothing, says something at the start as vLLM's NixlConnector does, and
takes what it is handed then for the same of its own kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    SupportsHMA,
)

CONFIG = {
    "kv_connector": "Shaking",
    "kv_connector_module_path": "tests.connectors.vllm.shaking",
    "kv_role": "kv_both",
}


@dataclass
class Said(KVConnectorHandshakeMetadata):
    address: str = "here"


class Shaking(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)

    def get_handshake_metadata(self) -> Said:
        return Said()

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        assert [one.address for one in metadata.values()] == ["here"] * len(metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None
