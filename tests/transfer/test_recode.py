"""KV that is coded and decoded where it lies: on the host, and on a GPU, of which the host's own
code touches nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvstore.client.memory import memory_of
from kvstore.kernels import strips
from kvstore.layout import SlotLayout
from kvstore.transfer.recode import recode
from tests.client.coded import coded_spec, come_back, sequence
from tests.client.kv import Cache
from tests.gpu import DEVICE
from tests.kernels.gpu import fences

TOKENS, FULL = 61, 2  # two blocks, and a short one
pytestmark = pytest.mark.usefixtures("fenced")


@pytest.mark.parametrize("codec", ["fp8", "int8"])
@pytest.mark.parametrize("pieces", [1, FULL], ids="blocks at once: {}".format)
def test_kv_of_a_gpu_is_recoded_and_the_host_reads_none_of_its_memory(
    monkeypatch: pytest.MonkeyPatch, codec: str, pieces: int
) -> None:
    from kvstore.kernels.gpu.staging import Staging

    spec = coded_spec("recoded", codec)
    layout, truth = SlotLayout.of(spec, 0), sequence(spec, TOKENS, 8)
    cache = Cache(spec, TOKENS, kind="torch", axes="pthkd", page_tokens=7)
    cache.fill(truth)
    there = [one.to(DEVICE).clone() for one in cache.tensors]
    fences.told(*there)
    block = layout.strips * layout.block_tokens * layout.parts * layout.run_bytes
    staging = Staging(DEVICE, pieces * block)
    memory = memory_of(there, layout, spec.dtype, cache.axes, cache.block_table)
    gathered, theirs = strips.gather, {one.data_ptr() for one in there}

    def on_host(*about: Any) -> None:
        assert theirs.isdisjoint(about[3].layer_addresses.tolist()), "an address of the GPU's"
        gathered(*about)

    monkeypatch.setattr(strips, "gather", on_host)
    recode(layout, replace(memory, staging=staging), FULL)
    for mine, its in zip(cache.tensors, there, strict=True):
        mine.copy_(its.cpu())
    after = truth.copy()
    full = np.s_[:, :, : FULL * layout.block_tokens]
    after[full] = come_back(spec, truth)[full]
    assert cache.holds(after)
