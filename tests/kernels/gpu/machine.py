"""A case's arena and pages where the kernels run: on the GPU, or where they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from tests.gpu import DEVICE


class There:
    """Copies of a case's memory at the device, and the case's pages as they are there."""

    def __init__(self, case: Any) -> None:
        self.case = case
        self.arena = torch.from_numpy(case.arena.copy()).to(DEVICE)
        self.engine = torch.from_numpy(case.engine.copy()).to(DEVICE)
        moved = np.int64(self.engine.data_ptr()) - np.int64(case.engine.ctypes.data)
        addresses = case.pages.layer_addresses.astype(np.int64) + moved
        self.pages = dataclasses.replace(case.pages, layer_addresses=addresses.astype(np.uint64))

    @property
    def asked(self) -> tuple[Any, ...]:
        """What follows the arena in a call."""
        case = self.case
        return (case.geometry, case.blocks, self.pages, case.block_table, *case.span)
