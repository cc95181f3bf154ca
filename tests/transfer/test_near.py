"""Where a caller is: by its GPU, else by its CPUs, and nowhere rather than in a wrong place."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest
import torch

from kvstore.kernels.gpu import exported
from kvstore.memory import numa
from kvstore.transfer import near

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)
PROPERTIES = torch.cuda.get_device_properties
NODES = {0: frozenset({0, 1}), 1: frozenset({2, 3})}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two NUMA nodes, and a GPU on the second."""
    monkeypatch.setattr(numa, "nodes", lambda: NODES)
    monkeypatch.setattr(numa, "of_pci", {"0000:3b:00.0": 1}.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {0, 1})
    on_bus(monkeypatch, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)


def on_bus(change: pytest.MonkeyPatch, **told: Any) -> None:
    """GPU 1 is there, as torch says it."""
    properties = {CUDA: types.SimpleNamespace(**told)}
    change.setattr(torch.cuda, "get_device_properties", properties.__getitem__)


def test_a_caller_with_a_gpu_is_where_that_is() -> None:
    assert near.of_caller(CUDA) == near.of_device(CUDA) == 1


def test_a_caller_without_is_where_its_cpus_are() -> None:
    assert near.of_caller(None) == near.of_caller(CPU) == 0
    assert near.of_device(CPU) is None


@pytest.mark.parametrize(
    "told",
    [{"pci_domain_id": 0, "pci_bus_id": 0x3C, "pci_device_id": 0}, {"pci_bus_id": 0x3B}, {}],
    ids=["a bus that is nowhere", "half an address", "an older torch"],
)
def test_a_gpu_of_which_nobody_knows_where_it_is_leaves_the_cpus(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, int]
) -> None:
    on_bus(monkeypatch, **told)
    assert near.of_device(CUDA) is None
    assert near.of_caller(CUDA) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may be here")
def test_a_gpu_that_is_not_here_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", PROPERTIES)
    assert near.of_device(CUDA) is None


def test_a_caller_on_cpus_of_both_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {1, 2})
    assert near.of_caller(None) is None


def test_a_pci_address_is_written_as_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    on_bus(monkeypatch, pci_domain_id=0x10000, pci_bus_id=1, pci_device_id=0x1F)
    assert exported.pci_address_of(CUDA) == "10000:01:1f.0"
    assert exported.pci_address_of(CPU) == ""
