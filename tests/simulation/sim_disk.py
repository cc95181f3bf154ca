"""The disk's other form, in memory: it loses, tears, misplaces and flips what a real one may.

Everything follows from the seed. Each file is kept twice, as reads see it and as it is on the
medium; a write goes to the first and is remembered, a sync brings what is remembered to the second.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.disk.protocol import DISK_ALIGN, Disk, DiskError, DiskFull, DiskReadOnly

SECTOR_BYTES = 512  # the most that a disk writes whole when the power goes


@dataclass(frozen=True, slots=True)
class Faults:
    """How likely each is, at each call that it can befall; 0.0 never, 1.0 always."""

    sync_fails: float = 0.0  # of what was to be synced, some sectors land and some never will
    write_fails: float = 0.0  # some sectors of it may have landed
    read_fails: float = 0.0
    commit_fails: float = 0.0
    full: float = 0.0  # a write or commit finds no room
    lost: float = 0.0  # a write is acknowledged and never lands
    misdirected: float = 0.0  # a write lands at another place instead of its own
    misdirected_too: float = 0.0  # a write lands at another place beside its own
    read_only: bool = False  # from now on


@dataclass(slots=True)
class _File:
    seen: bytearray  # what reads give
    medium: bytearray  # what a crash leaves
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # written since the last sync

    def write(self, offset: int, data: bytes) -> None:
        self.seen[offset : offset + len(data)] = data
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            self.medium[offset : offset + len(data)] = data
        self.pending.clear()

    def forget(self, rng: random.Random) -> None:
        """What is pending is pending no more: each sector of it is on the medium or is not."""
        rng.shuffle(self.pending)
        for offset, data in self.pending:
            for start, end in _some_sectors(len(data), rng):
                self.medium[offset + start : offset + end] = data[start:end]
        self.pending.clear()


class SimDisk(Disk):
    """Calls may come from several threads, but only calls in one order give one outcome."""

    def __init__(
        self, files: int, file_bytes: int, rng: random.Random, faults: Faults | None = None
    ) -> None:
        assert file_bytes % DISK_ALIGN == 0, "a file of broken places"
        self.files = files
        self.file_bytes = file_bytes
        self.faults = faults or Faults()  # a test may put others here at any time
        self._rng, self.id = rng, rng.randbytes(32)
        self._data = [_File(bytearray(file_bytes), bytearray(file_bytes)) for _ in range(files)]
        self._index: dict[bytes, bytes] = {}
        self.index_lost = False
        self._lock = threading.Lock()
        self._ended = ""  # why no call is answered any more

    def read(self, file: int, offset: int, into: memoryview) -> None:
        with self._lock:
            self._begin(f"reading file {file} at {offset}", self.faults.read_fails)
            end = offset + into.nbytes
            self._check_place(offset, end)
            into.cast("B")[:] = memoryview(self._data[file].seen)[offset:end]

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        with self._lock:
            doing = f"writing file {file} at {offset}"
            self._begin(doing)
            data = b"".join(parts)
            self._check_place(offset, offset + len(data))
            if self.faults.read_only:
                raise DiskReadOnly(f"{doing}: read-only")
            if failed := self._refused(doing, self.faults.write_fails):
                for start, end in _some_sectors(len(data), self._rng):
                    self._data[file].write(offset + start, data[start:end])
                raise failed
            for at, start in self._landings(file, offset, len(data)):
                self._data[at].write(start, data)

    def sync(self, file: int) -> None:
        with self._lock:
            doing = f"syncing file {file}"
            self._begin(doing)
            if self.faults.read_only or self._strikes(self.faults.sync_fails):
                # Reads go on seeing it all, as from a page cache: only a crash shows what is gone.
                self._data[file].forget(self._rng)
                kind = DiskReadOnly if self.faults.read_only else DiskError
                raise kind(f"{doing}: failed")
            self._data[file].sync()

    def commit(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        with self._lock:
            self._begin("committing")
            if self.faults.read_only:
                raise DiskReadOnly("committing: read-only")
            if failed := self._refused("committing", self.faults.commit_fails):
                raise failed
            for key in deletes:
                self._index.pop(key, None)
            self._index.update(puts)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            self._begin("scanning", self.faults.read_fails)
            return iter(sorted(self._index.items()))

    def rebuilt(self, entries: Mapping[bytes, bytes]) -> None:
        self.commit(entries, ())
        self.index_lost = False

    def lose_index(self) -> None:
        """As if the next start found the index gone."""
        with self._lock:
            self._index, self.index_lost = {}, True

    def close(self) -> None:
        self._ended = self._ended or "closed"

    def crash(self) -> SimDisk:
        """The disk after a power loss: each unsynced sector landed, or did not, in any order.

        It has the same faults switched on. This one has no power any more.
        """
        with self._lock:
            assert self._ended != "no power", "the power is lost already"
            after = SimDisk(0, self.file_bytes, self._rng, self.faults)
            after.files, after._data, after._index = self.files, self._data, self._index
            after.id, after.index_lost = self.id, self.index_lost
            for file in after._data:
                if file.pending:
                    file.forget(self._rng)
                file.seen[:] = file.medium
            self._data, self._index, self._ended = [], {}, "no power"
            return after

    def flip_bit(self, file: int | None = None) -> tuple[int, int]:
        """Rot one bit; returns the file and the offset of the byte it hit."""
        with self._lock:
            file = self._rng.randrange(self.files) if file is None else file
            offset, mask = self._rng.randrange(self.file_bytes), 1 << self._rng.randrange(8)
            self._data[file].seen[offset] ^= mask
            self._data[file].medium[offset] ^= mask
            return file, offset

    def _begin(self, doing: str, fails: float = 0.0) -> None:
        if self._ended or self._strikes(fails):
            raise DiskError(f"{doing}: {self._ended or 'failed'}")

    def _check_place(self, offset: int, end: int) -> None:
        assert 0 <= offset <= end <= self.file_bytes, "outside the file"
        assert offset % DISK_ALIGN == 0 and end % DISK_ALIGN == 0, "not aligned"

    def _strikes(self, probability: float) -> bool:
        return probability > 0.0 and self._rng.random() < probability

    def _refused(self, doing: str, fails: float) -> DiskError | None:
        if self._strikes(self.faults.full):
            return DiskFull(f"{doing}: no room")
        return DiskError(f"{doing}: failed") if self._strikes(fails) else None

    def _landings(self, file: int, offset: int, size: int) -> list[tuple[int, int]]:
        """The places where a write lands: its own, unless the disk errs."""
        if self._strikes(self.faults.lost):
            return []
        if self._strikes(self.faults.misdirected):
            return [self._elsewhere(file, offset, size)]
        if self._strikes(self.faults.misdirected_too):
            return [(file, offset), self._elsewhere(file, offset, size)]
        return [(file, offset)]

    def _elsewhere(self, file: int, offset: int, size: int) -> tuple[int, int]:
        places = (self.file_bytes - size) // DISK_ALIGN + 1  # in each file
        assert self.files * places > 1, "there is no other place"
        own = file * places + offset // DISK_ALIGN
        other = self._rng.randrange(self.files * places - 1)
        at, place = divmod(other + (other >= own), places)
        return at, place * DISK_ALIGN


def _some_sectors(size: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Ranges of whole sectors, each sector in or out as a coin falls."""
    count = -(-size // SECTOR_BYTES)
    fallen = f"{rng.getrandbits(count):0{count}b}" if count else ""
    start = fallen.find("1")
    while start >= 0:
        end = fallen.find("0", start)
        end = count if end < 0 else end
        yield start * SECTOR_BYTES, min(end * SECTOR_BYTES, size)
        start = fallen.find("1", end)
