"""Strips move between pages and slots as plain numpy would move them, and nothing else is touched."""

from __future__ import annotations

import dataclasses
import mmap
import os

import numpy as np
import pytest
import xxhash

from kvstore.kernels import strip_loops
from kvstore.kernels.strips import Blocks, Geometry, Pages, gather, scatter, verify, written

POISON = 0xA5


def aligned(size):
    raw = np.full(size + 64, POISON, np.uint8)
    return raw[-raw.ctypes.data % 64 :][:size]


class Case:
    """A seeded engine, slots and batch, with the oracle: an index of every byte that may move."""

    ORDERS = ("LPSHDK", "PLHSKD", "LKPSHD", "LKPHSD", "LPHSKD", "PLKSHD", "LHKPSD")

    def __init__(self, seed, run_bytes=None, block_tokens=None, order=None):
        rng = np.random.default_rng(seed)
        pick = lambda *values: int(rng.choice(values))  # noqa: E731
        self.rng = rng
        self.parts = pick(1, 2)
        run = run_bytes or pick(32, 48, 64, 80, 128, 256, 1152)
        g = Geometry(
            pick(1, 2, 3), pick(1, 2, 4), block_tokens or pick(1, 5, 16, 24), self.parts, run
        )
        self.geometry = g
        self.head_count = int(rng.integers(1, g.kv_heads + 1))
        self.head_first = int(rng.integers(0, g.kv_heads - self.head_count + 1))
        self.layer_count = int(rng.integers(1, g.layers + 1))
        self.layer_first = int(rng.integers(0, g.layers - self.layer_count + 1))
        self.span = (self.layer_first, self.layer_count, self.head_first, self.head_count)
        self.build_blocks(pick)
        self.build_pages(pick, order or self.ORDERS[pick(*range(len(self.ORDERS)))])

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
        sizes = dict(
            L=self.layer_count,
            P=count,
            S=page_tokens,
            H=self.head_count + pick(0, 1),
            K=self.parts,
            D=self.geometry.run_bytes + 0,
        )
        order = order.replace("D", "") + "D"
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
                    yield i, row, slice(first, first + index.size), index

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


CASES = [*range(120)]


@pytest.mark.parametrize("seed", CASES)
def test_a_gather_writes_every_strip_and_entry_and_no_byte_besides(seed):
    case = Case(seed)
    expected = case.arena.copy()
    for i, row, place, index in case.strips():
        expected[place] = case.engine[index]
        entry = int(case.blocks.table_offsets[i]) + 8 * row
        digest = xxhash.xxh3_64_intdigest(case.engine[index])
        expected[entry : entry + 8] = np.frombuffer(digest.to_bytes(8, "little"), np.uint8)
    engine = case.engine.copy()
    case.gather()
    assert (case.arena == expected).all()
    assert (case.engine == engine).all()


@pytest.mark.parametrize("seed", CASES)
def test_a_scatter_writes_every_token_of_the_engine_and_no_byte_besides(seed):
    case = Case(seed)
    case.gather()
    expected = np.full_like(case.engine, POISON)
    for *_, index in case.strips():
        expected[index] = case.engine[index]
    case.engine[:] = POISON
    arena = case.arena.copy()
    assert case.scatter().all()
    assert (case.engine == expected).all()
    assert (case.arena == arena).all()


@pytest.mark.parametrize("order", ["LKPSHD", "LPHSKD"])
def test_strips_of_the_usual_size_move_in_both_orders(order):
    case = Case(5, run_bytes=256, block_tokens=64, order=order)
    engine = case.engine.copy()
    case.gather()
    assert case.verify().all()
    for *_, index in case.strips():
        case.engine[index] ^= 0xFF
    assert case.scatter().all()
    assert (case.engine == engine).all()


@pytest.mark.parametrize("seed", CASES[:40])
def test_a_flipped_bit_anywhere_in_a_strip_is_found_and_only_in_its_block(seed):
    case = Case(seed)
    case.gather()
    places = list(case.strips())
    for _ in range(4):
        i, _, place, _ = places[case.rng.integers(len(places))]
        at = case.rng.integers(place.start, place.stop)
        bit = np.uint8(1 << case.rng.integers(8))
        case.arena[at] ^= bit
        expected = np.arange(len(case.blocks.tokens)) != i
        assert (case.verify() == expected).all()
        assert (case.scatter() == expected).all()
        case.arena[at] ^= bit
    assert case.verify().all()


