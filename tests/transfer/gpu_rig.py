"""Clients of a real node over UCX whose KV is on a GPU, and by which way its blocks reached pages.

Where there is no GPU its memory is the host's, which NIXL is told of as such; all else is real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, KVSpec
from kvstore.layout import SlotLayout
from kvstore.transfer import gpu_area
from tests.client.kv import Cache, spec_of
from tests.client.on_device import OnDevice
from tests.client.stored import TOKENS
from tests.nodes import NodeProcess, running
from tests.transfer.ucx_rig import OFFERED

Clients = Callable[..., Client]
BLOCKS = 2  # of most of these tests that an area's piece has room for


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with running(dram="64MiB", options=OFFERED) as started:
        yield started


@pytest.fixture
def own_node() -> Iterator[NodeProcess]:
    """One whose mover a test may harm."""
    with running(dram="64MiB", options=OFFERED) as started:
        yield started


@pytest.fixture
def client_of(node: NodeProcess) -> Iterator[Clients]:
    with ExitStack() as made:

        def make(spec: KVSpec, there: NodeProcess = node, transport: str = "ucx") -> Client:
            options: dict[str, Any] = {"deadline_seconds": 20.0, "transport": transport}
            return made.enter_context(Client.at(there.address, spec, **options))

        yield make


@pytest.fixture(autouse=True)
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which a test's blocks reached pages. No area is there from before."""
    from kvstore.kernels.gpu.area import Area
    from kvstore.kernels.gpu.staging import Staging

    taken: list[str] = []

    def noted(owner: Any, name: str) -> None:
        scattered = owner.scattered

        def also(self: Any, *what: Any) -> Any:
            taken.append(name)
            return scattered(self, *what)

        monkeypatch.setattr(owner, "scattered", also)

    noted(Area, "straight")
    noted(Staging, "pinned")
    monkeypatch.setattr(gpu_area, "_gpus", {})
    room_for(monkeypatch, SlotLayout.of(small("any"), 0))
    return taken


def small(name: str) -> KVSpec:
    """Of few strips: each takes Triton's interpreter milliseconds."""
    return spec_of(name, layers=2, kv_heads=2)


def room_for(monkeypatch: pytest.MonkeyPatch, layout: SlotLayout, blocks: int = BLOCKS) -> None:
    size = blocks * (8 * layout.strips + layout.payload_bytes)
    monkeypatch.setattr(gpu_area, "UCX_GPU_PIECE_BYTES", -(-size // 4096) * 4096)


def on_device(client: Client, **options: Any) -> OnDevice:
    cache = Cache(client.space.spec, options.pop("tokens", TOKENS), kind="torch", **options)
    return OnDevice(cache, client.space.layout, 8)


def put(client: Client, truth: np.ndarray, first: int = 0) -> Any:
    source = on_device(client, tokens=truth.shape[2])
    source.cache.fill(truth)
    source = OnDevice(source.cache, client.space.layout, 8)
    chain = client.chain(range(first, first + truth.shape[2]))
    assert client.put(chain, source.memory(client)) == len(chain)
    return chain
