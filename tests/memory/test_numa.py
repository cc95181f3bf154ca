"""What a host says of its NUMA nodes, written as Linux writes it, and what is made of less."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.memory import numa


class Host:
    """A made-up host's files."""

    def __init__(self, root: Path, cpus: dict[int, str], memory: str, allowed: str = "") -> None:
        self.root, self.status = root, root / "status"
        system = root / "devices/system/node"
        for node, text in cpus.items():
            (system / f"node{node}").mkdir(parents=True)
            (system / f"node{node}/cpulist").write_text(text + "\n")
        (system / "has_memory").write_text(memory + "\n")
        self.status.write_text(
            f"Name:\tpython\nMems_allowed:\t000000ff\nMems_allowed_list:\t{allowed or memory}\n"
        )

    def nodes(self) -> dict[int, frozenset[int]]:
        return numa.nodes(self.root, self.status)

    def device(self, address: str, said: str) -> None:
        (self.root / "bus/pci/devices" / address).mkdir(parents=True)
        (self.root / "bus/pci/devices" / address / "numa_node").write_text(said)


TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


def test_two_sockets_are_two_numa_nodes_with_the_cpus_of_each(tmp_path: Path) -> None:
    nodes = Host(tmp_path, TWO, "0-1").nodes()
    assert nodes == {0: {0, 1, 2, 3, 8, 9, 10, 11}, 1: {4, 5, 6, 7, 12, 13, 14, 15}}
    assert list(nodes) == [0, 1], "in the order of their numbers"


def test_numbers_may_have_gaps_where_a_numa_node_is_offline(tmp_path: Path) -> None:
    assert list(Host(tmp_path, {8: "8", 0: "0", 3: "3"}, "0,3,8").nodes()) == [0, 3, 8]


def test_cpus_without_memory_and_memory_without_cpus_are_no_place_for_blocks(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, {**TWO, 2: "16-19", 3: "", 4: ""}, "0-1,3-4")
    assert list(host.nodes()) == [0, 1]


def test_memory_that_this_process_may_not_use_is_no_place_for_blocks(tmp_path: Path) -> None:
    assert list(Host(tmp_path, TWO, "0-1", allowed="1").nodes()) == [1]


@pytest.mark.parametrize("garbage", ["zero", "0-", "0 1", "-1", "0-1;", "0-9999999999", "\0"])
@pytest.mark.parametrize("file", ["devices/system/node/has_memory", "status", "cpus"])
def test_a_host_that_speaks_in_unknown_words_has_no_numa(
    tmp_path: Path, file: str, garbage: str
) -> None:
    host = Host(tmp_path, TWO, "0-1")
    where = "devices/system/node/node1/cpulist" if file == "cpus" else file
    text = f"Mems_allowed_list:\t{garbage}\n" if file == "status" else garbage
    (tmp_path / where).write_text(text)
    assert host.nodes() == {}


@pytest.mark.parametrize("gone", ["devices/system/node/has_memory", "status"])
def test_a_host_that_says_nothing_has_no_numa(tmp_path: Path, gone: str) -> None:
    host = Host(tmp_path, TWO, "0-1")
    (tmp_path / gone).unlink()
    assert host.nodes() == {}
    assert numa.nodes(tmp_path / "nowhere", tmp_path / "nothing") == {}


def test_this_host_tells_of_the_cpus_that_this_process_runs_on() -> None:
    nodes = numa.nodes()
    if not nodes:
        pytest.skip("this kernel tells of no NUMA nodes")
    assert os.sched_getaffinity(0) & frozenset().union(*nodes.values())


def test_a_device_is_where_its_bus_is_unless_nobody_says(tmp_path: Path) -> None:
    host = Host(tmp_path, TWO, "0-1")
    for address, said in [("0000:3b:00.0", "1\n"), ("0000:3c:00.0", "-1\n"), ("f", "x\n")]:
        host.device(address, said)
    asked = ["0000:3b:00.0", "0000:3c:00.0", "f", "0000:00:00.0"]
    assert [numa.of_pci(one, tmp_path) for one in asked] == [1, None, None, None]


def test_cpus_are_of_a_numa_node_that_has_them_all(tmp_path: Path) -> None:
    nodes = Host(tmp_path, TWO, "0-1").nodes()
    asked = [{5}, {4, 5, 15}, {0, 1, 2, 3, 8, 9, 10, 11}, {3, 4}, {99}, set()]
    assert [numa.of_cpus(one, nodes) for one in asked] == [1, 1, 0, None, None, None]
    assert numa.of_cpus({0}, {}) is None
