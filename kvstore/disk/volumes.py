"""The paths of an SSD tier side by side: to who uses them, one run of offsets and of files.

The order is that of the paths as they were named, and may be another after a restart: what is
written down of a block names its place in its own path, and stands in that path's own index. So a
path can be added, moved among the others, or taken away, and the others lose nothing by it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from kvstore.disk.head import Address
from kvstore.disk.protocol import Disk
from kvstore.errors import ConfigError


class Volumes:
    """Disks under the names that operators know their paths by."""

    def __init__(self, disks: Mapping[str, Disk]) -> None:
        self.names = tuple(disks)
        self.disks = tuple(disks.values())
        sizes = [disk.files * disk.file_bytes for disk in self.disks]
        self._bases = [0, *accumulate(sizes)]
        self._firsts = [0, *accumulate(disk.files for disk in self.disks)]
        self._check_ids()

    @property
    def capacity_bytes(self) -> int:
        return self._bases[-1]

    @property
    def files(self) -> int:
        return self._firsts[-1]

    def path_of(self, offset: int) -> int:
        """The number of the path that has an offset."""
        assert 0 <= offset < self.capacity_bytes, "outside the tier"
        return bisect_right(self._bases, offset) - 1

    def file_of(self, offset: int) -> int:
        """The number, among the files of all paths, of the one that has an offset."""
        path, file, _ = self._located(offset)
        return self._firsts[path] + file

    def files_of(self, path: int) -> range:
        return range(self._firsts[path], self._firsts[path + 1])

    def span(self, file: int) -> tuple[int, int]:
        """The offsets of a file: the first, and the one behind the last."""
        path, number = self._numbered(file)
        size = self.disks[path].file_bytes
        begin = self._bases[path] + number * size
        return begin, begin + size

    def spans(self, files: Iterable[int]) -> list[tuple[int, int]]:
        """The same of several, in order: of files that lie side by side one."""
        found: list[tuple[int, int]] = []
        for begin, end in map(self.span, sorted(files)):
            if found and found[-1][1] == begin:
                begin, _ = found.pop()
            found.append((begin, end))
        return found

    def called(self, file: int) -> str:
        """A file's name for people."""
        path, number = self._numbered(file)
        return f"file {number} of {self.names[path]}"

    def address(self, offset: int) -> Address:
        """What names an offset whatever the order of the paths."""
        path = self.path_of(offset)
        return Address(self.disks[path].id, offset - self._bases[path])

    def read(self, offset: int, into: memoryview) -> None:
        path, file, within = self._located(offset)
        self.disks[path].read(file, within, into)

    def write(self, offset: int, parts: Sequence[memoryview]) -> None:
        path, file, within = self._located(offset)
        self.disks[path].write(file, within, parts)

    def sync(self, file: int) -> None:
        path, number = self._numbered(file)
        self.disks[path].sync(number)

    def commit(self, path: int, puts: Mapping[bytes, bytes], gone: Collection[bytes]) -> None:
        """Change the index of one path: durable on return, whole or not at all."""
        self.disks[path].commit(puts, gone)

    def scan(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Every key and value, path by path, and the number of the path."""
        for path, disk in enumerate(self.disks):
            for key, value in disk.scan():
                yield key, value, path

    def offsets_of(self, path: int) -> range:
        """Those of a path: a place that is written down counts from the first."""
        return range(self._bases[path], self._bases[path + 1])

    def close(self) -> None:
        for disk in self.disks:
            disk.close()

    def _located(self, offset: int) -> tuple[int, int, int]:
        path = self.path_of(offset)
        return path, *divmod(offset - self._bases[path], self.disks[path].file_bytes)

    def _numbered(self, file: int) -> tuple[int, int]:
        assert 0 <= file < self.files, "no such file"
        path = bisect_right(self._firsts, file) - 1
        return path, file - self._firsts[path]

    def _check_ids(self) -> None:
        named: dict[bytes, str] = {}
        for name, disk in zip(self.names, self.disks, strict=True):
            other = named.setdefault(disk.id, name)
            if other != name:
                raise ConfigError(
                    f"node.ssd {name!r} is a copy of {other!r}: give one of them, and empty "
                    "the other before it is a path of its own"
                )
