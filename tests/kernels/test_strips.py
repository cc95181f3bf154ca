"""Strips move between pages and slots as numpy would move them, and nothing else is touched."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest
import xxhash

from kvstore.kernels.accumulator import SIDE
from kvstore.kernels.strip_entry import entry_of

POISON = 0xA5
CASES = [*range(120)]


def gathered_and_nothing_besides(case):
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


def scattered_and_nothing_besides(case):
    case.gather()
    expected = np.full_like(case.engine, POISON)
    for *_, index in case.strips():
        expected[index] = case.engine[index]
    case.engine[:] = POISON
    arena = case.arena.copy()
    assert case.scatter().all()
    assert (case.engine == expected).all()
    assert (case.arena == arena).all()


@pytest.mark.parametrize("seed", CASES)
def test_a_gather_writes_every_strip_and_entry_and_no_byte_besides(case_of, seed):
    gathered_and_nothing_besides(case_of(seed))


@pytest.mark.parametrize("seed", CASES)
def test_a_scatter_writes_every_token_of_the_engine_and_no_byte_besides(case_of, seed):
    scattered_and_nothing_besides(case_of(seed))


@pytest.mark.parametrize("order", ["LPSHDK", "PLHSKD", "LKPSHD", "LPHSKD", "LHKPSD"])
@pytest.mark.parametrize("tokens", [8, 16, 24])
@pytest.mark.parametrize("run_bytes", [64, 128, 256])
def test_strips_of_whole_kibibytes_have_the_hash_of_all_of_them(case_of, order, tokens, run_bytes):
    sizes = {"run_bytes": run_bytes, "block_tokens": tokens, "order": order}
    gathered_and_nothing_besides(case_of(tokens, **sizes))
    scattered_and_nothing_besides(case_of(tokens + 1, **sizes))


@pytest.mark.parametrize("order", ["LPSHDK", "LKPSHD", "PLHSKD"])
@pytest.mark.parametrize("run_bytes", [64, 80, 256])
@pytest.mark.parametrize("seed", range(4))
def test_more_heads_than_are_gathered_side_by_side_all_come(case_of, seed, run_bytes, order):
    case = case_of(seed, run_bytes=run_bytes, block_tokens=24, order=order, kv_heads=2 * SIDE + 3)
    gathered_and_nothing_besides(case)
    assert case.verify().all()


@pytest.mark.parametrize("order", ["LKPSHD", "LPHSKD"])
def test_strips_of_the_usual_size_move_in_both_orders(case_of, order):
    case = case_of(5, run_bytes=256, block_tokens=64, order=order)
    engine = case.engine.copy()
    case.gather()
    assert case.verify().all()
    for *_, index in case.strips():
        case.engine[index] ^= 0xFF
    assert case.scatter().all()
    assert (case.engine == engine).all()


@pytest.mark.parametrize("seed", CASES[:40])
def test_a_flipped_bit_anywhere_in_a_strip_is_found_and_only_in_its_block(case_of, seed):
    case = case_of(seed)
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


def test_a_block_with_an_unwritten_strip_is_not_good_and_its_engine_bytes_stay(case_of):
    case = case_of(3)
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
def test_written_counts_the_leading_layers_that_have_every_head(case_of, seed):
    case = case_of(seed)
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
    assert entry_of(np.uint64(0)) == 1
    assert entry_of(np.uint64(1)) == 1
    assert entry_of(np.uint64(2**64 - 1)) == 2**64 - 1


@pytest.mark.parametrize("seed", CASES[:60])
def test_a_block_table_is_read_no_further_than_its_end(case_of, seed):
    """Behind it here is nothing that can be read: this process would end."""
    case = case_of(seed, block_tokens=1 + seed % 5)
    table = case.block_table[:-1].astype(np.int64)
    room = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    pages = np.frombuffer(room, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    behind = ctypes.c_void_p(pages.ctypes.data + mmap.PAGESIZE)
    assert libc.mprotect(behind, mmap.PAGESIZE, 0) == 0  # PROT_NONE
    case.block_table = pages[mmap.PAGESIZE - table.nbytes : mmap.PAGESIZE].view(np.int64)
    case.block_table[:] = table
    case.gather()
    assert case.scatter().all()


def test_slots_may_lie_in_a_shared_memory_mapping(case_of):
    case = case_of(11)
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
