"""What a node takes up of its indexes, and what rot in one of them costs: that record alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvstore.block import Chain
from kvstore.core.tombstones import Tombstones
from kvstore.disk.record import Record
from tests.node.rig import LARGE, SECRETS, SLAB, SMALL, TOKENS, prompt
from tests.node.tiered_rig import PLACES, TieredRig
from tests.simulation.sim_disk import SimDisk

FILE_BYTES = 2 * SLAB  # 8 blocks
PROMPT = prompt(SMALL, 4 * TOKENS, start=1_000)  # `TieredRig.put_some(1)`
LAYOUTS = {owner: place.layout for owner, place in PLACES.items()}


def started_again(disks: dict[str, SimDisk], epoch: int = 2) -> TieredRig:
    """The next start of a node with these paths, which has taken up what they record."""
    rig = TieredRig(disks, epoch)
    rig.tiers.recover(SECRETS, LAYOUTS, Tombstones())
    rig.store.check()
    return rig


def two_paths() -> dict[str, SimDisk]:
    return {name: SimDisk(1, FILE_BYTES, random.Random(name)) for name in "ab"}


def filled_from_the_second() -> tuple[dict[str, SimDisk], dict[bytes, Record]]:
    """Two paths, of which the second has four blocks of a prompt; and their records."""
    disks = two_paths()
    rig = TieredRig(dict(reversed(disks.items())))

    async def work() -> None:
        assert await rig.durable(rig.put_some(1)) == ""

    rig.run(work)
    found = {key: Record.parse(value) for key, value in disks["b"].scan()}
    records = {key: one for key, one in found.items() if one is not None}
    assert len(records) == 4
    return disks, records


def without_its_tenant(disk: SimDisk, others: Chain) -> None:
    """A run that does not know the tenant of what a path's only slab has, and cuts it anew."""
    rig = TieredRig({"a": disk}, epoch=2)
    rig.tiers.recover(["other"], LAYOUTS, Tombstones())

    async def work() -> None:
        assert await rig.durable(rig.put(rig.session("other"), LARGE, others)) == ""

    rig.run(work)


def hits(rig: TieredRig) -> int:
    return rig.hits(SMALL, PROMPT)


def rotten_in_another_slab(rig: TieredRig, disk: SimDisk) -> tuple[bytes, Record]:
    """A later block of another namespace, and a record of it of which one bit, of its place, is
    wrong."""
    keys = rig.store.keys("default", LARGE, prompt(LARGE, TOKENS).hashes)

    async def work() -> None:
        assert await rig.durable(rig.put_some(1)) == ""
        assert await rig.durable(rig.put(rig.writing, LARGE, prompt(LARGE, TOKENS))) == ""

    rig.run(work)
    one = Record.parse(dict(disk.scan())[keys[0]])
    assert one is not None and one.place == SLAB
    return keys[0], replace(one, place=one.place ^ SLAB)


def rotten_in_its_namespace(rig: TieredRig, disk: SimDisk) -> tuple[bytes, Record]:
    """The last block that came to a slab, at its first place, and a record of it that is said to be
    another namespace's."""

    async def work() -> None:
        (first,) = rig.put_some(2, blocks=1)
        assert await rig.durable([first]) == ""
        rest = rig.put(rig.writing, SMALL, PROMPT, 0, 3)
        assert await rig.durable(rest) == ""
        rig.store.remove([first.key])
        assert await rig.durable(rig.put(rig.writing, SMALL, PROMPT, 3)) == ""

    rig.run(work)
    records = {key: Record.parse(value) for key, value in disk.scan()}
    (found,) = [(key, one) for key, one in records.items() if one is not None and not one.place]
    return found[0], replace(found[1], namespace=LARGE.owner[0])


