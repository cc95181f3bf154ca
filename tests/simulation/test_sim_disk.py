"""What a power loss leaves of the simulated disk, and that a seed decides all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.disk.protocol import DISK_ALIGN, DiskError
from tests.simulation.seen import FILE_BYTES, FILES, PAGES, SECTORS, fill, read, sectors, sim
from tests.simulation.sim_disk import SECTOR_BYTES


def test_a_crash_keeps_what_was_synced() -> None:
    disk = sim()
    fill(disk, 1)
    disk.sync(0)
    assert set(sectors(disk.crash())) == {1}


def test_a_crash_leaves_each_unsynced_sector_written_or_not() -> None:
    disk = sim()
    fill(disk, 1)
    disk.sync(0)
    fill(disk, 2)
    found = sectors(disk.crash())
    assert set(found) == {1, 2}
    assert SECTORS // 4 < found.count(2) < 3 * SECTORS // 4


def test_unsynced_writes_of_one_place_may_land_in_any_order() -> None:
    disk = sim()
    for value in (1, 2, 3):
        fill(disk, value)
    assert set(sectors(disk.crash())) == {0, 1, 2, 3}
    lasts = set()
    for seed in range(40):  # the older one may be the one that stays
        disk = sim(seed)
        for value in (1, 2):
            fill(disk, value)
        found = sectors(disk.crash())
        lasts.add(found.count(1) > found.count(2))
    assert lasts == {True, False}


def test_a_sync_is_of_its_file_only() -> None:
    disk = sim()
    fill(disk, 1, file=0)
    fill(disk, 1, file=1)
    disk.sync(1)
    after = disk.crash()
    assert set(sectors(after, 0)) == {0, 1}
    assert set(sectors(after, 1)) == {1}


def test_the_index_is_as_committed_after_a_crash() -> None:
    disk = sim()
    disk.commit({b"b": b"1", b"a": b"2"}, ())
    disk.commit({}, [b"b"])
    assert list(disk.crash().scan()) == [(b"a", b"2")]


def test_a_disk_that_lost_power_answers_nothing_and_cannot_harm_what_came_after() -> None:
    disk = sim()
    fill(disk, 1)
    disk.sync(0)
    after = disk.crash()
    calls: list[Callable[[], object]] = [
        lambda: fill(disk, 2),
        lambda: read(disk),
        lambda: disk.sync(0),
        lambda: disk.commit({b"a": b""}, ()),
        lambda: disk.scan(),
    ]
    for call in calls:
        with pytest.raises(DiskError, match="no power"):
            call()
    assert set(sectors(after)) == {1}
    assert list(after.scan()) == []


@pytest.mark.skipif(not __debug__, reason="asserts are off")
@pytest.mark.parametrize(("offset", "size"), [(512, 4096), (0, 512), (FILE_BYTES, 4096)])
def test_a_place_that_a_real_disk_refuses_is_refused(offset: int, size: int) -> None:
    with pytest.raises(AssertionError):
        sim().write(0, offset, [memoryview(bytes(size))])
    with pytest.raises(AssertionError):
        sim().read(0, offset, memoryview(bytearray(size)))


def lived(seed: int) -> list[object]:
    """What there is to see of a disk with every fault, its power lost now and then."""
    disk = sim(seed, **dict.fromkeys(("sync_fails", "lost", "misdirected", "full"), 0.2))
    seen: list[object] = []
    for step in range(1, 40):
        try:
            fill(disk, step, file=step % FILES, pages=3, first=step % 13)
            disk.commit({b"%d" % step: b""}, ())
            if step % 5 == 0:
                disk.sync(step % FILES)
        except DiskError as error:
            seen.append(str(error))
        if step % 7 == 0:
            disk.flip_bit()
            disk = disk.crash()
    return [*seen, read(disk, 0), read(disk, 1), list(disk.scan())]


def test_a_seed_decides_everything() -> None:
    assert lived(5) == lived(5)
    assert lived(5) != lived(6)


steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "sync", "crash"]),
        st.integers(0, FILES - 1),
        st.integers(0, PAGES - 3),
        st.integers(1, 3),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(steps, st.integers(0, 2**32))
def test_each_sector_is_what_was_synced_last_or_what_was_written_since(
    steps: list[tuple[str, int, int, int]], seed: int
) -> None:
    disk = sim(seed)
    per_page = DISK_ALIGN // SECTOR_BYTES
    may_be = [[{0} for _ in range(SECTORS)] for _ in range(FILES)]
    now = [[0] * SECTORS for _ in range(FILES)]
    for number, (what, file, first, pages) in enumerate(steps, 1):
        if what == "write":
            fill(disk, number, file, pages, first)
            for sector in range(first * per_page, (first + pages) * per_page):
                now[file][sector] = number
                may_be[file][sector].add(number)
        elif what == "sync":
            disk.sync(file)
            may_be[file] = [{value} for value in now[file]]
        else:
            disk = disk.crash()
            for each in range(FILES):
                now[each] = sectors(disk, each)
                assert all(v in may for v, may in zip(now[each], may_be[each], strict=True))
                may_be[each] = [{value} for value in now[each]]
    for file in range(FILES):
        assert sectors(disk, file) == now[file]
