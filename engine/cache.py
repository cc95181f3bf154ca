"""The paged KV cache: where each token's K and V lie, to the byte.

A layer is (pages + 1, kv_heads, page_tokens, 2, head_dim), K at 0 and V at 1 of axis 3. So one
head of one page is one run of bytes, in the order the pool keeps it: a page's head moves as one
copy. The last page is nobody's: it is never given out, and takes what has to be written somewhere.
Addresses never change, since the pages are allocated once and only their contents are rewritten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kvstore.errors import Invalid

from .config import ModelConfig
from .pages import BlockTable, PageAllocator

K, V = 0, 1
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class PageStrides:
    """Bytes from one page, KV head, token and part (K to V) to the next, alike in every layer."""

    page: int
    head: int
    token: int
    part: int


class PagedKV:
    """KV of all sequences. A request's pages are all its own; sharing is the pool's business."""

    def __init__(
        self,
        config: ModelConfig,
        pages: int,
        page_tokens: int = 64,
        place: torch.device = _CPU,
    ) -> None:
        """Raises `Invalid` where the pages do not fit `place`."""
        if page_tokens < 1:
            raise Invalid(f"page_tokens must be at least 1, not {page_tokens}")
        self.page_tokens = page_tokens
        self.allocator = PageAllocator(pages)
        self.nobodys = pages
        shape = (config.layers, pages + 1, config.kv_heads, page_tokens, 2, config.head_dim)
        # Zeroed, so that bytes of a page nobody wrote are never another process's memory.
        dtype: torch.dtype = getattr(torch, config.dtype)
        try:
            self.storage = torch.zeros(shape, dtype=dtype, device=place)
        except RuntimeError as error:  # torch's word for no memory, by several names
            size = math.prod(shape) * dtype.itemsize
            raise Invalid(
                f"{pages} pages of {page_tokens} tokens have {size} bytes of KV, for which "
                f"{place} has no room: give fewer pages"
            ) from error
        self.layers: tuple[torch.Tensor, ...] = tuple(self.storage.unbind(0))

    # -- whose pages --------------------------------------------------------------------------

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)

    def allocate(self, owner: str, tokens: int) -> BlockTable | None:
        """A block table with room for `tokens` tokens, or None where too few pages are free."""
        return self.allocator.allocate(owner, self.pages_for(tokens))

    def grow(self, owner: str, tokens: int) -> BlockTable | None:
        """The owner's block table with room for `tokens` tokens, which are more than it has room
        for; None where too few pages are free."""
        more = self.pages_for(tokens) - len(self.allocator.table(owner))
        return self.allocator.grow(owner, more)

    def release(self, owner: str) -> None:
        """Give the owner's pages back. Their bytes stay until they are written again."""
        self.allocator.release(owner)

    def check(self) -> None:
        """Raise `InvariantError` unless each page is owned once or free once."""
        self.allocator.check()

    # -- where the bytes lie ------------------------------------------------------------------

    @property
    def layer_addresses(self) -> tuple[int, ...]:
        """The address of page 0 of each layer. It holds while this object lives."""
        return tuple(layer.data_ptr() for layer in self.layers)

    @property
    def strides(self) -> PageStrides:
        """Byte strides within a layer."""
        layer, size = self.layers[0], self.storage.element_size()
        page, head, token, part = (layer.stride(axis) * size for axis in range(4))
        return PageStrides(page, head, token, part)

    # -- contents -----------------------------------------------------------------------------

    def write(
        self, layer: int, pages: torch.Tensor, offsets: torch.Tensor, kv: torch.Tensor
    ) -> None:
        """Keep the K and V of some tokens, the i-th at offsets[i] in pages[i].

        pages, offsets: int64 (tokens,). kv: (tokens, 2, kv_heads, head_dim).
        """
        self.layers[layer][pages, :, offsets] = kv.transpose(1, 2)

    def gather(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """The K and V of whole pages, in token order: (2, kv_heads, pages x tokens, head_dim)."""
        # One copy: indexing the permuted view lays the result out as attention reads it.
        picked = self.layers[layer].permute(3, 1, 0, 2, 4).index_select(2, pages)
        return picked.flatten(2, 3)
