"""Whether a node can write where it is to write: its own folder, and its disks.

A file is made in each and removed, and nothing else is left changed.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from kvstore.cli.host_verdict import Disk
from kvstore.config import NodeConfig, SsdConfig
from kvstore.disk.division import file_bytes_of
from kvstore.disk.files import held_bytes
from kvstore.disk.header import Header
from kvstore.disk.ledger import room_bytes
from kvstore.disk.local import held_by_files
from kvstore.errors import ConfigError

_USED = os.R_OK | os.W_OK


def refusal(path: Path) -> str:
    """Why no folder can be had there; empty where one can."""
    there = _nearest(path)
    if not there.is_dir():
        return f"{there} is no directory"
    try:
        _direct(there)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        cure = "free some room" if full else "give a directory that the node's user can write"
        return f"{there} takes no file ({error.strerror}): {cure}"
    return ""


def disk(config: NodeConfig, ssd: SsdConfig) -> Disk:
    if why := refusal(ssd.path):
        return Disk(ssd.path, failure=why)
    if one := _closed(ssd.path):
        cure = "give all that is there to the node's user (chown -R)"
        return Disk(ssd.path, failure=f"{one} is not to be read and written: {cure}")
    try:
        header = _header(ssd, config.slab_bytes)
    except (OSError, ConfigError) as error:
        return Disk(ssd.path, failure=str(error))
    there = _nearest(ssd.path)
    size = header.files * header.file_bytes
    held = held_by_files(ssd.path, header.file_bytes)
    held += held_bytes(ssd.path / "index" / "data.mdb")
    system = os.statvfs(there)
    return Disk(
        ssd.path,
        direct=_direct(there),
        buffered=ssd.buffered,
        needed_bytes=max(0, size + room_bytes(size) - held),
        free_bytes=system.f_bavail * system.f_frsize,
    )


def _header(ssd: SsdConfig, slab_bytes: int) -> Header:
    """What the node is to lay the path out as; raises where it would refuse that."""
    header = Header.of(ssd.path, ssd.size_bytes, file_bytes_of(ssd, slab_bytes), slab_bytes)
    header.before(ssd.path)
    return header


def _nearest(path: Path) -> Path:
    """Of it and what it lies in, what is there; as far as this user can see."""
    return next(one for one in (path, *path.absolute().parents) if os.path.exists(one))


def _closed(path: Path) -> Path | None:
    """What an earlier node made there and this user cannot use, if anything. An index of its own is
    opened to it by the node."""
    index = path / "index"
    ours = index.exists() and index.stat().st_uid == os.geteuid()
    there = (path / "lock", *path.glob("blocks-*"), *(() if ours else (index,)))
    return next((one for one in there if one.exists() and not os.access(one, _USED)), None)


def _direct(folder: Path) -> bool:
    """Whether files there can be opened with O_DIRECT."""
    made, name = tempfile.mkstemp(prefix=".moonpool-doctor-", dir=folder)
    try:
        os.close(made)
        os.close(os.open(name, os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        os.unlink(name)
    return True
