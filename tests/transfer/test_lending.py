"""HBM that a node takes at its start: whole slabs, or none and why; or it does not start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.config import NodeConfig
from kvstore.core.spread import Spread
from kvstore.errors import ConfigError
from kvstore.limits import GiB, KiB, MiB
from kvstore.memory.arena import Arena
from kvstore.transfer import lending as module
from kvstore.transfer import lent
from kvstore.transfer.lending import NONE, lending
from tests.lending import GPU, LEFT_BYTES, NAME, stand_in
from tests.nodes import running  # isort: split

from kvstore.kernels.gpu import exported  # after `tests.gpu`

no_gpu = pytest.mark.skipif(GPU, reason="a machine without CUDA refuses this")


def config(**changes: Any) -> NodeConfig:
    return NodeConfig(Path("/n"), dram_bytes=GiB, slab_bytes=MiB, **changes)


def test_a_node_takes_none_unasked() -> None:
    assert lending(config()) is NONE and not NONE.handle


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_it_takes_whole_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    found = lending(config(hbm_bytes=3 * MiB + 5))
    assert (found.size_bytes, found.name, found.cause) == (3 * MiB, NAME, "")
    assert len(found.region.bytes) == 3 * MiB and len(found.handle) == 64
    found.region.close()


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_the_gpu_is_told_first_of_the_dram_on_its_numa_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvstore.kernels.gpu import downward

    class Noted(downward.Registered):
        def __init__(self, memory: Any, device: Any, *, near: Any) -> None:
            told.append((len(memory), near))
            super().__init__(memory, device, near=near)

    told: list[Any] = []
    stand_in(monkeypatch)
    monkeypatch.setattr(downward, "Registered", Noted)
    monkeypatch.setattr(module, "of_device", {exported.device_of(0): 1}.get)
    found, arena = lending(config(hbm_bytes=MiB)), Arena.create(2 * MiB, MiB)
    arena.spread = Spread.over([0, 1], 2 * MiB, MiB)
    with found.downward(arena):
        assert told == [(2 * MiB, [(MiB, 2 * MiB)])]
    found.region.close()
    assert arena.close()


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_a_gpu_that_has_not_so_much_is_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    found = lending(config(hbm_bytes=LEFT_BYTES + MiB))
    assert (found.size_bytes, found.region, found.handle) == (0, None, b"")
    assert found.cause == f"cpu has no {LEFT_BYTES + MiB} bytes left"


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_what_torch_cannot_do_is_a_state_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(size: int, device: object) -> object:
        raise RuntimeError("CUDA error: initialization error")

    stand_in(monkeypatch)
    monkeypatch.setattr(exported, "taken", fails)
    assert lending(config(hbm_bytes=MiB)).cause == "CUDA error: initialization error"


def test_both_sides_know_how_long_a_handle_is() -> None:
    assert lent.HANDLE_BYTES == exported.HANDLE_BYTES


@pytest.mark.skipif(GPU, reason="of memory that stands for a GPU's")
def test_what_others_have_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    taken, asked = exported.taken, list[int]()

    def later(size: int, device: object) -> object:
        asked.append(size)
        if len(asked) < 3:
            raise exported.NoMemory("not yet")
        return taken(size, device)  # type: ignore[arg-type]

    monkeypatch.setattr(exported, "taken", later)
    found = lending(config(hbm_bytes=MiB))
    assert asked == [MiB] * 3 and found.size_bytes == MiB
    found.region.close()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"hbm_bytes": 512 * KiB}, r"--hbm 512KiB: write at least --slab, 1MiB"),
        ({"hbm_bytes": MiB, "hbm_device": -1}, r"node.hbm_device = -1: 0 for the first GPU"),
    ],
)
def test_sizes_and_devices_that_cannot_be_are_refused(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**wrong)


@no_gpu
def test_a_node_that_is_to_have_hbm_does_not_start_where_there_is_no_gpu() -> None:
    why = r"node.hbm = 16777216, node.hbm_device = 0: there is no CUDA device here"
    with pytest.raises(ConfigError, match=why), running(options=["--hbm", "16MiB"]):
        pass


def test_without_torch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kvstore.kernels.gpu.exported", None)
    monkeypatch.delattr("kvstore.kernels.gpu.exported")
    with pytest.raises(ConfigError, match=r"needs .*: pip install 'moonpool\[gpu\]'"):
        lending(config(hbm_bytes=MiB))
