"""A layout, a fragment and a caller's memory, said as the kernels take them."""

from __future__ import annotations

from kvstore.codec import GROUP_TOKENS
from kvstore.kernels import shapes
from kvstore.layout import Fragment, SlotLayout
from kvstore.transfer.protocol import Memory


def geometry(layout: SlotLayout) -> shapes.Geometry:
    coding = None
    if layout.coding is not None:
        coding = shapes.Coding(layout.coding.codec, layout.coding.dtype, GROUP_TOKENS)
    sizes = (layout.layers, layout.kv_heads, layout.block_tokens, layout.parts, layout.run_bytes)
    return shapes.Geometry(*sizes, coding)


def pages(memory: Memory, fragment: Fragment) -> shapes.Pages:
    return shapes.Pages(
        memory.addresses(fragment),
        memory.page_stride,
        memory.head_stride,
        memory.token_stride,
        memory.part_stride,
        memory.page_tokens,
        memory.page_count,
    )


def span(fragment: Fragment) -> tuple[int, int, int, int]:
    return fragment.layer_first, fragment.layers, fragment.head_first, fragment.heads
