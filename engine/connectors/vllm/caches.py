"""vLLM's KV tensors as the pool's `Memory`: described once, used with each request's own pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kvstore.client import Client, Fragment, Memory
from kvstore.client.writer import Event

from .facts import GroupFacts


class GroupCache:
    """The tensors of one group on this rank, in slot order.

    Each is vLLM's logical (blocks, KV heads, block tokens, content), with its own strides.
    """

    def __init__(self, client: Client, facts: GroupFacts, tensors: Sequence[Any]) -> None:
        group = client.space.spec.groups[client.space.group]
        self.client, self.facts = client, facts
        self.page_tokens = int(tensors[0].shape[2])  # a kernel's page may be a part of vLLM's block
        self._ratio = facts.page_tokens // self.page_tokens
        self._tensors = tuple(tensors)
        self._axes = "phtkd" if group.parts == 2 else "phtd"
        shape = (group.parts, group.head_dim) if group.parts == 2 else (group.head_dim,)
        self._shape = shape
        self._memory = self._described(self._tensors)
        self.fragment: Fragment = self._memory.fragment  # what this rank holds of each block

    def memory(self, pages: Sequence[int]) -> Memory:
        """The request's own pages, from its first token on."""
        table = np.asarray(pages, dtype=np.int64)
        if self._ratio > 1:
            table = (table[:, None] * self._ratio + np.arange(self._ratio)).reshape(-1)
        return replace(self._memory, block_table=table)

    def told(self) -> Event | None:
        """Comes when all is done that the calling thread's stream was told so far: who had a page
        before may use it until then. None where nothing is done behind a call, as on a CPU."""
        tensor = self._tensors[0]
        if not tensor.is_cuda:
            return None
        event = torch.cuda.Event(blocking=True)  # who waits for it leaves its core to others
        event.record(torch.cuda.current_stream(tensor.device))
        told: Event = event
        return told

    def layers(self, pages: Sequence[int]) -> list[Any]:
        """What vLLM has in these pages, one (pages, heads, tokens, content) copy a layer."""
        table = [page * self._ratio + k for page in pages for k in range(self._ratio)]
        return [one[table] for one in self._tensors]

    def scratch(self, pages: int) -> Scratch:
        """Memory of the same shape for `pages` of vLLM's blocks, that is nobody's."""
        count = pages * self._ratio
        tensors = tuple(one.new_empty((count, *one.shape[1:])) for one in self._tensors)
        return Scratch(self, tensors, pages)

    def _described(self, tensors: Sequence[Any]) -> Memory:
        views = [one.unflatten(-1, self._shape) for one in tensors]
        return self.client.memory(views, self._axes, [], head_first=self.facts.head_first)


class Scratch:
    """A stand-in for some pages of a group: loaded first, then copied or compared."""

    def __init__(self, cache: GroupCache, tensors: tuple[Any, ...], pages: int) -> None:
        self._cache, self._tensors = cache, tensors
        self.memory = replace(
            cache._described(tensors), block_table=np.arange(pages * cache._ratio, dtype=np.int64)
        )

    def copy_from(self, pages: Sequence[int]) -> None:
        """Take what vLLM has in these pages, for all of this one's."""
        for mine, theirs in zip(self._tensors, self._cache.layers(pages), strict=True):
            mine.copy_(theirs)

    def layers(self, pages: Sequence[int]) -> list[Any]:
        """What was loaded into these of the pages, one (pages, heads, tokens, content) a layer."""
        ratio = self._cache._ratio
        table = [page * ratio + k for page in pages for k in range(ratio)]
        return [one[table] for one in self._tensors]

    def copy_to(self, pages: Sequence[int], first: int) -> None:
        """Copy the pages from `first` on into vLLM's own `pages`."""
        ratio = self._cache._ratio
        table = [page * ratio + k for page in pages for k in range(ratio)]
        for mine, theirs in zip(self._tensors, self._cache._tensors, strict=True):
            theirs[table] = mine[first * ratio : first * ratio + len(table)]
