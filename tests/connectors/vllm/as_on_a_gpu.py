"""The connector, to whom vLLM's tensors of the CPU are those of a GPU: its kernels move them, in
Triton's interpreter, "straight" to slots and from there, or through "pinned" memory; or within HBM
that is "lent" by the node, for which a file stands.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from kvstore.engine.connectors import vllm
from tests.connectors.vllm.engine import KERNELS

MOVES = Counter[str]()  # of this process, by what made them


class MoonpoolConnector(vllm.MoonpoolConnector):
    def register_kv_caches(self, *caches: Any, **named: Any) -> None:
        _as_on_a_gpu(os.environ[KERNELS])
        super().register_kv_caches(*caches, **named)


def _as_on_a_gpu(way: str) -> None:
    # Late: vLLM looks through all that is loaded when it starts, and trips over numba's.
    import torch

    from kvstore.client import memory
    from kvstore.kernels.gpu import resident, staging, straight
    from kvstore.transfer import reached

    if way == "lent":
        import pytest

        from tests.lending import stand_in

        stand_in(pytest.MonkeyPatch())
    reached.RUN_BYTES_MIN = {"straight": 0, "pinned": 1 << 40, "lent": 1 << 40}[way]
    memory._staging = lambda tensors: staging.staging_of(torch.device("cpu"))
    for owner in (staging.Staging, straight.Straight, resident.Resident):
        for name in ("gathered", "scattered"):
            setattr(owner, name, _counted(getattr(owner, name), f"{owner.__name__}.{name}"))


def _counted(move: Any, name: str) -> Any:
    def counted(*what: Any) -> Any:
        MOVES[name] += 1
        return move(*what)

    return counted
