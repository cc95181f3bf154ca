"""What is wrong with a host on which a node is to run, by what was found there. Decides only.

An error keeps the node from starting, or from being reached. A warning costs speed, or will be an
error one day. Each names the setting and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.config import NodeConfig
from kvstore.errors import ConfigError
from kvstore.limits import (
    LEASE_MS_DEFAULT,
    NODE_OWN_BYTES,
    UCX_ASIDE_BYTES,
    UCX_ASIDE_PIECES,
    GiB,
    MiB,
)
from kvstore.rpc.process import files_bound

HUGE_PAGES_FROM_BYTES = 8 * GiB  # of memory: a processor remembers some GiB of it in small pages
CERTIFICATE_DAYS_LEAST = 7.0  # in which somebody has time to renew it
ETCD_SECONDS_MAX = LEASE_MS_DEFAULT / 1e3 / 4  # a node renews its lease thrice in a lease
_SHARED_HUGE = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
_DAY_SECONDS = 86_400.0
_UNITS = (("TiB", 1024 * GiB), ("GiB", GiB), ("MiB", MiB))


@dataclass(frozen=True, slots=True)
class Disk:
    """A path of the SSD tier, as its filesystem is."""

    path: Path
    failure: str = ""  # why nothing can be written there
    direct: bool = True  # whether files can be opened with O_DIRECT
    buffered: bool = False  # whether they need not be
    needed_bytes: int = 0  # that the node has yet to take
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """What was found of a host; what could not be found out is None."""

    now: float  # by its wall clock, in seconds since 1970
    memory_bytes: int | None = None  # that processes here may have: all there is, or their cgroup's
    free_bytes: int | None = None
    lock_bytes: int | None = None  # that one process may lock; -1: all it wants
    files_most: int | None = None  # that one may open; -1: all it wants
    files_kept: int = 0  # that the node's SSD tier is to have open
    rdma: bool = False  # whether it has such devices
    huge_pages: str = ""  # the kernel's word on those of shared memory
    clock_kept: bool | None = None  # whether something keeps the clock right
    taken: Mapping[str, str] = field(default_factory=dict)  # addresses that cannot be listened on
    refused: str = ""  # why the node can have no folder of its own
    lacking: tuple[str, ...] = ()  # what else it takes and is not here
    runs_at: str = ""  # where a node of that folder answers that runs already
    disks: tuple[Disk, ...] = ()
    certificate: tuple[float, float] | None = None  # from when until when it holds


@dataclass(frozen=True, slots=True)
class Finding:
    error: bool
    text: str


def verdict(config: NodeConfig, host: Host) -> Iterator[Finding]:
    """All that is to be said."""
    yield from _memory(config, host)
    yield from _locked_memory(config, host)
    yield from _huge_pages(config, host)
    for address, why in host.taken.items():
        yield Finding(True, f"nothing can listen at {address}: {why}")
    if host.refused:
        yield Finding(True, f"--dir {config.directory}: {host.refused}")
    for text in host.lacking:
        yield Finding(True, text)
    if host.runs_at:
        yield Finding(
            False,
            f"--dir {config.directory}: its node runs, at {host.runs_at}, and another does not "
            "start there until it has ended; what it has was not looked at: memory, ports, disks",
        )
    for disk in host.disks:
        yield from _disk(disk)
    yield from _files(host)
    yield from _clock(host)


def _memory(config: NodeConfig, host: Host) -> Iterator[Finding]:
    wanted = config.dram_bytes + NODE_OWN_BYTES
    text = f"--dram {_size(config.dram_bytes)} and {_size(NODE_OWN_BYTES)} of the node's own"
    if host.memory_bytes is not None and wanted > host.memory_bytes:
        most = max(0, host.memory_bytes - NODE_OWN_BYTES)
        yield Finding(
            True,
            f"{text} are more than the {_size(host.memory_bytes)} that processes may have here: "
            f"give at most --dram {_size(most, math.floor)}, or raise the limit of the container "
            "or service",
        )
    elif host.free_bytes is not None and wanted > host.free_bytes:
        yield Finding(
            False,
            f"{text} are more than the {_size(host.free_bytes)} that are free now: memory is taken "
            "as blocks arrive, and the kernel ends a process when there is none left",
        )


def _locked_memory(config: NodeConfig, host: Host) -> Iterator[Finding]:
    wanted = UCX_ASIDE_BYTES * UCX_ASIDE_PIECES
    if "ucx" not in config.transports or host.lock_bytes is None:
        return
    if 0 <= host.lock_bytes < wanted:
        yield Finding(
            host.rdma,
            f"a process may lock {_size(host.lock_bytes)} of memory here, and UCX locks "
            f"{_size(wanted)} of a node's for RDMA: raise it (LimitMEMLOCK=infinity, `ulimit -l "
            "unlimited`, or the container runtime's own limit)",
        )


def _huge_pages(config: NodeConfig, host: Host) -> Iterator[Finding]:
    if host.huge_pages in ("never", "deny") and config.dram_bytes >= HUGE_PAGES_FROM_BYTES:
        yield Finding(
            False,
            f"{_size(config.dram_bytes)} of memory lie in pages of 4 KiB: "
            f"`echo advise > {_SHARED_HUGE}` gives a node's memory huge ones from its next start "
            "on. (It takes none of those that vm.nr_hugepages sets apart)",
        )


def _disk(disk: Disk) -> Iterator[Finding]:
    if disk.failure:
        yield Finding(True, f"--ssd {disk.path}: {disk.failure}")
        return
    if not disk.direct and not disk.buffered:
        yield Finding(
            True,
            f"--ssd {disk.path}: the filesystem there has no O_DIRECT: give a directory on ext4 or "
            "XFS, or --ssd-buffered to go through the page cache",
        )
    if disk.direct and disk.buffered:
        yield Finding(
            False,
            f"--ssd {disk.path}: the filesystem has O_DIRECT: without --ssd-buffered the page "
            "cache would not hold what the node's memory holds already",
        )
    if disk.needed_bytes > disk.free_bytes:
        yield Finding(
            True,
            f"--ssd {disk.path}: {_size(disk.needed_bytes)} more are to be taken there and "
            f"{_size(disk.free_bytes)} are free: free some, or give a smaller size",
        )


def _files(host: Host) -> Iterator[Finding]:
    if host.files_most is None:
        return
    try:
        files_bound(host.files_kept, host.files_most)
    except ConfigError as error:
        yield Finding(True, str(error))


def _clock(host: Host) -> Iterator[Finding]:
    if host.clock_kept is False:
        yield Finding(
            False,
            "nothing keeps this host's clock right, and tokens and certificates end by it: run "
            "chrony or systemd-timesyncd",
        )
    if host.certificate is None:
        return
    begins, ends = host.certificate
    left = (ends - host.now) / _DAY_SECONDS
    if host.now < begins:
        yield Finding(True, "the certificate does not hold yet: the clock here is behind")
    elif left <= 0:
        yield Finding(True, "the certificate is over: `moonpool certs` in another folder makes one")
    elif left < CERTIFICATE_DAYS_LEAST:
        yield Finding(False, f"the certificate is over in {left:.1f} days: have it renewed")


def _size(count: int, rounded: Callable[[float], int] = round) -> str:
    """To four digits, or to whole units where these are more; nearest, or as `rounded` has it."""
    unit, size = next((one for one in _UNITS if count >= one[1]), _UNITS[-1])
    digits = max(0, 4 - len(str(abs(count) // size)))
    return f"{rounded(count / size * 10**digits) / 10**digits:.10g}{unit}"
