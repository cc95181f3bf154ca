"""The NUMA node of this host that a caller is on: its GPU's, where its KV is on one, else the one
that has all CPUs on which it may run.
"""

from __future__ import annotations

import os
from typing import Any

from kvstore.memory import numa


def of_caller(device: Any) -> int | None:
    """That of the thread that asks, with its GPU, a `torch.device` or None; None: it is on several,
    or nobody says."""
    found = None if device is None else of_device(device)
    if found is not None:
        return found
    return numa.of_cpus(os.sched_getaffinity(0), numa.nodes())


def of_device(device: Any) -> int | None:
    """That on whose bus a GPU is; None of what is no GPU, or where nobody says."""
    try:
        from kvstore.kernels.gpu import exported  # late: torch, where there is HBM
    except ImportError:
        return None
    address = exported.pci_address_of(device)
    return numa.of_pci(address) if address else None
