"""Time to first token from each tier: every way is taken, and what comes of lengths is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.prefix import LARGE, SLAB_BYTES, SMALL, break_even, measured, room_for
from kvstore.engine.device import CPU, Device
from tests.gpu import DEVICE
from tests.lending import GPU, stand_in
from tests.standing_in import Program


def test_each_length_is_loaded_from_ssd_and_from_dram_and_computed() -> None:
    config = replace(SMALL.config, hidden_size=64, intermediate_size=96, layers=2, head_dim=8)
    sizes = replace(SMALL, config=config, prompt_tokens=(64, 130))
    report = measured(1, lambda _: None, sizes)
    named = [(row.name, row.counted) for row in report.rows]
    assert named == [
        ("64 tokens from DRAM", False),
        ("130 tokens from DRAM", True),
        ("64 tokens from SSD", False),
        ("130 tokens from SSD", True),
    ]
    assert all(row.runs == 1 and row.value > 0 and row.ratio for row in report.rows)
    assert report.rows[0].sizes == {"prompt_tokens": 64, "kv_bytes": 64 * 512, "on": "cpu"}


def test_where_a_node_lends_hbm_each_length_is_loaded_from_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a GPU tensors of the host are moved as if they were one's: so the engine's KV goes
    there."""
    from kvstore.kernels.gpu.staging import staging_of

    stand_in(monkeypatch)
    monkeypatch.setattr("bench.pool.Child", lambda _, *told: Program("tests.lending", *told))
    if not GPU:
        monkeypatch.setattr("kvstore.client.memory._staging", lambda tensors: staging_of(DEVICE))
    config = replace(SMALL.config, hidden_size=64, intermediate_size=96, layers=1, head_dim=8)
    shape = {"prompt_tokens": (64,), "hbm": "128MiB"}
    device = Device.named("cuda") if GPU else CPU
    report = measured(1, lambda _: None, replace(SMALL, config=config, **shape), device)
    assert [row.name for row in report.rows] == [
        "64 tokens from HBM",
        "64 tokens from DRAM",
        "64 tokens from SSD",
    ]
    assert all(row.counted and row.value > 0 and row.ratio for row in report.rows)


def test_a_node_has_room_for_what_all_rounds_publish() -> None:
    kv_bytes = 3 * (1024 + 4096 + 16_384) * 131_072
    room = room_for(LARGE, 3)
    slot_bytes = 64 * 131_072 + 3 * 4096  # with a head
    assert room % SLAB_BYTES == 0 and room < 1.3 * kv_bytes
    assert room // SLAB_BYTES * (SLAB_BYTES // slot_bytes) * 64 * 131_072 >= kv_bytes


@pytest.mark.parametrize(
    ("loaded", "computed", "edge"),
    [
        ([1.0, 1.0, 1.0], [2.0, 3.0, 4.0], 0.0),
        ([5.0, 5.0, 5.0], [2.0, 3.0, 4.0], float("inf")),
        ([2.0, 2.0, 2.0], [1.0, 3.0, 9.0], 150.0),
        ([2.0, 2.0, 2.0], [3.0, 1.0, 5.0], 225.0),
    ],
)
def test_loading_breaks_even_where_the_lines_cross(
    loaded: list[float], computed: list[float], edge: float
) -> None:
    assert break_even([100, 200, 300], loaded, computed) == edge
