"""What a node writes down of each block on SSD, and how it takes them up again when it starts.

Only the records are read then, so that serving begins at once. The bytes of a block are verified
when it is read, against its record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kvstore.block import tenant_digest
from kvstore.core.lifecycle import Owner, Slot, State
from kvstore.disk.protocol import Disk
from kvstore.disk.record import Record
from kvstore.layout import SlotLayout
from kvstore.limits import HASH_BYTES
from kvstore.node.blocks import Blocks


def record_of(slot: Slot, target: Slot) -> bytes:
    """What the index is to say of a block that has been written to `target`."""
    return Record(
        place=target.offset,
        generation=target.generation,
        root=slot.root,
        parent=slot.parent or bytes(HASH_BYTES),
        namespace=slot.owner[0],
        group=slot.owner[1],
        tokens=slot.tokens,
        origin=slot.origin,
        tenant=tenant_digest(slot.tenant),
    ).pack()


def recovered(
    blocks: Blocks,
    disk: Disk,
    tenants: Collection[str],
    known: Callable[[Owner], SlotLayout | None],
) -> list[Slot]:
    """The blocks that the disk's index names, now in the node's own. Call it before any other.

    A record of a tenant or namespace that is not known, or of a place that it cannot have, is
    passed over, and what it took is free.
    """
    named = {tenant_digest(name): name for name in tenants}
    slabs, found = blocks.ssd, list[Slot]()
    assert slabs is not None
    for key, value in disk.scan():
        record = Record.parse(value)
        tenant = named.get(record.tenant) if record is not None else None
        if record is None or tenant is None or len(key) != HASH_BYTES:
            continue
        owner = (record.namespace, record.group)
        layout = known(owner)
        if layout is None:
            continue
        slot = slabs.restore(owner, layout.slot_bytes, record.place, record.generation)
        if slot is None:
            continue
        slot.key, slot.tenant, slot.tokens = key, tenant, record.tokens
        slot.parent = record.parent if any(record.parent) else b""
        slot.root, slot.origin = record.root, record.origin
        slot.move(State.FILLING)
        slot.move(State.SEALED)
        blocks.index.add(slot)
        found.append(slot)
    slabs.settled()
    return found
