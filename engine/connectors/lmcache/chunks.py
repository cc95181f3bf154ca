"""LMCache's chunks as the pool's `Memory`: each a page, wherever LMCache's allocator put it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from lmcache.v1.memory_management import MemoryObj

from kvstore.client import KVGroup, Memory


def memory_of(chunks: Sequence[MemoryObj], group: KVGroup) -> Memory:
    """Describe full chunks; block i of a call is chunk i.

        a chunk   [K, V][layer][token][head][dim], in one piece
        a page    a chunk; pages begin `stride` apart, any number of them unused

    `stride` is the largest step that meets every chunk's first byte, so pages may overlap on paper;
    those that are named do not.
    """
    tensors = [chunk.tensor for chunk in chunks]
    addresses = [tensor.data_ptr() for tensor in tensors]
    run = group.head_dim * tensors[0].element_size()
    token = group.kv_heads * run
    layer = group.block_tokens * token
    begin = min(addresses)
    steps = [address - begin for address in addresses]
    stride = math.gcd(*steps) or len(group.layers) * group.parts * layer  # a single chunk: any
    return Memory(
        layer_addresses=np.array(
            [begin + index * layer for index in range(len(group.layers))], dtype=np.uint64
        ),
        page_stride=stride,
        head_stride=run,
        token_stride=token,
        part_stride=len(group.layers) * layer if group.parts == 2 else 0,
        page_tokens=group.block_tokens,
        page_count=max(steps) // stride + 1,
        block_table=np.array([step // stride for step in steps], dtype=np.int64),
        heads=group.kv_heads,
        owners=tuple(tensors),
    )
