"""Where every byte of a page lies in SGLang's host pools, layout by layout.

A layout is the letters of its axes: p(age), s(lot: page and token in one), t(oken), l(ayer),
h(ead), k (K and V) and d(im). From them a pool becomes one strided view a layer, which is what the
client moves from and to, with no copy between.
"""

from __future__ import annotations

from typing import Any

import torch

MHA = {
    "layer_first": "klshd",
    "page_first": "kslhd",
    "page_first_direct": "kplthd",
    "page_head": "kphtld",
}
MLA = {"layer_first": "lshd", "page_first": "slhd", "page_first_direct": "plthd"}


def axes_of(layout: str, is_mla: bool) -> str:
    """The axes of a pool's buffer. Raises ValueError naming a layout that is not known."""
    known = MLA if is_mla else MHA
    if layout not in known:
        kind = "MLA" if is_mla else "MHA"
        raise ValueError(
            f"--hicache-mem-layout {layout} of an {kind} pool is not supported; "
            f"{', '.join(known)} are"
        )
    return known[layout]


def layers_of(buffer: torch.Tensor, axes: str, page_tokens: int) -> tuple[list[torch.Tensor], str]:
    """One view of every page for each layer, and the axes of each."""
    if "s" in axes:
        buffer = buffer.unflatten(axes.index("s"), (-1, page_tokens))
        axes = axes.replace("s", "pt")
    return list(buffer.unbind(axes.index("l"))), axes.replace("l", "")


def flat_axes(axes: str) -> str:
    """The axes of pages that were taken out of a pool flat and put one behind another."""
    return "p" + axes.replace("p", "").replace("s", "t")


def flat_shape(pool: Any, axes: str, pages: int, is_mla: bool) -> list[int]:
    """The shape of so many of them."""
    size = {
        "p": pages,
        "k": 2,
        "l": pool.layer_num,
        "t": pool.page_size,
        "h": 1 if is_mla else pool.head_num,
        "d": pool.kv_cache_dim if is_mla else pool.head_dim,
    }
    return [size[axis] for axis in flat_axes(axes)]


def pages_of(host_indices: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """The pages whose slots these are, in order.

    Raises ValueError unless they are whole pages, as SGLang's host pools allot them.
    """
    slots = host_indices.cpu()
    pages = slots[::page_tokens] // page_tokens
    whole = pages[:, None] * page_tokens + torch.arange(page_tokens)
    if not torch.equal(slots, whole.flatten()):
        raise ValueError("host_indices are not whole pages, each in order")
    return pages
