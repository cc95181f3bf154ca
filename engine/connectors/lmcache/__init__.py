"""LMCache on Moonpool: its chunks in the pool, through LMCache's own storage plug-in.

    storage_plugins: [moonpool]
    extra_config:
      storage_plugin.moonpool.module_path: kvstore.engine.connectors.lmcache
      storage_plugin.moonpool.class_name: MoonpoolBackend
      storage_plugin.moonpool.moonpool: 127.0.0.1:7410     # or the directory a node runs in

LMCache names a chunk by model, world size, worker, prefix hash and dtype, and so does the pool: a
chunk comes back to a rank of the same number of as many ranks. Another degree of tensor parallelism
finds nothing here; the vLLM connector (`kvstore.engine.connectors.vllm`) is the path that shares
across degrees. With MLA, whose latent all ranks share, LMCache stores that of the first alone, as
of one rank of one, and every degree finds it.
"""

from .backend import MoonpoolBackend

__all__ = ["MoonpoolBackend"]