def test_a_block_with_an_unwritten_strip_is_not_good_and_its_engine_bytes_stay():
    case = Case(3)
    case.gather()
    i, row, *_ = next(case.strips())
    case.table(i)[row] = 0
    case.engine[:] = POISON
    expected = np.arange(len(case.blocks.tokens)) != i
    assert (case.verify() == expected).all()
    assert (case.scatter() == expected).all()
    for block, _, _, index in case.strips():
        assert (case.engine[index] == POISON).all() == (block == i)


@pytest.mark.parametrize("seed", CASES[:40])
def test_written_counts_the_leading_layers_that_have_every_head(seed):
    case = Case(seed)
    assert (case.written() == 0).all()
    case.gather()
    assert (case.written() == case.layer_count).all()
    rows = [(i, row) for i, row, *_ in case.strips()]
    i, row = rows[case.rng.integers(len(rows))]
    case.table(i)[row] = 0
    expected = np.full(len(case.blocks.tokens), case.layer_count)
    expected[i] = row // case.geometry.kv_heads - case.layer_first
    assert (case.written() == expected).all()


def test_an_entry_is_never_zero():
    assert strip_loops.entry_of(np.uint64(0)) == 1
    assert strip_loops.entry_of(np.uint64(1)) == 1
    assert strip_loops.entry_of(np.uint64(2**64 - 1)) == 2**64 - 1


def test_slots_may_lie_in_a_shared_memory_mapping():
    case = Case(11)
    descriptor = os.memfd_create("moonpool-strips")
    os.ftruncate(descriptor, case.arena.size)
    mapping = mmap.mmap(descriptor, case.arena.size)
    shared = np.frombuffer(mapping, np.uint8)
    shared[:] = case.arena
    own, case.arena = case.arena, shared
    case.gather()
    seen = np.frombuffer(mmap.mmap(descriptor, own.size, prot=mmap.PROT_READ), np.uint8)
    case.arena = own
    case.gather()
    assert (seen == own).all()
    case.arena = seen
    assert case.verify().all()
    assert case.scatter().all()
    with pytest.raises(ValueError, match="arena is read-only"):
        case.gather()
    os.close(descriptor)


def test_an_empty_batch_is_a_batch():
    case = Case(1)
    nothing = np.zeros(0, np.int64)
    case.blocks = Blocks(nothing, nothing, nothing.astype(np.int32), nothing)
    case.gather()
    assert len(case.scatter()) == len(case.verify()) == len(case.written()) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("payload_offsets", lambda c: c.arena.size - c.geometry.payload_bytes + 1),
        ("payload_offsets", lambda c: -1),
        ("table_offsets", lambda c: c.arena.size),
        ("table_offsets", lambda c: 4),
        ("tokens", lambda c: 0),
        ("tokens", lambda c: c.geometry.block_tokens + 1),
        ("starts", lambda c: -1),
        ("starts", lambda c: len(c.block_table) * c.pages.page_tokens),
        ("starts", lambda c: 2**62),
    ],
)
def test_a_column_out_of_range_is_refused_by_name(name, change):
    case = Case(7)
    column = getattr(case.blocks, name).copy()
    column[0] = change(case)
    case.blocks = dataclasses.replace(case.blocks, **{name: column})
    before = case.arena.copy(), case.engine.copy()
    for call in (case.gather, case.scatter):
        with pytest.raises(ValueError, match=name):
            call()
    assert (case.arena == before[0]).all() and (case.engine == before[1]).all()


def test_a_page_that_is_not_there_is_refused_only_where_a_block_covers_it():
    case = Case(7)
    case.gather()  # the entry past the sequence is -1 already
    first = int(case.blocks.starts[0]) // case.pages.page_tokens
    for page in (-1, case.pages.page_count):
        case.block_table[first] = page
        with pytest.raises(ValueError, match="block_table"):
            case.gather()


@pytest.mark.parametrize("at", range(4))
def test_a_range_outside_the_block_is_refused(at):
    case = Case(7)
    for bad in (-1, 99):
        span = list(case.span)
        span[at] = bad
        case.span = tuple(span)
        for call in (case.gather, case.scatter, case.verify, case.written):
            with pytest.raises(ValueError, match="layers" if at < 2 else "heads"):
                call()


def test_layer_addresses_must_be_one_a_layer():
    case = Case(7)
    more = np.append(case.pages.layer_addresses, np.uint64(0))
    case.pages = dataclasses.replace(case.pages, layer_addresses=more)
    with pytest.raises(ValueError, match="layer_addresses"):
        case.gather()
