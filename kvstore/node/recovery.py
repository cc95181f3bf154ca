"""What a node writes down of each block on SSD, and how it takes them up again when it starts.

Only the records are read then, all at once as arrays, so that serving begins soon: a block becomes
an object when somebody asks for it. Its bytes are verified when it is read, against its record.
"""

from __future__ import annotations

import logging
import mmap
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Owner, Slot, Tier
from kvstore.core.sleepers import ROW, Sleepers, first_words, firsts, parents
from kvstore.core.tombstones import Tombstones, purged
from kvstore.disk.head import told
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.disk.record import RECORD_BYTES, RECORDS, Record
from kvstore.disk.volumes import Volumes
from kvstore.failpoint import failpoint
from kvstore.layout import SlotLayout
from kvstore.limits import HASH_BYTES
from kvstore.node.blocks import Blocks

log = logging.getLogger(__name__)

_GENERATIONS = 1 << 63  # more than any node gives out; a word on a disk has room for twice as many


def record_of(slot: Slot, target: Slot, volumes: Volumes) -> bytes:
    """What the index is to say of a block that has been written to `target`."""
    return Record(
        place=volumes.address(target.offset).place,
        generation=target.generation,
        root=slot.root,
        parent=slot.parent or bytes(HASH_BYTES),
        namespace=slot.owner[0],
        group=slot.owner[1],
        tokens=slot.tokens,
        origin=slot.origin,
        tenant=tenant_digest(slot.tenant),
    ).pack()


def recover(
    blocks: Blocks,
    volumes: Volumes,
    tenants: Collection[str],
    known: Callable[[Owner], SlotLayout | None],
    tombstones: Tombstones,
) -> int:
    """Take up what the indexes name, before any other use of `blocks`; how many that was.

    A record of a tenant or namespace that is not known, of a place or generation that it cannot
    have, or that stands among its own ancestors is passed over, and what it took is free. So is one
    that was purged. Of two records of one block, as a crash between the commits of two paths leaves
    them, the later generation counts. The next commit deletes what is passed over, but for those of
    strangers, who may be known again, and what `_read` leaves out: a caller that removes the block
    has no other way to it.
    """
    slabs = blocks.ssd
    assert slabs is not None
    table, owners, names = _known(*_read(volumes), tenants, known)
    believed = _believed(table, volumes, slabs.generation)
    passed_over, table = [table[~believed]], table[believed]
    gone = purged(
        tombstones,
        *([owner[0] for owner, _ in owners], table["owner"]),
        *([tenant_digest(name) for name in names], table["tenant"]),
        table["generation"],
    )
    passed_over.append(table[gone])
    table, superseded = _in_order(table[~gone])
    passed_over.append(superseded)
    parent = parents(table)
    circular = parent[firsts(parent)] >= 0
    if circular.any():
        passed_over.append(table[circular])
        table = table[~circular]
    places = (table["owner"].astype(np.int64), table["place"], table["generation"])
    good = slabs.restore(owners, *places, _vouching(table, owners, volumes))
    passed_over.append(table[~good])
    table = table[good]
    for rows in passed_over:
        keys = (bytes(key).ljust(HASH_BYTES, b"\0") for key in rows["key"])
        blocks.unsaid.update(zip(keys, rows["place"].tolist(), strict=True))
    blocks.index.recovered(Sleepers(table, owners, names, slabs))
    for tenant, size in blocks.index.sleepers.bytes_of().items():
        blocks.shares.take(Tier.SSD, tenant, size)
    return len(table)


