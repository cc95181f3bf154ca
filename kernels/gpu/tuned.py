"""The launch for a device, a program and a shape: as it was measured there, else the default.

A table that is damaged, or of another compiler, costs speed alone: that is said once, and the
defaults stand. The table is read once in a process, and what was found is kept.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import triton

from .launch import Launch, default
from .launch_table import PATH, BadTable, Launches, launches_of

log = logging.getLogger(__name__)


@cache
def launch_of(device: torch.device, program: str, shape: str) -> Launch:
    return _launches(device).get((program, shape), default(program))


def device_name(device: torch.device) -> str:
    """As the table has it: its model and its compute capability."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, {major}.{minor}"


@cache
def _launches(device: torch.device) -> Launches:
    if device.type != "cuda":
        return {}
    name = device_name(device)
    try:
        return launches_of(PATH.read_text(), name, triton.__version__)
    except (OSError, UnicodeDecodeError, BadTable) as why:
        log.warning("the kernels of %s are launched by default: %s", name, why)
        return {}
