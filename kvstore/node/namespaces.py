"""The namespaces a node knows: digest -> spec, and the slot layout of each of its groups.

Which are in quarantine the metadata tells it, whichever node was the first to say so. Once that is
over, this node drops what it had of the namespace before it is used here again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from kvstore.clock import Clock
from kvstore.core.lifecycle import Owner
from kvstore.errors import (
    Invalid,
    KVStoreError,
    OutOfRange,
    Overloaded,
    SpecMismatch,
    UnknownNamespace,
)
from kvstore.layout import SlotLayout
from kvstore.limits import HASH_BYTES, NAMESPACES_MAX, SPECS_BYTES_MAX
from kvstore.metadata.protocol import Metadata
from kvstore.metadata.records import NamespaceRecord, QuarantineRecord
from kvstore.metadata.roster import Roster
from kvstore.spec import KVSpec, difference

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0  # after a release that could not be carried out here

LayoutOf: TypeAlias = Callable[[Owner], SlotLayout]  # of an owner who is known


@dataclass(frozen=True, slots=True)
class Place:
    """One group of one namespace: whose slots these are, and how they are laid out."""

    owner: Owner
    layout: SlotLayout
    stored: str  # what its bytes are: a dtype, or a codec


class Namespaces:
    """Registered specs, read from the metadata when first named and kept from then on."""

    def __init__(self, metadata: Metadata, clock: Clock, dice: random.Random) -> None:
        self._metadata = metadata
        self._specs: dict[bytes, KVSpec] = {}
        self._bytes = 0  # of those, as text
        self._registering = asyncio.Lock()
        self._places: dict[Owner, Place] = {}
        self.quarantined: dict[bytes, str] = {}  # digest -> what was found wrong
        self._clock = clock
        self._said: set[bytes] = set()  # by this node, and not told back by the metadata yet
        self._over = asyncio.Event()  # some that stand here may not stand there any more
        nature = (clock, dice, NAMESPACES_MAX)
        told = (self._see_quarantine, self._over.set)
        self._records = Roster(metadata, QuarantineRecord, *nature, *told)

    def known(self) -> dict[bytes, KVSpec]:
        return dict(self._specs)

    async def register(self, text: str, expected: bytes) -> bytes:
        """Make a spec's namespace known to every node; returns its digest. Idempotent."""
        if len(text) > SPECS_BYTES_MAX:
            raise Invalid(f"the spec has {len(text)} characters; at most {SPECS_BYTES_MAX}")
        spec = KVSpec.parse(text)
        digest = spec.digest
        if expected and expected != digest:
            stored = await self._find(expected)
            why = difference(stored, spec) if stored else "no spec is registered under it"
            raise SpecMismatch(
                f"this spec is namespace {digest.hex()[:12]}, not {expected.hex()[:12]}: {why}"
            )
        if await self._find(digest) is None:
            async with self._registering:  # who has room must have it still when it is written
                if digest not in self._specs:
                    self._check_room(spec)
                    record = NamespaceRecord(digest.hex(), spec.as_dict())
                    await self._metadata.put_if(record.key(), record.encode(), expected_revision=0)
                    self._remember(spec)
        return digest

    async def load(self) -> None:
        """Every namespace that is registered, for a node that has blocks before callers. What it
        has no room for, or cannot read, does not keep it from serving the others."""
        entries, _ = await self._metadata.list(NamespaceRecord.prefix)
        left_out, why = 0, ""
        for entry in entries:
            try:
                self._remember(KVSpec.of_dict(NamespaceRecord.parse(entry).spec))
            except (Invalid, Overloaded) as error:
                left_out, why = left_out + 1, str(error)
        if left_out:
            log.warning("%d namespaces are not known here: %s", left_out, why)

    def layouts(self) -> dict[Owner, SlotLayout]:
        """How the blocks lie of every owner whose namespace is known."""
        for digest, spec in self._specs.items():
            for group in range(len(spec.groups)):
                layout = SlotLayout.of(spec, group)
                self._places.setdefault(
                    (digest, group), Place((digest, group), layout, spec.stored)
                )
        return {owner: place.layout for owner, place in self._places.items()}

    async def load_quarantines(self) -> None:
        """What earlier runs, and other nodes, have found wrong."""
        await self._records.load()

    async def keep_quarantines(self, drop: Callable[[bytes], Awaitable[object]]) -> None:
        """Go by the metadata until cancelled. `drop` has this node forget a namespace's blocks."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._records.keep())
            group.create_task(self._keep_releases(drop))

    async def quarantine(self, digest: bytes, reason: str) -> None:
        """Nobody uses the namespace from now on, over restarts too. The first reason stays."""
        await self.place(digest, 0)  # it must be one that is known
        record = QuarantineRecord(digest.hex(), reason or "no reason was given")
        known = self._records.get(record.digest) is not None
        self._said.add(digest)
        self.quarantined.setdefault(digest, record.reason)
        made = await self._metadata.put_if(record.key(), record.encode(), expected_revision=0)
        if made is None and known:  # the metadata tells only of its end, perhaps by now
            self._said.discard(digest)
            self._over.set()

    async def release(self, digest: bytes) -> bool:
        """Undo `quarantine`; False if the namespace was not in quarantine."""
        await self._metadata.delete(QuarantineRecord.prefix + digest.hex())
        self._said.discard(digest)
        self._records.forget(digest.hex())
        return self.quarantined.pop(digest, None) is not None

    def _see_quarantine(self, record: QuarantineRecord) -> None:
        digest = bytes.fromhex(record.digest)
        self._said.discard(digest)
        self.quarantined.setdefault(digest, record.reason)

    def _released(self) -> list[bytes]:
        return [
            digest
            for digest in self.quarantined
            if digest not in self._said and self._records.get(digest.hex()) is None
        ]

    async def _keep_releases(self, drop: Callable[[bytes], Awaitable[object]]) -> None:
        while True:
            await self._over.wait()
            self._over.clear()
            for digest in self._released():
                try:
                    await drop(digest)
                except KVStoreError as error:  # or nobody would hear of quarantines any more
                    log.warning("%s stays in quarantine here: %s", digest.hex()[:12], error)
                    await self._clock.sleep(_AGAIN_SECONDS)
                    self._over.set()
                    continue
                if digest in self._released():  # and nobody has said it anew meanwhile
                    self.quarantined.pop(digest)

    async def place(self, digest: bytes, group: int) -> Place:
        """Where blocks of a group live; `UnknownNamespace` or `OutOfRange` if there is none."""
        found = self._places.get((digest, group))
        if found is not None:
            return found
        if len(digest) != HASH_BYTES:
            raise Invalid(f"namespace is {len(digest)} bytes; a digest has {HASH_BYTES}")
        spec = await self._find(digest)
        if spec is None:
            raise UnknownNamespace(
                f"namespace {digest.hex()[:12]} is not registered: call Register with its KVSpec"
            )
        if group >= len(spec.groups):
            raise OutOfRange(f"group {group}: the namespace has groups 0..{len(spec.groups) - 1}")
        place = Place((digest, group), SlotLayout.of(spec, group), spec.stored)
        self._places[digest, group] = place
        return place

    def place_of(self, owner: Owner) -> Place:
        """Where an owner's blocks live; somebody has reserved one, so it is known."""
        return self._places[owner]

    async def _find(self, digest: bytes) -> KVSpec | None:
        if digest not in self._specs:
            entry = await self._metadata.get(NamespaceRecord.prefix + digest.hex())
            if entry is None:
                return None
            self._remember(KVSpec.of_dict(NamespaceRecord.parse(entry).spec))
        return self._specs.get(digest)  # None too where the record is that of another spec

    def _check_room(self, spec: KVSpec) -> None:
        if len(self._specs) >= NAMESPACES_MAX:
            raise Overloaded(f"{NAMESPACES_MAX} namespaces are registered, the most there are")
        if (size := self._bytes + len(spec.canonical())) > SPECS_BYTES_MAX:
            raise Overloaded(
                f"with this spec those of all namespaces have {size} bytes; at most "
                f"{SPECS_BYTES_MAX}"
            )

    def _remember(self, spec: KVSpec) -> None:
        if spec.digest not in self._specs:  # else another call learned of it meanwhile
            self._check_room(spec)
            self._specs[spec.digest] = spec
            self._bytes += len(spec.canonical())