def _read(volumes: Volumes) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Keys and records of the indexes, with places in the run of all paths; without those of a
    place that its own path does not have, or of a generation that none could follow. What else
    they say is as it is."""
    keys, values, counts = bytearray(), bytearray(), Counter[int]()
    for key, value, path in volumes.scan():
        if len(key) == HASH_BYTES and len(value) == RECORD_BYTES:
            keys += key
            values += value
            counts[path] += 1
        failpoint("recovery.between_records")
    records = np.frombuffer(values, RECORDS)
    ranges = [volumes.offsets_of(path) for path in counts]
    first, size = (
        np.repeat(np.array(some, np.uint64), list(counts.values()))
        for some in ([one.start for one in ranges], [len(one) for one in ranges])
    )
    there = (records["place"] < size) & (records["generation"] < _GENERATIONS)
    records["place"] += first
    return np.frombuffer(keys, f"S{HASH_BYTES}")[there], records[there]


def _believed(table: NDArray[np.void], volumes: Volumes, before: int) -> NDArray[np.bool_]:
    """Which rows have a generation that can be. Later ones than earlier starts gave out are those
    of a path whose node's directory was made anew: its slots say the same, from the highest down.
    It is gone on from that: a rotten one would leave none for what comes, or have it purged.
    """
    good, generations = np.ones(len(table), bool), table["generation"]
    later = np.flatnonzero(generations > before)
    page = memoryview(mmap.mmap(-1, DISK_ALIGN))
    for row in later[np.argsort(generations[later])[::-1]]:
        found = _told_at(int(table["place"][row]), volumes, page)
        if found is not None and found.generation == generations[row]:
            break
        good[row] = False
    return good


def _vouching(
    table: NDArray[np.void], owners: Sequence[tuple[Owner, int]], volumes: Volumes
) -> Callable[[int], bool]:
    """Says of a row whether its slot says the same of whose it is, and of which generation. That
    costs a read, and a rotten record else a whole slab."""
    page = memoryview(mmap.mmap(-1, DISK_ALIGN))

    def vouched(row: int) -> bool:
        place, generation, owner = (
            int(table[row][one]) for one in ("place", "generation", "owner")
        )
        found = _told_at(place, volumes, page)
        if found is None or found.generation != generation:
            return False
        return (found.namespace, found.group) == owners[owner][0]

    return vouched


def _told_at(place: int, volumes: Volumes, page: memoryview) -> Record | None:
    """What the slot itself says."""
    try:
        volumes.read(place, page)
    except DiskError as failed:
        log.warning("a block's head could not be read: %s", failed)
        return None
    return told(page, volumes.address(place))


def _in_order(table: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Rows as `Sleepers` wants them, and those that a later one of the same key supersedes."""
    words = first_words(table["key"])
    order = np.lexsort((table["generation"], words))
    table, words = table[order], words[order]
    alike = np.flatnonzero(words[1:] == words[:-1])
    latest = {bytes(table["key"][row]): row for one in alike for row in (one, one + 1)}
    stays = np.ones(len(table), bool)
    stays[alike] = stays[alike + 1] = False
    stays[list(latest.values())] = True
    return table[stays], table[~stays]


def _known(
    keys: NDArray[np.void],
    records: NDArray[np.void],
    tenants: Collection[str],
    known: Callable[[Owner], SlotLayout | None],
) -> tuple[NDArray[np.void], list[tuple[Owner, int]], list[str]]:
    """Rows of those whose owner and tenant are known; and as the rows number them, owners with the
    bytes of their slots, and tenants."""
    found, owner = np.unique(records["owner"], return_inverse=True)
    named = [bytes(one).ljust(HASH_BYTES + 4, b"\0") for one in found]
    every = [(one[:HASH_BYTES], int.from_bytes(one[HASH_BYTES:], "little")) for one in named]
    layouts = list(map(known, every))
    of_digest = {tenant_digest(name): name for name in tenants}
    digests, tenant = np.unique(records["tenant"], return_inverse=True)
    names = [of_digest.get(bytes(one).ljust(16, b"\0")) for one in digests]
    good = np.array([one is not None for one in layouts], bool)[owner]
    good &= np.array([one is not None for one in names], bool)[tenant]
    table = np.zeros(np.count_nonzero(good), ROW)
    records, table["key"], table["owner"] = records[good], keys[good], owner[good]
    for name in ("parent", "root", "place", "generation", "origin", "tokens"):
        table[name] = records[name]
    table["tenant"] = tenant[good]
    # One that is not known has no row, so its 0 is never looked at.
    full = np.array([one.block_tokens if one else 0 for one in layouts], np.uint32)
    table["short"] = table["tokens"] < full[table["owner"]]
    sizes = [one.slot_bytes if one else 0 for one in layouts]
    return table, list(zip(every, sizes, strict=True)), [name or "" for name in names]
