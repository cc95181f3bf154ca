"""What a host is like on which a node runs or is to run: looked up, and nothing decided.

Nothing is left changed: ports are bound and let go, and what `host_folders` makes is removed.
"""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from kvstore.cli.host_folders import disk, refusal
from kvstore.cli.host_needs import lacking
from kvstore.cli.host_verdict import Host
from kvstore.config import NodeConfig, TlsConfig
from kvstore.disk.division import files_kept
from kvstore.rpc.address_file import address_in
from kvstore.rpc.listening import in_the_way
from kvstore.rpc.tls import valid_between

_TIMEX_BYTES, _STATUS_OFFSET, _STA_UNSYNC = 208, 40, 0x40  # of Linux's struct timex, 64 bits
_CGROUPS = Path("/sys/fs/cgroup")


def clock_and_certificate(shown: TlsConfig | None) -> Host:
    """What whoever calls from here needs too. Raises `ConfigError` of certificates."""
    return Host(
        now=time.time(), clock_kept=_clock_kept(), certificate=None if shown is None else _of(shown)
    )


def look_at(config: NodeConfig, shown: TlsConfig | None) -> Host:
    """All of the host, before a node of this configuration starts. What one that runs in the same
    directory has taken already is not looked for. Raises `ConfigError` of certificates: the
    node's own, or else those of `shown`."""
    found = replace(
        clock_and_certificate(config.tls or shown),
        lock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        files_most=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        rdma=any(Path("/sys/class/infiniband").glob("*")),
        huge_pages=_huge_pages(),
        lacking=tuple(lacking(config)),
    )
    if (address := address_in(config.directory)) is not None:
        return replace(found, runs_at=address)
    disks = tuple(disk(config, one) for one in config.ssd)
    fine = (ssd for ssd, one in zip(config.ssd, disks, strict=True) if not one.failure)
    return replace(
        found,
        files_kept=files_kept(replace(config, ssd=tuple(fine))),
        memory_bytes=_memory_bytes(),
        free_bytes=psutil.virtual_memory().available,
        taken=dict(_taken(config)),
        refused=refusal(config.directory),
        disks=disks,
    )


def gpus() -> dict[str, str]:
    """Of each GPU of this host: why blocks that move over ucx pass through memory of the host on
    their way to and from it; empty where they need not. None where there is no GPU, torch or NIXL.
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return {}
    from kvstore.transfer.gpu_area import refusals  # late: it loads torch

    return refusals()


def _of(tls: TlsConfig) -> tuple[float, float] | None:
    try:
        return valid_between(tls)
    except ModuleNotFoundError:  # a client's environment, which cannot read certificates
        return None


def _memory_bytes() -> int:
    """What this process and its children may have."""
    least = int(psutil.virtual_memory().total)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number != "0":
            continue  # of the first version: no limit is told of those
        here = _CGROUPS / path.lstrip("/")
        for folder in (here, *here.parents):
            if folder.is_relative_to(_CGROUPS):
                said = _first_line(folder / "memory.max")
                least = min(least, int(said)) if said.isdecimal() else least
    return least


def _huge_pages() -> str:
    """The word in brackets, of those that the kernel knows."""
    said = _first_line(Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    return said.partition("[")[2].partition("]")[0]


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _clock_kept() -> bool | None:
    said = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zeros: a question
    try:
        refused = ctypes.CDLL(None).adjtimex(said) < 0
    except AttributeError:  # another libc
        return None
    status = int.from_bytes(said.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
    return None if refused else not status & _STA_UNSYNC


def _taken(config: NodeConfig) -> Iterator[tuple[str, str]]:
    host = config.listen.rpartition(":")[0]
    addresses = {"--listen": config.listen, "--data-port": f"{host}:{config.data_port}"}
    if config.metrics:
        addresses["--metrics"] = config.metrics
    for option, address in addresses.items():
        if why := in_the_way(address):
            yield f"{address} ({option})", why
