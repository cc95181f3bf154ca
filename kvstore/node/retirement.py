"""Which files of the SSD tier take no more blocks, and why: for as long as the process runs.

After a write or sync that failed nobody knows what a file has taken since its last good sync, and a
second sync would lie: so no slot of it is given out again. What was durable in it before is still
read. A path whose index or filesystem takes nothing is retired whole. One that is merely full takes
nothing for a while, and the others take what it was to have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from kvstore.core.slabs import Slabs
from kvstore.disk.protocol import DiskError, DiskReadOnly
from kvstore.disk.volumes import Volumes
from kvstore.telemetry import Telemetry

log = logging.getLogger(__name__)

_REMEDY = (
    "blocks that it held durably are still read, and DRAM and the other files serve on. See what "
    "the system says of the device (dmesg, smartctl); then start the node again to use it again, "
    "or start it without that path"
)


@dataclass(frozen=True, slots=True)
class PathState:
    """One path, as an operator asks for it."""

    name: str
    size_bytes: int
    files: int
    retired_files: int
    cause: str  # of the last that was retired


class Retirement:
    """The files that are retired. Paths and files are numbered as `Volumes` numbers them."""

    def __init__(self, volumes: Volumes, slabs: Slabs, counters: Telemetry) -> None:
        self._volumes, self._slabs, self._counters = volumes, slabs, counters
        self.causes: dict[int, str] = {}  # by file
        self._full: dict[int, float] = {}  # paths that are not asked before then
        self.doubted: set[int] = set()  # paths that were full, and have recorded nothing since

    @property
    def broken(self) -> str:
        """Why nothing can be written at all; empty while a file is left."""
        if len(self.causes) < self._volumes.files:
            return ""
        return f"every file of it is retired, the last for this: {list(self.causes.values())[-1]}"

    @property
    def taking(self) -> bool:
        """Whether any path takes blocks now."""
        paths = range(len(self._volumes.names))
        return any(one not in self._full and not self.whole(one) for one in paths)

    def full(self, path: int, error: DiskError, until: float) -> None:
        """The path has no room: no slot of it is given out until then."""
        if path in self._full:
            return
        self._full[path] = until
        self.doubted.add(path)
        name = self._volumes.names[path]
        log.error("SSD: %s takes no blocks until there is room: %s", name, error)
        self._close(self._volumes.files_of(path))

    def took(self, path: int) -> None:
        """The path has recorded a block. There is room, unless it refused another."""
        if path not in self._full:
            self.doubted.discard(path)

    def ask_again(self, now: float) -> None:
        """Those that were full for long enough take blocks again, but for files that failed."""
        for path in [path for path, until in self._full.items() if until <= now]:
            del self._full[path]
            well = [file for file in self._volumes.files_of(path) if file not in self.causes]
            for span in self._volumes.spans(well):
                self._slabs.resume(*span)

    def failed(self, file: int, error: DiskError) -> None:
        """A write or sync of the file failed."""
        if isinstance(error, DiskReadOnly):
            self.refused(self._volumes.path_of(self._volumes.span(file)[0]), error)
        else:
            self._retire(self._volumes.called(file), [file], error)

    def refused(self, path: int, error: DiskError) -> None:
        """The path's index could not be changed, or its filesystem takes no writes any more."""
        self._retire(f"{self._volumes.names[path]}", self._volumes.files_of(path), error)

    def whole(self, path: int) -> bool:
        """Whether every file of the path is retired."""
        return all(file in self.causes for file in self._volumes.files_of(path))

    def paths(self) -> list[PathState]:
        volumes, states = self._volumes, list[PathState]()
        for path, (name, disk) in enumerate(zip(volumes.names, volumes.disks, strict=True)):
            files = volumes.files_of(path)
            causes = [why for file, why in self.causes.items() if file in files]
            size = disk.files * disk.file_bytes
            states.append(PathState(name, size, len(files), len(causes), (causes or [""])[-1]))
        return states

    def _retire(self, called: str, files: Iterable[int], error: DiskError) -> None:
        fresh = [file for file in files if file not in self.causes]
        if not fresh:
            return
        self.causes |= dict.fromkeys(fresh, str(error))
        self._close(fresh)
        self._counters.add("ssd_failures")
        log.error("SSD: %s takes no more blocks (%s): %s", called, error, _REMEDY)

    def _close(self, files: Iterable[int]) -> None:
        # A path of some TiB has thousands: each span by itself has all slabs gone through.
        for span in self._volumes.spans(files):
            self._slabs.retire(*span)
