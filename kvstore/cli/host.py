"""What a host is like on which a node runs or is to run: looked up, and nothing decided.

Nothing is left changed: ports are bound and let go, and a file is made on each disk and removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from kvstore.cli.host_verdict import Disk, Host
from kvstore.config import NodeConfig, SsdConfig, TlsConfig
from kvstore.disk.division import file_bytes_of, files_kept
from kvstore.disk.files import held_bytes
from kvstore.disk.ledger import room_bytes
from kvstore.disk.local import held_by_files
from kvstore.rpc.address_file import address_in
from kvstore.rpc.listening import listening
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
    directory has taken already is not looked for. Raises `ConfigError` of certificates (the
    node's own, or else those of `shown`) and of paths that were made otherwise."""
    found = replace(
        clock_and_certificate(config.tls or shown),
        lock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        files_most=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        files_kept=files_kept(config),
        rdma=any(Path("/sys/class/infiniband").glob("*")),
        huge_pages=_huge_pages(),
    )
    if address_in(config.directory) is not None:
        return found
    return replace(
        found,
        memory_bytes=_memory_bytes(),
        free_bytes=psutil.virtual_memory().available,
        taken=dict(_taken(config)),
        disks=tuple(_disk(config, one) for one in config.ssd),
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
        if why := _cannot_listen(address):
            yield f"{address} ({option})", why


def _cannot_listen(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        return "write HOST:PORT, like 127.0.0.1:9401"
    try:
        listening(host, int(port)).close()
    except socket.gaierror:
        return f"{host.strip('[]')} is no name or address of this host"
    except OSError as error:
        return _REASONS.get(error.errno or 0, str(error.strerror))
    return ""


_USED = os.R_OK | os.W_OK
_REASONS = {
    errno.EADDRINUSE: "another process does: stop that one (`ss -ltnp`), or take another port",
    errno.EADDRNOTAVAIL: "this host has no such address: name one of `ip address`, or 0.0.0.0 with "
    "--advertise HOST",
    errno.EACCES: "ports below 1024 are for root: take one above",
}


def _disk(config: NodeConfig, ssd: SsdConfig) -> Disk:
    there = next(one for one in (ssd.path, *ssd.path.absolute().parents) if one.exists())
    if not there.is_dir():
        return Disk(ssd.path, failure=f"{there} is no directory")
    try:
        direct = _direct(there)
    except OSError as error:
        cure = "give a directory that the node's user can write"
        return Disk(ssd.path, failure=f"{there} takes no file ({error.strerror}): {cure}")
    if one := _closed(ssd.path):
        cure = "give all that is there to the node's user (chown -R)"
        return Disk(ssd.path, failure=f"{one} is not to be read and written: {cure}")
    file_bytes = file_bytes_of(ssd, config.slab_bytes)
    size = ssd.size_bytes // file_bytes * file_bytes
    held = held_by_files(ssd.path, file_bytes)
    held += held_bytes(ssd.path / "index" / "data.mdb")
    system = os.statvfs(there)
    return Disk(
        ssd.path,
        direct=direct,
        buffered=ssd.buffered,
        needed_bytes=max(0, size + room_bytes(size) - held),
        free_bytes=system.f_bavail * system.f_frsize,
    )


def _closed(path: Path) -> Path | None:
    """What an earlier node made there and this user cannot use, if anything. An index of its own is
    opened to it by the node."""
    index = path / "index"
    ours = index.exists() and index.stat().st_uid == os.geteuid()
    there = (path / "lock", *path.glob("blocks-*"), *(() if ours else (index,)))
    return next((one for one in there if one.exists() and not os.access(one, _USED)), None)


def _direct(folder: Path) -> bool:
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
