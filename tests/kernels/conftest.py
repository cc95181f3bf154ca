"""Engines, slots and batches made from a seed, with numpy's account of where every byte goes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvstore.kernels.shapes import Geometry, Pages
from kvstore.kernels.strips import Blocks, gather, scatter, verify, written

POISON = 0xA5


def aligned(size):
    raw = np.full(size + 64, POISON, np.uint8)
    return raw[-raw.ctypes.data % 64 :][:size]


class Case:
    """A seeded engine, slots and batch, with the oracle: an index of every byte that may move."""

    ORDERS = ("LPSHDK", "PLHSKD", "LKPSHD", "LKPHSD", "LPHSKD", "PLKSHD", "LHKPSD")

    def __init__(
        self, seed, run_bytes=None, block_tokens=None, order=None, coding=None, kv_heads=None
    ):
        rng = np.random.default_rng(seed)

        def pick(*values):
            return int(rng.choice(values))

        self.rng = rng
        self.parts = pick(1, 2)
        run = run_bytes or pick(32, 48, 64, 80, 128, 256, 1152)
        g = Geometry(
            pick(1, 2, 3),
            pick(1, 2, 4) if kv_heads is None else kv_heads,
            block_tokens or pick(1, 5, 16, 24),
            self.parts,
            run,
            coding,
        )
        self.geometry = g
        self.head_count = int(rng.integers(1, g.kv_heads + 1))
        self.head_first = int(rng.integers(0, g.kv_heads - self.head_count + 1))
        self.layer_count = int(rng.integers(1, g.layers + 1))
        self.layer_first = int(rng.integers(0, g.layers - self.layer_count + 1))
        self.span = (self.layer_first, self.layer_count, self.head_first, self.head_count)
        self.build_blocks(pick)
        # In the first order K and V overlap: bytes move so, numbers do not.
        orders = self.ORDERS[1:] if coding else self.ORDERS
        self.build_pages(pick, order or orders[pick(*range(len(orders)))])

    def build_blocks(self, pick):
        g, count = self.geometry, pick(1, 2, 4)
        tokens = np.full(count, g.block_tokens, np.int32)
        tokens[-1] = self.rng.integers(1, g.block_tokens + 1)
        lead = pick(0, g.block_tokens, 3)
        head = -(-8 * g.strips // 64) * 64 + pick(0, 64, 8)
        slot = head + -(-g.payload_bytes // 64) * 64
        slots = self.rng.permutation(count + 2)[:count]
        self.blocks = Blocks(
            slots * slot + head, slots * slot, tokens, lead + np.arange(count) * g.block_tokens
        )
        self.arena = aligned((count + 2) * slot)
        for offset in self.blocks.table_offsets:
            self.arena[offset : offset + 8 * g.strips] = 0
        self.positions = int(self.blocks.starts[-1] + tokens[-1])

    def build_pages(self, pick, order):
        """Engine memory as one axis order of layer, page, position, head, part (K) and run (D)."""
        page_tokens = pick(1, 4, 7, 16, 64)
        needed = -(-self.positions // page_tokens)
        count = needed + 2
        sizes = {
            "L": self.layer_count,
            "P": count,
            "S": page_tokens,
            "H": self.head_count + pick(0, 1),
            "K": self.parts,
            "D": self.geometry.run_bytes,
        }
        stride, strides = 1, {}
        for axis in reversed(order):
            strides[axis] = stride
            stride *= sizes[axis]
        self.engine = aligned(stride)
        self.engine[:] = self.rng.integers(0, 256, stride, dtype=np.uint8)
        addresses = self.engine.ctypes.data + np.arange(sizes["L"]) * strides["L"]
        self.pages = Pages(
            addresses.astype(np.uint64),
            *(strides[axis] for axis in "PHSK"),
            page_tokens=page_tokens,
            page_count=count,
        )
        table = self.rng.permutation(count)[:needed].astype(np.int32)
        self.block_table = np.append(table, np.int32(-1))  # past the sequence: anything
        self.strides = strides

    def strips(self):
        """Of each (block, layer, head): block, row, slot bytes' slice and engine byte indices."""
        g, p = self.geometry, self.pages
        for i, (payload, _, tokens, start) in enumerate(
            zip(*(getattr(self.blocks, f.name) for f in dataclasses.fields(Blocks)), strict=True)
        ):
            position = start + np.arange(tokens)
            page = self.block_table[position // p.page_tokens].astype(np.int64) * p.page_stride
            token = page + position % p.page_tokens * p.token_stride
            inner = np.arange(self.parts)[:, None] * p.part_stride + np.arange(g.run_bytes)
            for layer in range(self.layer_count):
                for head in range(self.head_count):
                    row = (self.layer_first + layer) * g.kv_heads + self.head_first + head
                    base = layer * self.strides["L"] + head * p.head_stride
                    index = (base + token[:, None, None] + inner).ravel()
                    first = int(payload) + row * g.strip_stride
                    yield i, row, slice(first, first + g.strip_bytes(int(tokens))), index

    def table(self, i):
        offset = int(self.blocks.table_offsets[i])
        return self.arena[offset : offset + 8 * self.geometry.strips].view(np.uint64)

    def gather(self):
        gather(self.arena, self.geometry, self.blocks, self.pages, self.block_table, *self.span)

    def scatter(self):
        arena = self.arena.view()
        arena.flags.writeable = False
        rest = (self.blocks, self.pages, self.block_table, *self.span)
        return scatter(arena, self.geometry, *rest)

    def verify(self):
        return verify(self.arena, self.geometry, self.blocks, *self.span)

    def written(self):
        return written(self.arena, self.geometry, self.blocks, *self.span)


@pytest.fixture
def case_of():
    return Case
