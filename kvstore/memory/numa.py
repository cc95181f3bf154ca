"""The host's NUMA nodes, as Linux tells of them, and the one that a device or a process is on.

What is not told, or not in the words that are known, is not guessed: nothing is said then, and
whoever asks goes on as on a host that has one NUMA node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

SYS = Path("/sys")
STATUS = Path("/proc/self/status")

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def nodes(root: Path = SYS, status: Path = STATUS) -> dict[int, frozenset[int]]:
    """CPUs by NUMA node, in the order of their numbers: of those that have CPUs, and memory that
    this process may use.

    Memory that no CPU is near is a GPU's own, or behind a slower bus: no place for an arena.
    """
    system = root / "devices/system/node"
    try:
        told = re.search(r"^Mems_allowed_list:(.*)$", status.read_text(), re.MULTILINE)
        allowed = numbers(told[1] if told else "")
        found = allowed & numbers((system / "has_memory").read_text())
        cpus = {node: numbers((system / f"node{node}/cpulist").read_text()) for node in found}
    except (OSError, ValueError):
        return {}
    return {node: cpus[node] for node in sorted(cpus) if cpus[node]}


def of_pci(address: str, root: Path = SYS) -> int | None:
    """That of a PCI device, by its address (0000:3b:00.0); None where it is not known."""
    try:
        node = int((root / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None  # -1: the firmware did not say


def of_cpus(cpus: Collection[int], among: Mapping[int, frozenset[int]]) -> int | None:
    """That which all of these CPUs are of; None where there is none, or there are several."""
    return next((node for node, own in among.items() if cpus and own.issuperset(cpus)), None)


def numbers(text: str) -> frozenset[int]:
    """'0-3,8' -> {0, 1, 2, 3, 8}. Raises `ValueError`."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no list of numbers")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)
