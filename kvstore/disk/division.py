"""Into which files the size of a path goes: those it was made with, or, of a new one, as many as it
has GiB, so that hardly any of it is left. Each is of whole slabs: no block lies in two.

It follows from the path alone: which others there are may change.
"""

from __future__ import annotations

from kvstore.config import NodeConfig, SsdConfig
from kvstore.disk.header import Header
from kvstore.errors import ConfigError
from kvstore.limits import SSD_FILES_MAX, GiB

_FILE_BYTES = GiB  # at most, unless a slab is larger


def file_bytes_of(ssd: SsdConfig, slab_bytes: int) -> int:
    """Of each file. Raises `ConfigError` where the path tells of no size, or there would be far too
    many of its own."""
    try:
        before = Header.read(ssd.path)
    except OSError:
        before = None  # whoever opens it says why it cannot be read
    if before is None:
        files = -(-ssd.size_bytes // _FILE_BYTES)
        return max(1, ssd.size_bytes // files // slab_bytes) * slab_bytes
    most = max(before.files, SSD_FILES_MAX)
    if (files := ssd.size_bytes // before.file_bytes) > most:
        raise ConfigError(
            f"node.ssd {str(ssd.path)!r} was made with files of {before.file_bytes} bytes, and its "
            f"size would be {files} of them: give at most {most * before.file_bytes} bytes, or "
            "empty the directory to have it made anew with larger ones"
        )
    return before.file_bytes


def files_kept(config: NodeConfig) -> int:
    """How many the SSD tier has, all of which are open for as long as the node runs."""
    return sum(one.size_bytes // file_bytes_of(one, config.slab_bytes) for one in config.ssd)
