"""Memory that an agent registers, and what of its words is looked at before UCX reads them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import REGISTERED_BYTES_MAX, GiB
from kvstore.transfer import ucx_agent
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_agent import Agent, chunks, cut, fleeting, names, shared_agent
from kvstore.transfer.ucx_memory import OnGpu, Registration

EDGE = REGISTERED_BYTES_MAX


def test_large_memory_is_registered_in_pieces_that_leave_nothing_out() -> None:
    pieces = chunks(4096, 2 * EDGE + 8)
    assert pieces == [(4096, EDGE), (4096 + EDGE, EDGE), (4096 + 2 * EDGE, 8)]
    assert chunks(4096, GiB) == [(4096, GiB)]


def test_a_run_is_cut_where_either_side_has_a_seam() -> None:
    assert list(cut(0, 64, 128)) == [(0, 64, 128)]
    here, there = EDGE - 10, EDGE - 30
    assert list(cut(here, there, 100)) == [
        (here, there, 10),
        (EDGE, EDGE - 20, 20),
        (EDGE + 20, EDGE, 70),
    ]


def test_memory_that_two_register_is_forgotten_with_the_second() -> None:
    pytest.importorskip("nixl_cu12")
    agent, memory = shared_agent(), np.zeros(1 << 16, dtype=np.uint8)
    first, second = agent.register(memory), agent.register(memory)
    assert first is second and names(first.blob, agent.name)
    agent.forget(first)
    assert agent.register(memory) is first
    agent.forget(first)
    agent.forget(first)
    again = agent.register(memory)
    assert again is not first
    assert again.registration != first.registration, "what lay here before could be mistaken for it"
    agent.forget(again)


def test_nixl_takes_no_memory_of_the_host_for_a_gpus() -> None:
    pytest.importorskip("nixl_cu12")
    agent, memory = shared_agent(), np.zeros(1 << 16, dtype=np.uint8)
    wrong = OnGpu(memory.ctypes.data, memory.nbytes, 0, memory)
    with pytest.raises(ConfigError, match=r"65536 bytes .*UCX_TLS allows cuda"):
        agent.register(wrong)
    assert not agent.knows(wrong)


class Nixl:
    """NIXL as far as an agent asks of it, which notes what it is told."""

    DRAM_SEG, VRAM_SEG, NIXL_READ, NIXL_WRITE = "dram", "vram", "read", "write"

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.held = False  # by somebody: no memory is let go of

    nixlAgentConfig = SimpleNamespace
    nixlRegDList = nixlXferDList = staticmethod(lambda segment, what: (segment, what))

    def nixlAgent(self, name: str, config: Any) -> Any:
        return self

    def createBackend(self, name: str, options: Any) -> None:
        pass

    def registerMem(self, descriptors: Any, backends: Any) -> None:
        self.told.append(("registered", *descriptors))

    def getLocalPartialMD(self, *what: Any) -> bytes:
        return b"a blob"

    def deregisterMem(self, descriptors: Any, backends: Any) -> None:
        if self.held:
            raise ValueError("in use")
        self.told.append(("deregistered", *descriptors))

    def createXferReq(self, way: str, here: Any, there: Any, *more: Any) -> int:
        self.told += [(way, here[0], here[1].tolist()), (there[0], there[1].tolist())]
        return 1


@pytest.fixture
def nixl(monkeypatch: pytest.MonkeyPatch) -> Nixl:
    played = Nixl()
    monkeypatch.setattr(ucx_agent, "_library", lambda: played)
    monkeypatch.setattr(ucx_agent, "_failures", lambda: (ValueError,))
    return played


def test_a_gpus_memory_is_registered_by_cudas_number_and_never_given_back(nixl: Nixl) -> None:
    """CUDA's number comes again: of what lies there later, nodes would know what lay there."""
    agent, gpus = Agent(), OnGpu(0x7000, 512, 2, "what keeps it alive")
    first = agent.register(gpus)
    assert nixl.told == [("registered", "vram", [(0x7000, 512, 2, "")])]
    assert first.registration == Registration(2, Segment.VRAM)
    for _ in range(2):
        agent.forget(first)
        assert agent.knows(gpus) and first.owner is gpus
        assert agent.register(OnGpu(0x7000, 512, 2, None)) is first
    host = np.zeros(64, np.uint8)
    agent.forget(agent.register(host))
    assert [one[:2] for one in nixl.told[1:]] == [("registered", "dram"), ("deregistered", "dram")]


def test_memory_that_nixl_does_not_let_go_of_stays_registered_and_alive(nixl: Nixl) -> None:
    """Others may reach it still. Whoever had it goes on."""
    nixl.held = True
    agent, memory = Agent(), np.zeros(64, np.uint8)
    region = agent.register(memory)
    agent.forget(region)
    assert agent.knows(memory) and region.owner is memory
    nixl.held = False
    assert agent.register(memory) is region
    agent.forget(region)
    assert not agent.knows(memory) and region.owner is None


def test_each_end_of_a_move_is_named_as_it_was_registered(nixl: Nixl) -> None:
    runs = np.array([[10, 20, 8]], dtype=np.uint64)
    mine, theirs = Registration(5, Segment.DRAM), Registration(2, Segment.VRAM)
    Agent().begin("WRITE", mine, bytes(16), theirs, runs)
    assert nixl.told == [("write", "dram", [[10, 8, 5]]), ("vram", [[20, 8, 2]])]


def test_a_blob_that_is_of_another_agent_is_not_read() -> None:
    pytest.importorskip("nixl_cu12")
    agent, memory = shared_agent(), np.zeros(1 << 16, dtype=np.uint8)
    region, other = agent.register(memory), bytes(16)
    assert not names(region.blob, other) and not names(b"", other)
    assert not names(region.blob[:40], agent.name)
    with pytest.raises(Unavailable, match="not of the agent that says it"):
        agent.load(other, region.blob)
    agent.forget(region)


def test_ends_of_veth_pairs_are_left_out_where_there_is_another_device(tmp_path: Path) -> None:
    def device(name: str, link: int, index: int, kind: str = "", state: str = "up") -> None:
        (tmp_path / name).mkdir()
        for fact, text in (("iflink", link), ("ifindex", index), ("operstate", state)):
            (tmp_path / name / fact).write_text(f"{text}\n")
        (tmp_path / name / "uevent").write_text(f"{kind}INTERFACE={name}\n")

    assert fleeting(tmp_path / "none") == []
    device("lo", 1, 1)
    device("veth7", 2, 8)
    device("ifb0", 3, 3, state="down")
    assert fleeting(tmp_path) == [], "then it is all there is"
    device("eth0.12", 4, 9, "DEVTYPE=vlan\n")
    device("eth0", 4, 4)
    device("veth9", 5, 10)
    (tmp_path / "bonding_masters").write_text("")
    assert fleeting(tmp_path) == ["veth7", "veth9"]


def test_without_nixl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    ucx_agent._library.cache_clear()
    monkeypatch.setitem(sys.modules, "nixl_cu12", None)
    monkeypatch.delitem(sys.modules, "nixl_cu12._bindings", raising=False)
    try:
        with pytest.raises(ConfigError, match=r"pip install 'moonpool\[ucx\]'"):
            Agent()
    finally:
        ucx_agent._library.cache_clear()
