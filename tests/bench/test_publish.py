"""What publishing costs an engine whose pages a GPU reads, at a size for the interpreter."""

from __future__ import annotations

from dataclasses import replace

from bench.publish import LargeSizes, on_device
from kvstore.engine.device import Device
from tests.gpu import DEVICE


def test_a_prefill_that_publishes_is_held_against_one_alone() -> None:
    config = replace(
        LargeSizes().config, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2,
        head_dim=16, vocab_size=3000, dtype="float32",
    )  # fmt: skip
    sizes = LargeSizes(config, prompt_tokens=100, chunk_tokens=70, dram="64MiB")
    row = on_device(1, lambda _: None, sizes, Device.with_kernels(DEVICE))
    assert row.name == f"prefill and publish on {DEVICE}"
    assert row.counted and row.ratio and row.sizes["kv_bytes"] == 100 * 2 * 2 * 2 * 16 * 4
    assert row.also["hooks_ms"]["chunk_done"] > 0
