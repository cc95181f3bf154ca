"""What a path holds is found from the heads of its slots, and nothing that it does not hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Owner, Slot
from kvstore.core.tombstones import Tombstones
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.disk.record import Record
from kvstore.layout import SlotLayout
from kvstore.node.head_scan import HeadScan
from tests.node.rig import LARGE, SECRETS, SLAB, SMALL, TOKENS, prompt
from tests.node.tiered_rig import PLACES, TieredRig
from tests.simulation.sim_disk import SimDisk

LAYOUTS = {owner: place.layout for owner, place in PLACES.items()}
SIZE = SMALL.layout.slot_bytes
Index = dict[bytes, Record]
Put = Callable[[TieredRig], list[Slot]]


class Counting(SimDisk):
    """Knows what was read of it, and may be told to fail at a place."""

    def __init__(self, slabs: int, seed: int = 1) -> None:
        super().__init__(1, slabs * SLAB, random.Random(seed))
        self.reads: list[tuple[int, int]] = []
        self.unreadable = -1

    def read(self, file: int, offset: int, into: memoryview) -> None:
        self.reads.append((offset, into.nbytes))
        if offset == self.unreadable:
            raise DiskError("Input/output error")
        super().read(file, offset, into)

    def head(self, place: int) -> memoryview:
        return memoryview(self._data[0].seen)[place : place + DISK_ALIGN]


def index_of(disk: SimDisk) -> Index:
    records = {key: Record.parse(value) for key, value in disk.scan()}
    return {key: record for key, record in records.items() if record is not None}


def stored(disks: Mapping[str, SimDisk], puts: Sequence[Put], epoch: int = 1) -> None:
    """Run a node on the disks that puts blocks and waits until they are durable."""
    rig = TieredRig(disks, epoch)
    rig.tiers.recover(SECRETS, LAYOUTS, Tombstones())

    async def work() -> None:
        for put in puts:
            assert await rig.durable(put(rig)) == ""

    rig.run(work)


def rebuilt(
    disks: Mapping[str, SimDisk],
    layouts: Mapping[Owner, SlotLayout] = LAYOUTS,
    tenants: Sequence[str] = tuple(SECRETS),
) -> list[Index]:
    """The indexes as they are found from the heads alone."""
    for disk in disks.values():
        disk.lose_index()
    rig = TieredRig(disks)
    HeadScan(rig.volumes, SLAB, tenants, layouts).rebuild(rig.threads.each, rig.clock)
    rig.threads.shutdown()
    return [index_of(disk) for disk in disks.values()]


def small(number: int, blocks: int = 4) -> Put:
    return lambda rig: rig.put_some(number, blocks)


def large(number: int, blocks: int = 4) -> Put:
    return lambda rig: rig.put_some(number, blocks, LARGE)


def test_every_record_of_every_path_is_found_again_word_for_word() -> None:
    disks = {"a": Counting(3, seed=1), "b": Counting(4, seed=2)}
    stored(disks, [small(1, 5), large(2, 3), small(3, 9)])
    before = [index_of(disk) for disk in disks.values()]
    assert all(before) and sum(map(len, before)) == 17
    assert rebuilt(disks) == before


def test_only_heads_are_read_and_only_where_one_may_stand() -> None:
    disk = Counting(4)
    stored({"a": disk}, [small(1), large(2)])
    disk.reads.clear()
    rebuilt({"a": disk})
    within = {0, 8192, 16384, 24576, 12288}  # slots of 8 and of 12 KiB
    assert {offset % SLAB for offset, _ in disk.reads} == within
    assert len(disk.reads) == 4 * len(within)
    assert {size for _, size in disk.reads} == {DISK_ALIGN}


@pytest.mark.parametrize("byte", [0, 9, 17, 33, 49, 57, 70, 100, 260])
def test_a_flipped_bit_in_a_head_costs_that_block_only(byte: int) -> None:
    disk = Counting(2)
    stored({"a": disk}, [small(1)])
    before = index_of(disk)
    disk.head(SIZE)[byte] ^= 1
    (found,) = rebuilt({"a": disk})
    assert found == {key: one for key, one in before.items() if one.place != SIZE}
    assert len(found) == 3


def test_a_head_at_another_place_or_on_another_path_is_passed_over() -> None:
    disks = {"a": Counting(3, seed=1), "b": Counting(3, seed=2)}
    stored(disks, [small(1)])
    before = [index_of(disk) for disk in disks.values()]
    assert list(map(len, before)) == [4, 0]
    head = bytes(disks["a"].head(SIZE))
    for place in (0, SLAB, SLAB + SIZE):
        disks["a"].head(SLAB + place)[:] = head
    disks["b"].head(SIZE)[:] = head
    assert rebuilt(disks) == before


def test_blocks_of_an_unknown_namespace_or_tenant_are_passed_over() -> None:
    disk = Counting(3)
    stored({"a": disk}, [small(1), large(2)])
    before = index_of(disk)
    (found,) = rebuilt({"a": disk}, {SMALL.owner: SMALL.layout})
    assert found == {k: one for k, one in before.items() if one.namespace == SMALL.owner[0]}
    assert rebuilt({"a": disk}, LAYOUTS, ["other"]) == [{}]
    assert before and all(one.tenant == tenant_digest("default") for one in before.values())
    assert rebuilt({"a": disk}) == [before]


def test_of_two_heads_of_one_key_the_later_one_counts() -> None:
    disk = Counting(3)
    stored({"a": disk}, [small(1, 1)])
    ((key, old),) = index_of(disk).items()
    disk.commit({}, [key])  # and its place stays as it is
    stored({"a": disk}, [small(2, 1), small(1, 1)], epoch=2)
    new = index_of(disk)[key]
    assert new.place != old.place, "the later copy took the place of the earlier one"
    assert rebuilt({"a": disk})[0][key] == new


def test_a_slab_that_changed_hands_has_the_blocks_of_its_last_owner() -> None:
    disk = Counting(1)
    stored({"a": disk}, [small(1), large(2, 1)])
    before = index_of(disk)
    assert [one.namespace for one in before.values()] == [LARGE.owner[0]]
    assert disk.head(3 * SIZE)[:8] == disk.head(0)[:8], "an earlier head still stands there"
    assert rebuilt({"a": disk}) == [before]


def test_a_head_that_cannot_be_read_costs_that_block_only() -> None:
    disk = Counting(2)
    stored({"a": disk}, [small(1)])
    disk.unreadable = SIZE
    (found,) = rebuilt({"a": disk})
    assert sorted(one.place for one in found.values()) == [0, 2 * SIZE, 3 * SIZE]


def test_an_index_that_takes_nothing_is_told_of_and_the_node_starts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Counting(2)
    stored({"a": disk}, [small(1)])

    def fails(entries: object) -> None:
        raise DiskError("committing: no")

    monkeypatch.setattr(disk, "rebuilt", fails)
    assert rebuilt({"a": disk}) == [{}]
    assert "'a': its index could not be made anew" in caplog.text
    assert disk.index_lost


def test_blocks_that_were_found_by_their_heads_are_read_and_verified() -> None:
    disk = Counting(3)
    stored({"a": disk}, [small(1)])
    disk.head(2 * SIZE + DISK_ALIGN)[3] ^= 1  # in the payload of the third
    disk.lose_index()
    rig = TieredRig({"a": disk}, epoch=2)
    assert rig.tiers.recover(SECRETS, LAYOUTS, Tombstones()) == 4
    blocks = prompt(SMALL, 4 * TOKENS, start=1_000)

    async def work() -> None:
        async with rig.tiers.brought(rig.store.keys("default", SMALL, blocks.hashes)):
            assert rig.hits(SMALL, blocks) == 2
        for block in blocks.hashes[:2]:
            assert len(rig.read(rig.pinned(rig.writing, block).slot, SMALL)) > 0

    rig.run(work)
    assert rig.counters.totals()["damaged_blocks"] == 1


def test_where_no_namespace_is_known_nothing_is_read() -> None:
    disk = Counting(2)
    stored({"a": disk}, [small(1)])
    disk.reads.clear()
    assert rebuilt({"a": disk}, {}) == [{}]
    assert not disk.reads
