"""Memory that an agent registers, and what of its words is looked at before UCX reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import REGISTERED_BYTES_MAX, GiB
from kvstore.transfer import ucx_agent
from kvstore.transfer.ucx_agent import Agent, chunks, cut, fleeting, names, shared_agent

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
