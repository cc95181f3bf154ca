"""What a device is told of memory piece by piece, and what it is said to know meanwhile."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu.registered import Registered
from kvstore.memory.arena import Arena
from tests.gpu import DEVICE

PIECE, SIZE = 4_096, 4 * 4_096 - 1_000
CUDA = torch.device("cuda")
Ranges = Sequence[tuple[int, int]]
WAIT_SECONDS = 10.0


class Driver:
    """Registers one piece for each that it is given leave for, and refuses from one on."""

    def __init__(self, memory: np.ndarray, refused: int = 99) -> None:
        self.first, self.refused = memory.ctypes.data, refused
        self.leave = threading.Semaphore(0)
        self.known: dict[int, int] = {}
        self.asked = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert self.leave.acquire(timeout=WAIT_SECONDS)
        self.asked += 1
        if self.asked > self.refused:
            return 2
        self.known[address - self.first] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.known[address - self.first]
        return 0


def made(refused: int = 99, near: Ranges = ()) -> tuple[Driver, Registered]:
    memory = np.zeros(SIZE, np.uint8)
    driver = Driver(memory, refused)
    return driver, Registered(memory, CUDA, lambda device: driver, PIECE, near)


def covers(registered: Registered, *ranges: tuple[int, int]) -> list[bool]:
    firsts, lasts = np.array(ranges, np.int64).T
    return registered.covers(firsts, lasts).tolist()


def until(registered: Registered, last: int) -> None:
    """Until it is said to know the byte before `last`."""
    for _ in range(1_000):
        if covers(registered, (last - 1, last)) == [True]:
            return
        threading.Event().wait(WAIT_SECONDS / 1_000)
    raise AssertionError(f"byte {last - 1} never came to be known")


def test_ranges_are_covered_once_their_piece_is_known_and_none_that_lie_in_two() -> None:
    driver, registered = made()
    assert covers(registered, (0, 1)) == [False]
    for piece in range(4):
        driver.leave.release()
        last = min(SIZE, (piece + 1) * PIECE)
        until(registered, last)
        assert covers(registered, (0, PIECE), (piece * PIECE, last)) == [True, True]
        assert covers(registered, (0, PIECE), (last - 1, last + 1)) == [True, False]
    assert covers(registered, (PIECE - 1, PIECE + 1)) == [False]
    assert driver.known == {0: PIECE, PIECE: PIECE, 2 * PIECE: PIECE, 3 * PIECE: SIZE - 3 * PIECE}
    registered.end()
    assert not driver.known
    assert covers(registered, (0, 1)) == [False]


@pytest.mark.parametrize(
    ("near", "order"),
    [
        ([(2 * PIECE, 4 * PIECE)], [2, 3, 0, 1]),
        ([(0, PIECE), (3 * PIECE, SIZE)], [0, 3, 1, 2]),
        ([(PIECE + 1, 3 * PIECE)], [2, 0, 1, 3]),  # a piece is where it begins
        ([], [0, 1, 2, 3]),
    ],
)
def test_what_is_near_the_device_is_known_first_and_nothing_else_before_it_is(
    near: Ranges, order: list[int]
) -> None:
    driver, registered = made(near=near)
    pieces = [(piece * PIECE, min(SIZE, (piece + 1) * PIECE)) for piece in range(4)]
    for count, piece in enumerate(order, 1):
        driver.leave.release()
        until(registered, pieces[piece][1])
        known = [one in order[:count] for one in range(4)]
        assert covers(registered, *pieces) == known
        across = [(first - 1, first + 1) for first, _ in pieces[1:]]
        assert covers(registered, *across) == [False] * 3
        assert covers(registered, (SIZE - 1, SIZE + 1), (SIZE, SIZE + 1)) == [False] * 2
    assert list(driver.known) == [piece * PIECE for piece in order]
    registered.end()
    assert not driver.known and covers(registered, *pieces) == [False] * 4


def test_what_is_refused_is_counted_by_what_is_known_and_not_by_where_it_lies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver, registered = made(refused=2, near=[(3 * PIECE, SIZE)])
    driver.leave.release(4)
    registered._thread.join(WAIT_SECONDS)  # type: ignore[union-attr]
    assert covers(registered, (3 * PIECE, SIZE), (0, PIECE), (PIECE, 2 * PIECE)) == [
        *(True, True, False)
    ]
    assert f"beyond {SIZE - 2 * PIECE} of {SIZE} bytes" in caplog.text
    registered.end()


def test_an_end_in_the_middle_forgets_what_is_known_and_asks_for_no_more() -> None:
    driver, registered = made()
    driver.leave.release()
    until(registered, PIECE)
    ending = threading.Thread(target=registered.end)
    ending.start()
    driver.leave.release()  # the one that is being registered meanwhile
    ending.join(WAIT_SECONDS)
    assert not ending.is_alive()
    assert driver.asked == 2
    assert not driver.known


def test_what_the_driver_refuses_is_said_and_stays_unknown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver, registered = made(refused=1)
    driver.leave.release(4)
    until(registered, PIECE)
    registered._thread.join(WAIT_SECONDS)  # type: ignore[union-attr]
    assert covers(registered, (PIECE, PIECE + 1)) == [False]
    assert "not pinned for cuda beyond 4096 of 15384 bytes (CUDA error 2)" in caplog.text
    registered.end()
    assert not driver.known


def test_a_processor_knows_all_of_its_memory() -> None:
    registered = Registered(np.zeros(SIZE, np.uint8), torch.device("cpu"), piece_bytes=SIZE)
    assert covers(registered, (0, SIZE), (0, SIZE + 1)) == [True, False]
    registered.end()
    assert covers(registered, (0, SIZE)) == [False]


def test_a_range_is_cut_where_pieces_meet() -> None:
    registered = Registered(np.zeros(SIZE, np.uint8), torch.device("cpu"), piece_bytes=PIECE)
    assert list(registered.parts(5, 0)) == []
    assert list(registered.parts(0, PIECE)) == [(0, PIECE)]
    assert list(registered.parts(PIECE - 3, PIECE + 5)) == [
        (PIECE - 3, 3),
        (PIECE, PIECE),
        (2 * PIECE, 2),
    ]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_a_gpu_copies_by_itself_to_and_from_memory_that_several_mappings_share() -> None:
    """And is told of it again once it forgot it, and of another mapping meanwhile."""
    size, piece = 6 << 20, 4 << 20
    arena = Arena.create(size)
    other = Arena(arena.descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)
    there = torch.arange(size, device=DEVICE).to(torch.uint8)
    for again in range(2):
        both = [Registered(one.bytes, DEVICE, piece_bytes=piece) for one in (arena, other)]
        for registered, one in zip(both, (arena, other), strict=True):
            until(registered, size)
            until(registered, piece)
            assert not covers(registered, (piece - 1, piece + 1))[0]
            host = torch.from_numpy(one.bytes)
            assert host.is_pinned(), "CUDA knows it, whoever it was told by"
            for first, last in ((again, piece), (piece, size)):
                part = host[first:last]
                part.zero_()
                torch.cuda._sleep(100_000_000)  # some 50 ms, in which the host goes on
                part.copy_(there[first:last], non_blocking=True)
                assert not part[-1000:].any(), "it is told, and not waited for"
                torch.cuda.synchronize()
                assert torch.equal(part, there[first:last].cpu())
                assert torch.equal(part.to(DEVICE, non_blocking=True), there[first:last])
        for registered in both:
            registered.end()
        assert not torch.from_numpy(arena.bytes).is_pinned()
    del host, part
    other.descriptor = -1
    assert other.close() and arena.close()
