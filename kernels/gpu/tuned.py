"""The launch for a device, a program and a shape: as it was measured there, else the default, of
attention the largest that fits.

A table that is damaged, or of another compiler, costs speed alone: that is said once, and the
defaults stand. The table is read once in a process, and what was found is kept.
"""

from __future__ import annotations

import logging
import sys
from functools import cache

import torch
import triton

from .launch import Launch, attention_shape, default, fitted
from .launch_table import PATH, BadTable, Launches, launches_of

log = logging.getLogger(__name__)


@cache
def launch_of(device: torch.device, program: str, shape: str) -> Launch:
    return _launches(device).get((program, shape), default(program))


@cache
def attention_of(
    device: torch.device, item_bytes: int, wide: int, rows: int, page_tokens: int
) -> Launch:
    """That of `attend`. Raises `ValueError` where the device has no room for such a shape."""
    shape = attention_shape(item_bytes, wide, rows, page_tokens)
    found = _launches(device).get(("attend", shape))
    return found or fitted(item_bytes, wide, rows, _shared_bytes(device))


def device_name(device: torch.device) -> str:
    """As the table has it: its model and its compute capability."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, {major}.{minor}"


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of it. The interpreter is told of as many as a large GPU has, so that it cuts
    work in the same parts."""
    if device.type != "cuda":
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _shared_bytes(device: torch.device) -> int:
    """That a program may have, by the same word by which Triton refuses to launch one. The
    interpreter has none, and refuses nothing."""
    if device.type != "cuda":
        return sys.maxsize
    told = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(told["max_shared_mem"])


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
