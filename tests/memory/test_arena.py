"""The arena is memory that processes share, that has no name, and whose size cannot change."""

from __future__ import annotations

import mmap
import os

import pytest

from kvstore.errors import ConfigError
from kvstore.limits import MiB
from kvstore.memory.arena import Arena


def test_a_new_arena_is_zeroed_and_seen_by_everyone_who_maps_it() -> None:
    arena = Arena.create(MiB)
    assert not arena.bytes.any()
    peer = Arena.map(os.dup(arena.descriptor), MiB, mmap.PROT_READ)
    arena.bytes[12_345] = 7
    assert peer.bytes[12_345] == 7
    assert peer.close() and arena.close()


def test_a_reader_cannot_write_what_it_mapped() -> None:
    arena = Arena.create(MiB)
    peer = Arena.map(os.dup(arena.descriptor), MiB, mmap.PROT_READ)
    with pytest.raises(ValueError, match="read-only"):
        peer.bytes[0] = 1
    assert peer.view.readonly and not arena.view.readonly
    assert peer.close() and arena.close()


def test_a_peer_can_neither_shrink_nor_grow_the_arena_under_its_owner() -> None:
    arena = Arena.create(MiB)
    for size in (0, MiB - 4096, 2 * MiB):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    arena.bytes[-1] = 1
    assert arena.close()


def test_an_arena_of_another_size_than_announced_is_not_mapped() -> None:
    arena = Arena.create(MiB)
    with pytest.raises(ConfigError, match=f"has {MiB} bytes; it announced {2 * MiB}"):
        Arena.map(os.dup(arena.descriptor), 2 * MiB, mmap.PROT_READ)
    assert arena.close()


@pytest.mark.parametrize("size", [0, -1, 1 << 60])
def test_more_memory_than_the_machine_has_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=r"node\.dram"):
        Arena.create(size)


def test_memory_that_is_looked_at_stays_until_nobody_does() -> None:
    arena = Arena.create(MiB)
    view = arena.view[:10]
    assert not arena.close()
    view[0] = 9
    assert arena.bytes[0] == 9
    view.release()
    descriptor = arena.descriptor
    assert arena.close()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_what_has_the_number_of_a_closed_arena_next_is_not_closed_with_it() -> None:
    arena = Arena.create(MiB)
    descriptor = arena.descriptor
    assert arena.close()
    os.dup2(0, descriptor)
    assert arena.close()
    os.close(descriptor)


def test_heads_of_slots_in_hbm_lie_behind_it_and_take_what_is_touched_alone() -> None:
    arena = Arena.create(MiB, 64 * MiB)
    assert (arena.size, arena.hbm_bytes, len(arena.bytes)) == (MiB, 64 * MiB, 65 * MiB)
    assert len(arena.words) == 65 * MiB // 8
    peer = Arena.map(os.dup(arena.descriptor), MiB, mmap.PROT_READ, 64 * MiB)
    arena.bytes[MiB + 40 * MiB] = 7
    assert peer.bytes[MiB + 40 * MiB] == 7
    assert os.fstat(arena.descriptor).st_blocks * 512 <= 4 * MiB, "a page, or a large one"
    with pytest.raises(ConfigError, match=f"has {65 * MiB} bytes; it announced {MiB}"):
        Arena.map(os.dup(arena.descriptor), MiB, mmap.PROT_READ)
    assert peer.close() and arena.close()
