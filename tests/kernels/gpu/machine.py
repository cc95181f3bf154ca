"""A case's arena and pages where the kernels run: on the GPU, or where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.gpu import DEVICE
from tests.kernels.gpu import fences


def copied(memory: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(memory.copy()).to(DEVICE)


class There:
    """Copies of a case's memory at the device, and the case's pages as they are there."""

    def __init__(self, case: Any, place: Callable[[np.ndarray], torch.Tensor] = copied) -> None:
        self.case = case
        self.arena, self.engine = place(case.arena), place(case.engine)
        fences.told(self.engine)
        moved = np.int64(self.engine.data_ptr()) - np.int64(case.engine.ctypes.data)
        addresses = case.pages.layer_addresses.astype(np.int64) + moved
        self.pages = dataclasses.replace(case.pages, layer_addresses=addresses.astype(np.uint64))

    @property
    def asked(self) -> tuple[Any, ...]:
        """What follows the arena in a call."""
        case = self.case
        return (case.geometry, case.blocks, self.pages, case.block_table, *case.span)
