"""The seam to a disk: files of bytes, and a small index that says what is in them.

Promises. A read gives what was last written there, or, should the disk lie, something else: whoever
reads verifies. Written bytes are durable once a later `sync` of their file returns. If a `sync`
raises, nothing written to that file since the last good one may be believed, ever: the kernel may
have marked those pages clean, so a second sync would lie (Rebello et al., ATC '20). What `commit`
was given is durable when it returns, all of it or, if it raises, none.

Calls block and may come from any thread; reads and writes of different places run side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

DISK_ALIGN = 4096  # offsets, lengths and addresses of what is read and written


class DiskError(Exception):
    """The disk refused or failed; the message names the path and what the system said."""


class DiskFull(DiskError):
    """No room is left, for a write or for the index. Freed room may let a later call pass."""


class DiskReadOnly(DiskError):
    """The filesystem takes no writes any more. What is on it can still be read."""


class Disk(Protocol):
    """One path of the SSD tier: `files` files of `file_bytes` each."""

    files: int
    file_bytes: int
    id: bytes  # 32 bytes that no other path has, drawn when it was made
    index_lost: bool  # gone or damaged when the disk was opened: `rebuilt` says what was in it

    def read(self, file: int, offset: int, into: memoryview) -> None:
        """Fill `into` from there. Raises `DiskError`."""
        ...

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        """Lay the parts there, one behind the other. Durable only after `sync`."""
        ...

    def sync(self, file: int) -> None:
        """Make what was written to the file durable. After it raised, the file is to be retired."""
        ...

    def commit(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        """Change the index: durable on return, whole or not at all."""
        ...

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and value of the index, as of the call, in the order of keys."""
        ...

    def rebuilt(self, entries: Mapping[bytes, bytes]) -> None:
        """Put these in the place of an index that was lost. Until it returns, each start asks."""
        ...

    def close(self) -> None:
        """Let go of the files. Waits for nobody: end all other calls first."""
        ...
