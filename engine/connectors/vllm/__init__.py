"""vLLM on Moonpool: prefix reuse across processes, and prefill apart from decode.

    --kv-transfer-config '{"kv_connector": "MoonpoolConnector",
        "kv_connector_module_path": "kvstore.engine.connectors.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

The scheduler's half decides on hashes and counts; each worker's half moves the bytes of its own
rank. Whatever goes wrong with the pool is a miss: vLLM then computes what it would have loaded.
"""

from contextlib import suppress

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

from .connector import MoonpoolConnector

# vLLM's front end asks for it by its name alone where it makes figures of what MultiConnector says.
with suppress(ValueError):  # somebody registered it before
    KVConnectorFactory.register_connector(
        MoonpoolConnector.__name__, __name__, MoonpoolConnector.__name__
    )

__all__ = ["MoonpoolConnector"]
