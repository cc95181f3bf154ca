"""What the figures were measured on: a ratio travels between machines, but not without its name.

The load average says whether somebody else was at work; on a quiet machine it is about what the
bench itself takes.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIBRARIES = ("numpy", "numba", "torch", "triton", "grpc")
_DISTRIBUTIONS = {"grpc": "grpcio"}


def facts() -> dict[str, Any]:
    """Processor, memory, load, and the versions of the libraries that this process has used."""
    used = [name for name in LIBRARIES if name in sys.modules]
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30),
        "load_1_minute": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(_DISTRIBUTIONS.get(name, name)) for name in used},
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    """Of the CUDA device that this process has used, if any."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = device.total_memory / (1 << 30)
    return {"gpu": device.name, "gpu_memory_gib": memory, "cuda": torch.version.cuda}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
