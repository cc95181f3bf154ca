"""What a path holds, found without its index: from the heads of the slots themselves.

A head carries all that a record says, stamped for its place, and the root vouches for it. Where one
may stand follows from the layouts of the namespaces that are known: only those places are read, a
page each. In a slab the latest head tells how it is cut: all that were there before it was cut so
had been dropped. What else was dropped since, and not yet overwritten, is found again: its bytes
are still right.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvstore.block import tenant_digest
from kvstore.clock import Clock
from kvstore.core.lifecycle import Owner
from kvstore.disk.head import told, vouched
from kvstore.disk.protocol import DISK_ALIGN, DiskError
from kvstore.disk.record import Record
from kvstore.disk.volumes import Volumes
from kvstore.layout import IDENTITY_OFFSET, SlotLayout
from kvstore.limits import HASH_BYTES

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0

Each: TypeAlias = Callable[
    [Callable[[int], Any], Iterable[int]], Iterator[Any]
]  # `map`, or threads'


@dataclass(frozen=True, slots=True)
class Head:
    """A block as its own slot tells of it."""

    key: bytes
    record: Record

    @property
    def owner(self) -> Owner:
        return self.record.namespace, self.record.group


class HeadScan:
    """Looks through slabs for the blocks of known tenants and namespaces."""

    def __init__(
        self,
        volumes: Volumes,
        slab_bytes: int,
        tenants: Collection[str],
        layouts: Mapping[Owner, SlotLayout],
    ) -> None:
        self._volumes, self._slab_bytes = volumes, slab_bytes
        self._tenants = {tenant_digest(name) for name in tenants}
        self._layouts = layouts
        sizes = {layout.slot_bytes for layout in layouts.values()}
        self._places = sorted(
            {at for size in sizes for at in range(0, slab_bytes - size + 1, size)}
        )

    def rebuild(self, each: Each, clock: Clock) -> None:
        """Fill every index that was lost. One that takes nothing stays empty for this run."""
        for path, disk in enumerate(self._volumes.disks):
            if not disk.index_lost:
                continue
            try:
                disk.rebuilt({key: one.pack() for key, one in self._found(path, each, clock)})
            except DiskError as failed:
                log.error(
                    "node.ssd %r: its index could not be made anew, and its blocks are not "
                    "served until the node starts again: %s",
                    *(self._volumes.names[path], failed),
                )

    def _found(self, path: int, each: Each, clock: Clock) -> Iterable[tuple[bytes, Record]]:
        """Each block of a path once: where two heads have its key, the later one."""
        files = self._volumes.files_of(path)
        begin, end = self._volumes.span(files[0])[0], self._volumes.span(files[-1])[1]
        slabs = range(begin, end, self._slab_bytes)
        name, found, said = self._volumes.names[path], dict[bytes, Record](), clock.now()
        for number, heads in enumerate(each(self.slab, slabs), 1):
            for head in heads:
                other = found.get(head.key)
                if other is None or other.generation < head.record.generation:
                    found[head.key] = head.record
            if clock.now() - said > PROGRESS_SECONDS or number == len(slabs):
                said = clock.now()
                log.info(
                    "node.ssd %r: looked through %d of %d slabs, %d blocks found",
                    *(name, number, len(slabs), len(found)),
                )
        return found.items()

    def slab(self, begin: int) -> list[Head]:
        """The blocks of the slab at an offset, as it was cut last."""
        page = memoryview(mmap.mmap(-1, DISK_ALIGN))
        heads: list[Head] = []
        for within in self._places:
            try:
                head = self._head(begin, within, page)
            except DiskError as failed:
                log.warning("a block's head could not be read: %s", failed)
                continue
            if head is not None:
                heads.append(head)
        if not heads:
            return []
        owner = max(heads, key=lambda head: head.record.generation).owner
        return [head for head in heads if head.owner == owner]

    def _head(self, begin: int, within: int, page: memoryview) -> Head | None:
        offset = begin + within
        self._volumes.read(offset, page)
        record = told(page, self._volumes.address(offset))
        if record is None or record.tenant not in self._tenants:
            return None
        layout = self._layouts.get((record.namespace, record.group))
        if layout is None or within % layout.slot_bytes:
            return None
        if within + layout.slot_bytes > self._slab_bytes:
            return None
        head = page
        if layout.head_bytes > len(page):
            head = memoryview(mmap.mmap(-1, layout.head_bytes))
            self._volumes.read(offset, head)
        if not vouched(head, record.root, layout):
            return None
        return Head(bytes(head[IDENTITY_OFFSET : IDENTITY_OFFSET + HASH_BYTES]), record)
