"""An area of a GPU's memory that nodes are shown: when there is one, and what goes there."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.errors import Unavailable
from kvstore.limits import UCX_GPU_PIECES
from kvstore.transfer import gpu_area, gpu_direct, ucx_pieces
from kvstore.transfer.gpu_area import Gpu
from kvstore.transfer.ucx_agent import Agent
from kvstore.transfer.ucx_memory import OnGpu, Region, Shown, place
from kvstore.transfer.ucx_pieces import Pieces
from tests.client.kv import truth_of
from tests.client.stored import TOKENS
from tests.gpu import DEVICE
from tests.nodes import NodeProcess, eventually
from tests.transfer.gpu_rig import Clients, client_of, node, on_device, own_node, put, small, ways

pytest.importorskip("nixl_cu12")

__all__ = ["client_of", "node", "own_node", "ways"]


def test_a_refused_registration_is_said_once_and_blocks_go_through_pinned_memory(
    client_of: Clients,
    ways: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """NIXL is told of memory that it is a GPU's, and finds that it is not."""
    host = np.zeros(4096, np.uint8)
    wrong = OnGpu(host.ctypes.data, host.nbytes, 0, host)
    monkeypatch.setattr(gpu_area, "shown", lambda area: wrong)
    given_back: list[Any] = []
    monkeypatch.setattr("kvstore.kernels.gpu.area.Area.close", lambda area: given_back.append(area))
    truth = truth_of(small("gpu-unregistered"), TOKENS, 5)
    with caplog.at_level(logging.WARNING, gpu_area.__name__):
        for first in (0, TOKENS):
            client = client_of(small("gpu-unregistered"))
            chain, here = put(client, truth, first), on_device(client, seed=8)
            assert client.get(chain, here.memory(client)).tokens == TOKENS
            assert here.landed().holds(truth)
    assert set(ways) == {"pinned"} and len(given_back) == 1
    (said,) = caplog.messages
    assert "UCX_TLS allows cuda" in said and "go through pinned host memory" in said


