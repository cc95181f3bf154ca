"""Caches as an engine on a GPU has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvstore.client import Client, Memory
from kvstore.layout import SlotLayout
from tests.client.kv import Cache
from tests.gpu import DEVICE
from tests.kernels.gpu import fences


class OnDevice:
    """A cache whose tensors are there; `landed` is what is in it now."""

    def __init__(self, cache: Cache, layout: SlotLayout, blocks: int) -> None:
        from kvstore.kernels.gpu.staging import Staging

        self.cache = cache
        self.tensors = [one.to(DEVICE).clone() for one in cache.tensors]
        fences.told(*self.tensors)
        self._staging = Staging(DEVICE, blocks * layout.payload_bytes)

    def memory(self, client: Client) -> Memory:
        cache = self.cache
        made = client.memory(
            self.tensors, cache.axes, cache.block_table, cache.head_first, cache.layer_first
        )
        return replace(made, staging=self._staging)

    def landed(self) -> Cache:
        for mine, there in zip(self.cache.tensors, self.tensors, strict=True):
            mine.copy_(there.cpu())
        return self.cache


def told_at_once(change: pytest.MonkeyPatch) -> None:
    """A GPU is told of the host's memory by a thread, for which nobody waits: from now on whoever
    has it told does, so that all of it is known when the first block wants to go there."""
    from kvstore.kernels.gpu.registered import Registered

    made = Registered.__init__

    def waiting(self: Registered, *some: Any, **more: Any) -> None:
        made(self, *some, **more)
        if self._thread is not None:
            self._thread.join()

    change.setattr(Registered, "__init__", waiting)
