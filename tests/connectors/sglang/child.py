"""A whole SGLang engine on the CPU, with HiCache and this backend; it serves prompts and ends.

SGLang has no CPU path for HiCache, nor for rotary embeddings without its own CPU kernels. Made up
here, and nowhere else: the copies between its device pool and its host pool, as plain indexing; the
device's streams and events, which are over as soon as they are made; and host memory that is not
pinned. What lies behind the host pool, the backend, is reached as on any machine.
"""

from __future__ import annotations

import contextlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

from tests.connectors.sglang.absent import make_up_torchvision
from tests.connectors.sglang.server import BACKEND


class Over:
    """A stream or an event of a device that does everything at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0

    def record(self, *_: Any) -> None: ...

    wait = synchronize = wait_stream = wait_event = record_event = record


def make_up_a_device() -> None:
    """Runs in each of SGLang's processes, which all import this module first."""
    make_up_torchvision()
    device: Any = torch.cpu
    device.Event = device.Stream = Over
    device.stream, device.current_stream = contextlib.nullcontext, Over
    # Named by SGLang's rotary embedding on an unknown device, which then computes it in torch.
    kernels: Any = types.ModuleType("vllm._custom_ops")
    kernels.rotary_embedding = None
    sys.modules["vllm"], sys.modules["vllm._custom_ops"] = types.ModuleType("vllm"), kernels

    from sglang.srt.mem_cache.pool_host import base, common, mha

    common.ALLOC_MEMORY_FUNCS.default_factory = lambda: unpinned
    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 28  # of 10 GB
    mha.MHATokenToKVPoolHost.load_to_device_per_layer = load_layer
    mha.MHATokenToKVPoolHost.backup_from_device_all_layer = back_up


def unpinned(dims: Any, dtype: torch.dtype, **_: Any) -> torch.Tensor:
    return torch.empty(dims, dtype=dtype)


def load_layer(self: Any, _: Any, host: Any, device: Any, layer: int, *__: Any, **___: Any) -> None:
    self.device_k_buffers[layer][device] = self.k_data_refs[layer][host]
    self.device_v_buffers[layer][device] = self.v_data_refs[layer][host]


def back_up(self: Any, _: Any, host: Any, device: Any, *__: Any) -> None:
    for layer in range(self.layer_num):
        self.k_data_refs[layer][host] = self.device_k_buffers[layer][device]
        self.v_data_refs[layer][host] = self.device_v_buffers[layer][device]


make_up_a_device()


def main(told: dict[str, Any]) -> None:
    from sglang.srt.entrypoints.engine import Engine

    about = {**BACKEND, "moonpool": told["moonpool"]}
    engine = Engine(
        model_path=told["model"],
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        max_total_tokens=2048,
        page_size=16,
        enable_hierarchical_cache=True,
        hicache_ratio=2.0,
        hicache_mem_layout=told["layout"],
        hicache_io_backend=told["io"],
        hicache_write_policy="write_through",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_storage_backend="dynamic",
        hicache_storage_backend_extra_config=json.dumps(about),
    )
    greedy = {"max_new_tokens": 12, "temperature": 0}
    made = engine.generate(input_ids=[told["prompt"]], sampling_params=greedy)[0]
    Path(told["answer"]).write_text(
        json.dumps(
            {
                "tokens": made["output_ids"],
                "reused": (made["meta_info"]["cached_tokens_details"] or {}).get("storage", 0),
            }
        )
    )
    sys.stdin.readline()  # until the caller has seen what was stored
    engine.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