def test_a_node_that_does_not_reach_the_area_is_left_alone_with_it_for_a_while(
    own_node: NodeProcess,
    client_of: Clients,
    ways: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    register, now, wrong = Agent.register, [1000.0], [True]

    def misnamed(self: Agent, memory: Shown) -> Region:
        region = register(self, memory)
        of_area = region.size == UCX_GPU_PIECES * gpu_area.UCX_GPU_PIECE_BYTES
        return replace(region, blob=b"?" + region.blob) if of_area and wrong[0] else region

    monkeypatch.setattr(Agent, "register", misnamed)
    monkeypatch.setattr(gpu_area, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client = client_of(small("gpu-unreached"), own_node)
    truth = truth_of(client.space.spec, TOKENS, 6)

    def got() -> str:
        ways.clear()
        here = on_device(client, seed=9)
        assert client.get(chain, here.memory(client)).tokens == TOKENS
        assert here.landed().holds(truth)
        (way,) = set(ways)
        return way

    def stored() -> Any:
        with suppress(Unavailable):  # a second from when the mover began no other one does
            return put(client, truth)

    with caplog.at_level(logging.WARNING, gpu_direct.__name__):
        chain = eventually(stored)
        assert got() == "pinned"
    (said,) = caplog.messages
    assert "find no way to each other" in said and "pinned host memory" in said
    wrong[0] = False
    now[0] += gpu_area.REST_SECONDS - 1
    assert got() == "pinned"
    now[0] += 1
    assert got() == "straight"


def test_calls_that_find_no_piece_free_go_through_pinned_memory(
    client_of: Clients, ways: list[str]
) -> None:
    client = client_of(small("gpu-busy"))
    truth = truth_of(client.space.spec, TOKENS, 8)
    chain, gpu = put(client, truth), gpu_area.gpu_of(DEVICE)
    assert gpu is not None
    held = [gpu.pieces.take() for _ in range(UCX_GPU_PIECES)]
    here = on_device(client, seed=12)
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth) and set(ways) == {"pinned"}
    for one in held:
        gpu.pieces.give(one)
    assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert ways[-1] == "straight"


def test_calls_whose_pieces_are_taken_once_they_come_for_one_go_through_pinned_memory(
    client_of: Clients, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(small("gpu-crowded"))
    truth = truth_of(client.space.spec, TOKENS, 16)
    chain, gpu = put(client, truth), gpu_area.gpu_of(DEVICE)
    assert gpu is not None
    held = [gpu.pieces.take() for _ in range(UCX_GPU_PIECES)]
    with monkeypatch.context() as looked:
        looked.setattr(Pieces, "free", 1)  # as they saw it
        looked.setattr(ucx_pieces, "TAKE_SECONDS", 0.01)
        second, here = put(client, truth, TOKENS), on_device(client, seed=17)
        assert client.get(chain, here.memory(client)).tokens == TOKENS
    assert here.landed().holds(truth) and set(ways) == {"pinned"}
    for one in held:
        gpu.pieces.give(one)
    there = on_device(client, seed=18)
    assert client.get(second, there.memory(client)).tokens == TOKENS
    assert there.landed().holds(truth)
    assert ways[-1] == "straight", "the node is not left alone for it"


def test_blocks_that_no_piece_has_room_for_go_through_pinned_memory(
    client_of: Clients, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(small("gpu-large"))
    layout = client.space.layout
    size = 8 * layout.strips + layout.payload_bytes
    truth = truth_of(client.space.spec, TOKENS, 10)
    for room, way in ((size - 8, "pinned"), (-(-size // 64) * 64, "straight")):
        monkeypatch.setattr(gpu_area, "UCX_GPU_PIECE_BYTES", room)
        monkeypatch.setattr(gpu_area, "_gpus", {})
        chain, here = put(client, truth, first=room), on_device(client, seed=13)
        assert client.get(chain, here.memory(client)).tokens == TOKENS
        assert here.landed().holds(truth) and ways[-1] == way


def test_what_a_device_has_no_room_for_is_a_refusal_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kvstore.kernels.gpu import area, exported

    def full(size: int, device: Any) -> Any:
        raise exported.NoMemory(f"{device} has no {size} bytes left")

    monkeypatch.setattr(area, "Area", full)
    assert gpu_area.gpu_of("cuda:7") is None and gpu_area.gpu_of("cuda:7") is None
    (said,) = caplog.messages
    assert said.startswith("cuda:7: ") and "bytes left" in said


def test_of_each_gpu_it_is_said_why_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.kernels.gpu import exported

    found, shown = [DEVICE], gpu_area.shown
    monkeypatch.setattr(exported, "devices", lambda: found)
    assert gpu_area.refusals() == {str(DEVICE): ""}
    monkeypatch.setattr(gpu_area, "_gpus", {})
    host = np.zeros(4096, np.uint8)
    monkeypatch.setattr(gpu_area, "shown", lambda _: OnGpu(host.ctypes.data, 4096, 0, host))
    assert "4096 bytes cannot be registered" in gpu_area.refusals()[str(DEVICE)]
    monkeypatch.setattr(gpu_area, "shown", shown)
    assert gpu_area.gpu_of(DEVICE) is None, "it is not tried again"
    monkeypatch.setattr(gpu_area, "find_spec", lambda name: None)
    assert gpu_area.refusals() == {}, "nobody here moves anything over ucx"


@pytest.mark.parametrize("number", [None, 3])
def test_memory_is_the_hosts_or_that_of_the_gpu_with_cudas_number(number: int | None) -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    found = gpu_area.shown(SimpleNamespace(memory=memory, cuda=number))
    if number is None:
        assert isinstance(found, np.ndarray) and found.ctypes.data == memory.data_ptr()
    else:
        assert isinstance(found, OnGpu) and found.device == 3
        assert place(found) == (memory.data_ptr(), 64)


def test_a_node_rests_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(gpu_area, "time", SimpleNamespace(monotonic=lambda: now[0]))
    gpu = Gpu(DEVICE)
    gpu.rest("one")
    assert not gpu.tries("one") and gpu.tries("another")
    now[0] += gpu_area.REST_SECONDS
    assert gpu.tries("one")