@pytest.mark.parametrize(
    ("rotten", "left"), [(rotten_in_another_slab, 4), (rotten_in_its_namespace, 3)]
)
def test_a_record_that_is_wrong_of_whose_a_slab_is_costs_its_own_block_alone(
    rotten: Callable[[TieredRig, SimDisk], tuple[bytes, Record]], left: int
) -> None:
    disk = SimDisk(1, FILE_BYTES, random.Random(1))
    key, wrong = rotten(TieredRig({"a": disk}), disk)
    disk.commit({key: wrong.pack()}, ())
    rig = started_again({"a": disk})
    assert hits(rig) == left and key not in rig.blocks.index

    async def work() -> None:
        await rig.tiers.flushed([key])

    rig.run(work)
    assert key not in dict(disk.scan()) and hits(started_again({"a": disk}, epoch=3)) == left


def test_a_place_beyond_its_path_takes_nothing_of_the_next_one() -> None:
    disks, records = filled_from_the_second()
    one = next(iter(records.values()))
    later = replace(one, place=FILE_BYTES + one.place, generation=one.generation + 100)
    disks["a"].commit({bytes(31) + b"x": later.pack()}, ())
    assert hits(started_again(disks)) == 4


def test_a_place_beyond_its_path_has_no_other_record_of_its_block_deleted() -> None:
    disks, records = filled_from_the_second()
    for key, one in records.items():
        later = replace(one, place=2 * FILE_BYTES + one.place, generation=one.generation + 100)
        disks["a"].commit({key: later.pack()}, ())
    rig = started_again(disks)
    assert hits(rig) == 4

    async def work() -> None:
        await rig.tiers.flushed(())

    rig.run(work)
    assert dict(disks["b"].scan()).keys() == records.keys()


def test_a_block_that_was_removed_while_its_place_was_anothers_does_not_come_back() -> None:
    disk, others = SimDisk(1, SLAB, random.Random(1)), prompt(LARGE, TOKENS)
    rig = TieredRig({"a": disk})

    async def put() -> None:
        assert await rig.durable(rig.put_some(1)) == ""

    rig.run(put)
    without_its_tenant(disk, others)
    rig = started_again({"a": disk}, epoch=3)
    assert hits(rig) == 0 and rig.hits(LARGE, others, "other") == 1, "the slab is another's"

    async def remove() -> None:
        rig.store.remove(rig.store.keys("other", LARGE, others.hashes))
        rig.store.remove(keys := rig.store.keys("default", SMALL, PROMPT.hashes))
        await rig.tiers.flushed(keys)

    rig.run(remove)
    assert hits(started_again({"a": disk}, epoch=4)) == 0


def test_a_generation_that_none_could_follow_is_passed_over_and_writing_goes_on() -> None:
    disks, records = filled_from_the_second()
    key, one = next(iter(records.items()))
    disks["b"].commit({key: replace(one, generation=2**64 - 1).pack()}, ())
    rig = started_again(disks)

    async def work() -> None:
        assert await rig.durable(rig.put_some(2)) == ""

    rig.run(work)
    assert rig.blocks.index.held(key) is None


@pytest.mark.parametrize("rotten", [2**63 - 1, 2**62])
def test_a_rotten_generation_is_not_gone_on_from(rotten: int) -> None:
    """Else those that follow it are more than there can be, or are held for purged."""
    disks, records = filled_from_the_second()
    key, one = next(iter(records.items()))
    disks["b"].commit({key: replace(one, generation=rotten).pack()}, ())
    rig, more = started_again(disks), prompt(SMALL, 4 * TOKENS, start=2_000)
    assert rig.ssd.generation < 3 << 40

    async def work() -> None:
        assert await rig.durable(rig.put_some(2)) == ""

    rig.run(work)
    rig = started_again(disks, epoch=3)
    assert rig.hits(SMALL, more) == 4 and rig.blocks.index.held(key) is None


def test_generations_of_a_node_that_was_started_more_often_are_gone_on_from() -> None:
    """A path outlives the directory of its node, which counts the starts."""
    disks, _ = filled_from_the_second()
    rig = started_again(disks, epoch=0)
    assert rig.ssd.generation > 1 << 40 and hits(rig) == 4
