"""Heads where they do not belong: what a misdirected write or a copied file leaves on a disk.

They hit only places that no block has, so nothing is lost by them, unless a node that looks through
heads believes one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from kvstore.core.lifecycle import Slot, Tier
from kvstore.disk.volumes import Volumes
from kvstore.node.blocks import Blocks
from tests.node.rig import SLAB, SMALL
from tests.simulation.sim_disk import SimDisk


def stray_heads(blocks: Blocks, disks: Sequence[SimDisk], rng: random.Random) -> None:
    """Copy some blocks' heads to free places, of their own path and of the same place of others.

    `blocks` are as the node last knew them, on these disks in this order.
    """
    volumes = Volumes({str(number): disk for number, disk in enumerate(disks)})
    places = {volumes.address(offset): offset for offset in free_places(blocks)}
    stored = [slot for held in blocks.index if (slot := on_ssd(held)) is not None]
    for slot in rng.sample(stored, min(len(stored), 4)):
        head = bytes(copies(volumes, slot.offset)[0])
        own = volumes.address(slot.offset)
        same_path = [place for place in places if place.path == own.path]
        same_place = [p for p in places if p.place == own.place and p.path != own.path]
        for some in (same_path, same_place):
            if some:
                for copy in copies(volumes, places.pop(rng.choice(some))):
                    copy[:] = head


def on_ssd(held: Slot) -> Slot | None:
    return held if held.tier is Tier.SSD else held.twin


def free_places(blocks: Blocks) -> Iterator[int]:
    """Offsets on SSD where a block may be written next."""
    assert blocks.ssd is not None
    size = SMALL.layout.slot_bytes
    for slab in blocks.ssd._slabs:
        places = range(SLAB // size) if slab.owner is None else slab.free
        yield from (slab.offset + place * size for place in sorted(places))


def copies(volumes: Volumes, offset: int) -> list[memoryview]:
    """A slot's head on a simulated disk that has just started: as reads see it, and as it lies."""
    path, file = volumes.path_of(offset), volumes.file_of(offset)
    disk = volumes.disks[path]
    assert isinstance(disk, SimDisk)
    data = disk._data[file - volumes.files_of(path)[0]]
    begin = offset - volumes.span(file)[0]
    end = begin + SMALL.layout.head_bytes
    return [memoryview(one)[begin:end] for one in (data.seen, data.medium)]


def records_of(disks: Mapping[str, SimDisk]) -> dict[tuple[str, bytes], bytes]:
    """What the indexes say, by path and key."""
    return {(name, key): one for name, disk in disks.items() for key, one in disk._index.items()}


def put_back(
    disks: Mapping[str, SimDisk], purged: Mapping[tuple[str, bytes], bytes], rng: random.Random
) -> set[bytes]:
    """An index is lost at times, and made again from what lies about. Keys that only it has."""
    if rng.random() < 0.5 or any(disk.index_lost for disk in disks.values()):
        return set()
    there = records_of(disks)
    for (name, key), value in purged.items():
        disks[name]._index.setdefault(key, value)
    return {key for _, key in purged} - {key for _, key in there}
