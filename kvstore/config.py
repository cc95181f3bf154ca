"""Settings, in one typed place: built once at the edge of a process and passed whole.

A wrong setting is a `ConfigError` that names its key and the fix.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.limits import LEASE_MS_DEFAULT, SCRUB_RATE_DEFAULT, GiB, KiB, MiB

_UNITS = {"": 1, "b": 1, "kib": KiB, "mib": MiB, "gib": GiB, "tib": 1024 * GiB}
_SOCKET_PATH_BYTES_MAX = 107  # sun_path of a Unix socket, less its final zero


def parse_bytes(key: str, text: str) -> int:
    """'8GiB' -> bytes. Units are powers of 1,024: KiB, MiB, GiB, TiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    if not match or match[2].lower() not in _UNITS:
        raise ConfigError(f"{key} = {text!r}: write a size like 512MiB or 8GiB")
    return int(Decimal(match[1]) * _UNITS[match[2].lower()])  # a float would lose bytes


def state_dir() -> Path:
    """Where a host keeps Moonpool's metadata and sockets unless told otherwise."""
    if "MOONPOOL_DIR" in os.environ:
        return Path(os.environ["MOONPOOL_DIR"])
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "moonpool"


@dataclass(frozen=True, slots=True)
class SsdConfig:
    """One path of a node's SSD tier."""

    path: Path
    size_bytes: int
    buffered: bool = False  # through the system's page cache: for filesystems without O_DIRECT

    @classmethod
    def parse(cls, text: str, *, buffered: bool) -> SsdConfig:
        """'/data/moonpool:200GiB'"""
        path, colon, size = text.rpartition(":")
        if not (path and colon):
            raise ConfigError(f"--ssd = {text!r}: write PATH:SIZE, as in /data/moonpool:200GiB")
        return cls(Path(path), parse_bytes("--ssd", size), buffered)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """A storage node. Sizes in bytes."""

    directory: Path  # metadata, socket, node id; one node a directory
    listen: str = "127.0.0.1:0"
    dram_bytes: int = 1 * GiB
    slab_bytes: int = 32 * MiB
    lease_ms: int = LEASE_MS_DEFAULT
    ssd: tuple[SsdConfig, ...] = ()
    scrub_rate: int = SCRUB_RATE_DEFAULT  # bytes a second; 0: the node verifies nothing by itself

    def __post_init__(self) -> None:
        if self.slab_bytes < 64 * KiB or self.slab_bytes % (4 * KiB):
            raise ConfigError(f"node.slab = {self.slab_bytes}: a multiple of 4KiB, 64KiB or more")
        if self.dram_bytes < self.slab_bytes:
            raise ConfigError(
                f"node.dram = {self.dram_bytes}: room for at least one slab of {self.slab_bytes}"
            )
        self._check_ssd()
        if not 200 <= self.lease_ms <= 60_000:
            raise ConfigError(f"node.lease_ms = {self.lease_ms}: 200 to 60000")
        if len(os.fsencode(self.shm_socket)) > _SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"node.dir = {self.directory}: too long for a Unix socket in it "
                f"(at most {_SOCKET_PATH_BYTES_MAX} bytes with the socket's name)"
            )

    def ssd_file_bytes(self, ssd: SsdConfig) -> int:
        """A whole number of slabs, so that no block lies in two files. It follows from the path
        alone: which others there are may change."""
        slabs = min(max(1, GiB // self.slab_bytes), ssd.size_bytes // self.slab_bytes)
        return slabs * self.slab_bytes

    def _check_ssd(self) -> None:
        named: dict[Path, Path] = {}
        for ssd in self.ssd:
            if ssd.size_bytes < self.slab_bytes:
                raise ConfigError(
                    f"node.ssd = {ssd.path}:{ssd.size_bytes}: room for at least one slab of "
                    f"{self.slab_bytes}"
                )
            other = named.setdefault(ssd.path.resolve(), ssd.path)
            if other is not ssd.path:
                raise ConfigError(
                    f"node.ssd = {other} and {ssd.path} are one directory: give each path once, "
                    "with its whole size"
                )

    @property
    def shm_socket(self) -> Path:
        return self.directory / "node.sock"

    @property
    def lock_file(self) -> Path:
        return self.directory / "node.lock"

    @property
    def id_file(self) -> Path:
        return self.directory / "node.id"


def stable_node_id(path: Path) -> str:
    """The id in a file, made at the first start and the same ever after."""
    try:
        text = path.read_text().strip()
        return str(uuid.UUID(text))
    except FileNotFoundError:
        made = str(uuid.uuid4())
        path.write_text(made + "\n")
        return made
    except ValueError:
        raise ConfigError(f"{path} holds no node id: delete it to get a new one") from None
