"""What a node takes hold of before it serves: its directory, its id and next epoch, its disks; and
where its memory is to be."""

from __future__ import annotations

import fcntl
import os
import uuid
from contextlib import ExitStack
from typing import Any

from kvstore.config import NodeConfig
from kvstore.core.lifecycle import Tier
from kvstore.core.slabs import Slabs
from kvstore.core.spread import ALIKE, Spread
from kvstore.disk.division import file_bytes_of
from kvstore.disk.files import owned, replace_file, shut_others_out
from kvstore.disk.local import LocalDisk
from kvstore.disk.volumes import Volumes
from kvstore.errors import ConfigError
from kvstore.memory import numa

_EPOCHS_MAX = 1 << 22  # a start a second for seven weeks; their generations fit into 63 bits


def spread_of(config: NodeConfig) -> Spread:
    """Over the host's NUMA nodes, unless it was told to mind none."""
    if config.numa == "off":
        return ALIKE
    return Spread.over(list(numa.nodes()), config.dram_bytes, config.slab_bytes)


def volumes_of(config: NodeConfig) -> Volumes | None:
    """Every path of the SSD tier opened, or none of them."""
    if not config.ssd:
        return None
    with ExitStack() as opened:
        disks = {}
        for one in config.ssd:
            disk = LocalDisk.open(
                one.path,
                one.size_bytes,
                file_bytes_of(one, config.slab_bytes),
                config.slab_bytes,
                buffered=one.buffered,
            )
            opened.callback(disk.close)
            disks[os.fspath(one.path)] = disk
        volumes = Volumes(disks)
        opened.pop_all()
        return volumes


def ssd_slabs(volumes: Volumes | None, slab_bytes: int, epoch: int) -> Slabs | None:
    """Its generations begin anew with each start: none is ever given out twice."""
    if volumes is None:
        return None
    return Slabs(volumes.capacity_bytes, slab_bytes, Tier.SSD, first_generation(epoch))


def first_generation(epoch: int) -> int:
    """Above all that earlier starts gave out on SSD, and below all that this one does."""
    return epoch << 40


def locked(config: NodeConfig) -> Any:
    lock = open(config.lock_file, "a", opener=owned)  # noqa: SIM115 - the caller closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"node.dir = {config.directory}: another node runs there; stop it, or use another --dir"
        ) from None
    # Those that are not made anew with each start, as the epoch is.
    shut_others_out(config.lock_file)
    shut_others_out(config.id_file)
    return lock


def stable_node_id(config: NodeConfig) -> str:
    """Made and durable at the first start, and the same ever after: what was purged is written down
    under it. The lock is held."""
    path = config.id_file
    if not path.exists():
        replace_file(path, b"%s\n" % str(uuid.uuid4()).encode())
    try:
        return str(uuid.UUID(path.read_text().strip()))
    except ValueError:
        raise ConfigError(f"{path} holds no node id: delete it to get a new one") from None


def next_epoch(config: NodeConfig) -> int:
    """One more than the last start's, and durable: see `first_generation`. The lock is held, so
    nobody else counts."""
    path = config.directory / "node.epoch"
    try:
        before = int(path.read_bytes()) if path.exists() else 0
    except ValueError:
        before = -1
    if not 0 <= before < _EPOCHS_MAX:
        raise ConfigError(
            f"{path} holds no number of a start: delete it and node.id to start a new node"
        )
    epoch = before + 1
    replace_file(path, b"%d\n" % epoch)
    return epoch
