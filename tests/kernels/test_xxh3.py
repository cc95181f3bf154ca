"""XXH3 in a kernel is the xxhash library's, at every length class and at any alignment."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
import xxhash
from numba import njit

from kvstore.kernels import strips
from kvstore.kernels.accumulator import begin, copy_block, stack_lanes, stream_block
from kvstore.kernels.memory import fence
from kvstore.kernels.xxh3 import U, finish_64, xxh3_64

LENGTHS = [*range(600), 1023, 1024, 1025, 2047, 2048, 2049, 4096, 32768, 131072, 131073]
MESSAGE = np.random.default_rng(20).integers(0, 256, 140_000, dtype=np.uint8)


@njit  # when it is called: whoever only collects compiles nothing
def hash_each(address, lengths, hashes):
    lanes = stack_lanes()
    for i in range(len(lengths)):
        hashes[i] = xxh3_64(U(address), lengths[i], lanes)


@njit
def copy_and_hash(source, target, blocks, stream):
    """`blocks` whole blocks are copied; the hash is of as many bytes."""
    lanes = stack_lanes()
    begin(lanes)
    for i in range(blocks):
        at, last = U(i * 1024), i == blocks - 1
        if stream:
            stream_block(lanes, last, U(source) + at, U(target) + at)
        else:
            copy_block(lanes, last, U(source) + at, U(target) + at)
    fence()
    return finish_64(lanes, blocks * 1024)


@pytest.mark.parametrize("shift", [0, 1, 7])
def test_a_strip_hash_equals_xxh3_of_its_bytes_at_every_length(shift):
    hashes = np.zeros(len(LENGTHS), np.uint64)
    message = MESSAGE[shift:]
    hash_each(message.ctypes.data, np.array(LENGTHS), hashes)
    expected = [xxhash.xxh3_64_intdigest(message[:n]) for n in LENGTHS]
    assert hashes.tolist() == expected


def test_a_root_equals_the_librarys_digest_at_every_length():
    for n in LENGTHS:
        offsets = np.array([0, 1, 64])
        expected = [xxhash.xxh3_128_digest(MESSAGE[o : o + n]) for o in offsets]
        assert [bytes(root) for root in strips.roots(MESSAGE, offsets, n)] == expected, n


def test_extreme_bytes_hash_as_the_library_hashes_them():
    for byte in (0, 255):
        message = np.full(5000, byte, np.uint8)
        lengths = np.array([1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 1024, 1025, 5000])
        hashes = np.zeros(len(lengths), np.uint64)
        hash_each(message.ctypes.data, lengths, hashes)
        assert hashes.tolist() == [xxhash.xxh3_64_intdigest(message[:n]) for n in lengths]


def test_a_block_copied_while_it_is_hashed_is_the_block_and_its_hash():
    room = np.zeros(8 * 1024 + 128, np.uint8)
    aligned = -room.ctypes.data % 64
    for stream, shift in ((True, 0), (False, 0), (False, 3)):
        room[:] = 0xA5
        target = room[aligned + shift :][: 8 * 1024]
        found = copy_and_hash(MESSAGE.ctypes.data, target.ctypes.data, 8, stream)
        assert found == xxhash.xxh3_64_intdigest(MESSAGE[: 8 * 1024])
        assert (target == MESSAGE[: 8 * 1024]).all()
        assert (room[: aligned + shift] == 0xA5).all()
        assert (room[aligned + shift + 8 * 1024 :] == 0xA5).all()


def test_the_last_byte_of_a_mapping_is_hashed_without_reading_past_it():
    page = mmap.PAGESIZE
    descriptor = os.memfd_create("moonpool-edge")
    os.ftruncate(descriptor, 2 * page)
    with mmap.mmap(descriptor, 2 * page) as mapping:
        os.ftruncate(descriptor, page)  # a read past the first page is now a bus error
        edge = np.frombuffer(mapping, np.uint8, page)
        edge[:] = MESSAGE[:page]
        for n in (1, 3, 4, 8, 9, 16, 17, 100, 129, 240, 241, 1024, 1025, page):
            root = strips.roots(edge, np.array([page - n]), n)
            assert bytes(root[0]) == xxhash.xxh3_128_digest(MESSAGE[page - n : page])
        del edge
    os.close(descriptor)
