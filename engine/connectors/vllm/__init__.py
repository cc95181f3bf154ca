"""vLLM on Moonpool: prefix reuse across processes, and prefill apart from decode.

    --kv-transfer-config '{"kv_connector": "MoonpoolConnector",
        "kv_connector_module_path": "kvstore.engine.connectors.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute"}'

The scheduler's half decides on hashes and counts; each worker's half moves the bytes of its own
rank. Whatever goes wrong with the pool is a miss: vLLM then computes what it would have loaded.
"""

from .connector import MoonpoolConnector

__all__ = ["MoonpoolConnector"]
