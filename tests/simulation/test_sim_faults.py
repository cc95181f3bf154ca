"""What each fault of the simulated disk does, alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvstore.disk.protocol import DISK_ALIGN, DiskError, DiskFull, DiskReadOnly
from tests.simulation.seen import FILES, PAGES, fill, places, read, sectors, sim
from tests.simulation.sim_disk import SECTOR_BYTES, Faults


def test_after_a_crash_the_faults_are_still_on_and_can_be_put_off() -> None:
    after = sim(read_fails=1.0).crash()
    with pytest.raises(DiskError):
        read(after)
    after.faults = Faults()
    assert set(sectors(after)) == {0}


def test_a_failed_sync_is_seen_by_reads_and_lost_in_a_crash() -> None:
    disk = sim(sync_fails=1.0)
    fill(disk, 1)
    with pytest.raises(DiskError, match="syncing file 0"):
        disk.sync(0)
    assert set(sectors(disk)) == {1}
    assert set(sectors(disk.crash())) == {0, 1}


def test_a_second_sync_passes_and_lies() -> None:
    disk = sim(sync_fails=1.0)
    fill(disk, 1)
    with pytest.raises(DiskError):
        disk.sync(0)
    disk.faults = Faults()
    disk.sync(0)
    assert set(sectors(disk.crash())) == {0, 1}


def test_a_failed_sync_harms_nothing_that_was_synced_before_or_is_written_after() -> None:
    disk = sim()
    fill(disk, 1, pages=4)
    disk.sync(0)
    disk.faults = Faults(sync_fails=1.0)
    fill(disk, 2, pages=4, first=4)
    with pytest.raises(DiskError):
        disk.sync(0)
    disk.faults = Faults()
    fill(disk, 3, pages=4, first=8)
    disk.sync(0)
    found, page = sectors(disk.crash()), DISK_ALIGN // SECTOR_BYTES
    assert set(found[: 4 * page]) == {1}
    assert set(found[4 * page : 8 * page]) == {0, 2}
    assert set(found[8 * page : 12 * page]) == {3}


def test_a_lost_write_is_acknowledged_and_synced_and_nowhere() -> None:
    disk = sim(lost=1.0)
    fill(disk, 1)
    disk.sync(0)
    assert set(sectors(disk)) == {0}
    assert set(sectors(disk.crash())) == {0}


@pytest.mark.parametrize("seed", range(20))
def test_a_misdirected_write_is_at_one_place_that_is_not_its_own(seed: int) -> None:
    disk = sim(seed, misdirected=1.0)
    fill(disk, 1, pages=1, first=3)
    [place] = places(disk, 1)
    assert place != (0, 3)


@pytest.mark.parametrize("seed", range(20))
def test_a_write_misdirected_too_is_at_its_own_place_and_at_another(seed: int) -> None:
    disk = sim(seed, misdirected_too=1.0)
    fill(disk, 1, pages=1, first=3)
    found = places(disk, 1)
    assert (0, 3) in found
    assert len(found) == 2


def test_misdirected_writes_reach_every_place_but_their_own() -> None:
    reached = set()
    for seed in range(400):
        disk = sim(seed, misdirected=1.0)
        fill(disk, 1, file=1, pages=1, first=3)
        reached |= set(places(disk, 1))
    every = {(file, number) for file in range(FILES) for number in range(PAGES)}
    assert reached == every - {(1, 3)}


@pytest.mark.parametrize("file", [0, 1, None])
def test_a_flipped_bit_is_one_bit_and_stays(file: int | None) -> None:
    disk = sim()
    where, offset = disk.flip_bit(file)
    assert file in (where, None)
    for _ in range(2):
        data = read(disk, where)
        assert data[offset].bit_count() == 1
        assert sum(data) == data[offset]
        assert not any(read(disk, 1 - where))
        disk = disk.crash()


def test_a_read_that_fails_leaves_the_bytes_where_they_are() -> None:
    disk = sim()
    fill(disk, 1)
    disk.faults = Faults(read_fails=1.0)
    with pytest.raises(DiskError, match="reading file 0 at 0"):
        read(disk)
    with pytest.raises(DiskError):
        disk.scan()
    disk.faults = Faults()
    assert set(sectors(disk)) == {1}


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(full=1.0), DiskFull),
        (Faults(write_fails=1.0, commit_fails=1.0), DiskError),
        (Faults(read_only=True), DiskReadOnly),
    ],
)
def test_a_refused_commit_changes_nothing_and_a_refused_write_no_other_place(
    faults: Faults, kind: type[DiskError]
) -> None:
    disk = sim()
    fill(disk, 1)
    disk.sync(0)
    disk.commit({b"a": b"1"}, ())
    disk.faults = faults
    with pytest.raises(DiskError) as caught:
        disk.commit({b"b": b"2"}, [b"a"])
    assert type(caught.value) is kind
    with pytest.raises(DiskError) as caught:
        fill(disk, 2, pages=2)
    assert type(caught.value) is kind
    assert dict(disk.scan()) == {b"a": b"1"}
    assert set(sectors(disk)[2 * DISK_ALIGN // SECTOR_BYTES :]) == {1}
    disk.faults = Faults()
    disk.commit({b"b": b"2"}, [b"a"])
    fill(disk, 2)
    assert dict(disk.scan()) == {b"b": b"2"}
    assert set(sectors(disk)) == {2}


def test_a_read_only_disk_can_be_read_and_its_unsynced_writes_are_not_to_be_believed() -> None:
    disk = sim()
    fill(disk, 1)
    disk.faults = replace(disk.faults, read_only=True)
    with pytest.raises(DiskReadOnly):
        disk.sync(0)
    assert set(sectors(disk)) == {1}
    assert set(sectors(disk.crash())) == {0, 1}
