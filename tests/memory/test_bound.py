"""What the kernel is told of an arena's pages, what it makes of that, and what if it refuses."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from kvstore.core.spread import ALIKE, Spread
from kvstore.limits import MiB
from kvstore.memory import bound
from kvstore.memory.arena import Arena

PAGE = mmap.PAGESIZE
START = 1 << 40


class Kernel:
    """Heeds what it is told, up to the NUMA node that it does not know."""

    def __init__(self, unknown: int = 99) -> None:
        self.told: list[tuple[int, int, int]] = []
        self._unknown = unknown

    def prefer(self, address: int, size: int, numa_node: int) -> None:
        self.told.append((address, size, numa_node))
        if numa_node == self._unknown:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_each_range_is_told_once_and_they_leave_nothing_out() -> None:
    kernel, spread = Kernel(), Spread.of([(0, 3 * PAGE), (2, 5 * PAGE)])
    assert bound.bound(START, spread, kernel.prefer) == spread
    assert kernel.told == [(START, 3 * PAGE, 0), (START + 3 * PAGE, 5 * PAGE, 2)]


def test_a_page_of_two_ranges_goes_with_the_later_one() -> None:
    kernel, spread = Kernel(), Spread.of([(0, 3 * PAGE + 512), (2, 5 * PAGE - 512)])
    assert bound.bound(START, spread, kernel.prefer) == spread
    assert kernel.told == [(START, 3 * PAGE, 0), (START + 3 * PAGE, 5 * PAGE, 2)]


def test_of_an_arena_whose_pages_are_all_alike_the_kernel_is_told_nothing() -> None:
    kernel = Kernel()
    assert bound.bound(START, ALIKE, kernel.prefer) == ALIKE
    assert kernel.told == []


def test_a_kernel_that_refuses_is_named_once_and_all_pages_are_alike(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernel, spread = Kernel(unknown=1), Spread.of([(0, PAGE), (1, PAGE), (2, PAGE)])
    assert bound.bound(START, spread, kernel.prefer) == ALIKE
    assert [node for _, _, node in kernel.told] == [0, 1], "it is not asked on"
    assert caplog.text.count("mbind: Operation not permitted") == 1


def test_a_processor_whose_call_is_not_known_is_a_kernel_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bound, "_SYS_MBIND", {})
    with pytest.raises(OSError, match="not implemented"):
        bound.prefer(START, PAGE, 0)


def policies(arena: Arena) -> list[str]:
    """That of each mapping of the arena in this process, by address."""
    first = arena.bytes.ctypes.data
    fields = [line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines()]
    return [some[1] for some in fields if first <= int(some[0], 16) < first + arena.size]


def test_this_kernel_prefers_the_numa_node_for_the_range_and_no_more() -> None:
    arena = Arena.create(2 * MiB)
    try:
        bound.prefer(arena.bytes.ctypes.data, MiB, 0)
    except PermissionError as error:
        pytest.skip(f"mbind is refused here: {error}")
    assert policies(arena) == ["prefer:0", "default"]
    arena.bytes[:] = 1
    peer = Arena.map(os.dup(arena.descriptor), 2 * MiB, mmap.PROT_READ)
    assert policies(peer) == ["prefer:0"], "it is kept with the memory, whoever maps that"
    assert peer.close() and arena.close()


def test_a_numa_node_that_is_not_there_leaves_a_whole_arena_that_is_not_spread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arena = Arena.create(2 * MiB, 0, Spread.of([(1_000, MiB), (1_001, MiB)]))
    assert arena.spread == ALIKE and "mbind" in caplog.text
    arena.bytes[:] = 1
    assert arena.bytes.all()
    assert arena.close()


def test_a_new_arena_has_the_spread_that_the_kernel_heeds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Spread] = []

    def heeds(address: int, spread: Spread) -> Spread:
        told.append(spread)
        return spread

    monkeypatch.setattr("kvstore.memory.arena.bound", heeds)
    spread = Spread.of([(0, MiB), (1, MiB)])
    arena = Arena.create(2 * MiB, MiB, spread)
    assert arena.spread == spread and told == [spread]
    peer = Arena.map(os.dup(arena.descriptor), 2 * MiB, mmap.PROT_READ, MiB, spread)
    assert peer.spread == spread and told == [spread], "only its maker tells the kernel"
    assert peer.close() and arena.close()
