"""The node process: builds its parts, announces itself, serves, drains, stops.

One node runs in a directory at a time (a lock says so). A killed node leaves a lock the kernel has
released, a socket file that the next start replaces, and a lease that runs out; its memory had no
name, so it went with its last user.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import logging
import os
import resource
import secrets
import signal
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from typing import Any

from kvstore.clock import SystemClock
from kvstore.config import NodeConfig, stable_node_id
from kvstore.core.lifecycle import Tier
from kvstore.core.slabs import Slabs
from kvstore.disk.local import LocalDisk
from kvstore.disk.volumes import Volumes
from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.failpoint import arm, failpoint
from kvstore.limits import KiB
from kvstore.memory.arena import Arena
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.protocol import Lease, LeaseLost
from kvstore.metadata.records import NodeRecord, TenantRecord
from kvstore.node.admin import AdminService
from kvstore.node.blocks import Blocks
from kvstore.node.data_socket import DataSocket
from kvstore.node.grants import Grants
from kvstore.node.handles import Handles
from kvstore.node.namespaces import Namespaces
from kvstore.node.purge import Purge, load_tombstones
from kvstore.node.scrubber import Scrubber
from kvstore.node.sessions import Sessions
from kvstore.node.store import Store
from kvstore.node.streams import StreamingKVService
from kvstore.node.threads import Threads
from kvstore.node.tiers import Tiers
from kvstore.rpc.identity import DEFAULT_TENANT, listen_address
from kvstore.rpc.server import NOT_SERVING, Server
from kvstore.telemetry import Counters
from kvstore.wire.v1 import admin_pb2_grpc, kv_pb2, kv_pb2_grpc

log = logging.getLogger(__name__)

EXPIRE_SECONDS = 0.25  # how often pins are looked over; a late end harms nobody
DRAIN_SECONDS = 5.0  # how long open windows may take to be sealed once draining
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 64 * KiB
_FILES_MAX = 4_096  # a connection costs gRPC some 20 KiB


class Node:
    """One storage node. `run` serves until a signal, or until `stop` is called."""

    def __init__(self, config: NodeConfig) -> None:
        arm(os.environ)
        self._config = config
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(config)
        self.node_id = stable_node_id(config.id_file)
        self.epoch = _next_epoch(config)
        self._counters = Counters()
        self._arena = Arena.create(config.dram_bytes)
        self._volumes = _volumes(config)
        ssd = _ssd_slabs(self._volumes, config.slab_bytes, self.epoch)
        self._blocks = Blocks(self._arena, config.slab_bytes, self._counters, ssd)
        self._sessions = Sessions()

    async def run(self, ready: Callable[[str], None]) -> None:
        """Serve; `ready` is told the address once calls are answered."""
        _bound_the_process()
        config, loop = self._config, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        metadata = open_metadata(os.fspath(config.directory / "metadata.db"))
        tenants = {DEFAULT_TENANT: await _secret(metadata, DEFAULT_TENANT)}
        namespaces = Namespaces(metadata)
        await namespaces.load_quarantines()
        grants = Grants(metadata, self._blocks.shares, SystemClock())
        await grants.load()
        store = Store(
            self._blocks,
            Handles(self.epoch),
            SystemClock(),
            tenants,
            self._counters,
            namespaces.quarantined,
        )
        self._store = store
        socket = DataSocket(
            config.shm_socket, self._arena.descriptor, self._arena.size, self._sessions, store
        )
        opened = kv_pb2.SessionEvent.Opened(
            node_id=self.node_id,
            epoch=self.epoch,
            shm_socket=os.fspath(config.shm_socket.absolute()),
            arena_bytes=self._arena.size,
        )
        tiers = None if self._volumes is None else await self._tiers(metadata, namespaces, tenants)
        kv = StreamingKVService(store, namespaces, self._sessions, self._counters, opened, tiers)
        scrubber = Scrubber(
            self._blocks,
            tiers,
            lambda owner: namespaces.place_of(owner).layout,
            SystemClock(),
            self._counters,
            config.scrub_rate,
        )
        purge = Purge(
            *(store, metadata, tiers, self.node_id),
            *(_first_generation(self.epoch), SystemClock(), self._counters),
        )
        admin = AdminService(
            *(self.node_id, self.epoch, store, namespaces, self._sessions, self._counters),
            *(self.stop, scrubber, purge, tiers),
        )
        server = Server(
            listen_address(config.listen),
            {
                "moonpool.v1.KV": lambda s: kv_pb2_grpc.add_KVServicer_to_server(kv, s),
                "moonpool.v1.Admin": lambda s: admin_pb2_grpc.add_AdminServicer_to_server(admin, s),
            },
            bulk=[f"/moonpool.v1.KV/{method}" for method in ("Put", "Get", "Write", "Read")],
        )
        await server.start()
        announcer = _Announcer(metadata, self._record(server.address), config.lease_ms)
        await announcer.announce()
        tasks = [
            asyncio.create_task(socket.serve()),
            asyncio.create_task(self._expire(store)),
            asyncio.create_task(announcer.keep()),
            asyncio.create_task(scrubber.serve()),
            asyncio.create_task(grants.keep()),
        ]
        if tiers is not None:
            tasks.append(asyncio.create_task(tiers.serve()))
        ready(server.address)
        try:
            await self._stopping.wait()
            store.draining = True
            kv.drained.set()
            failpoint("shutdown.before_drain")
            await server.set_health(NOT_SERVING)
            await announcer.change_state("draining")
            await self._drained(store)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0.2)
            socket.close()
            await announcer.leave()
            await metadata.close()
            failpoint("shutdown.before_close")
            if self._volumes is not None:
                self._threads.shutdown()
                self._volumes.close()
            self._lock.close()

    def stop(self) -> None:
        """Drain and end; asked a second time, end at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def _tiers(
        self, metadata: Metadata, namespaces: Namespaces, tenants: Collection[str]
    ) -> Tiers:
        """The SSD tier, with the blocks it had when the node last ran."""
        assert self._volumes is not None
        self._threads = Threads()
        tiers = Tiers(
            self._blocks,
            self._volumes,
            lambda owner: namespaces.place_of(owner).layout,
            self._threads,
            SystemClock(),
            self._counters,
        )
        await namespaces.load()
        tombstones = await load_tombstones(metadata, self.node_id)
        began = SystemClock().now()
        gc.disable()  # it would look through all that was recovered again and again, and in vain
        found = tiers.recover(tenants, namespaces.layouts(), tombstones)
        failpoint("recovery.before_serving")
        gc.freeze()
        gc.enable()
        log.info("%d blocks on SSD, after %.1f s", found, SystemClock().now() - began)
        return tiers

    def _record(self, address: str) -> NodeRecord:
        return NodeRecord(
            node_id=self.node_id,
            epoch=self.epoch,
            address=address,
            tiers=self._capacities(),
            transports=("shm", "grpc"),
            labels={},
            state="serving",
        )

    def _capacities(self) -> dict[str, int]:
        tiers = {"dram": self._blocks.slabs.capacity_bytes}
        return (
            tiers if self._blocks.ssd is None else tiers | {"ssd": self._blocks.ssd.capacity_bytes}
        )

    async def _expire(self, store: Store) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            store.expire()

    async def _drained(self, store: Store) -> None:
        """Wait for writers to finish what they have begun, for a bounded time."""
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while len(store.windows) or len(store.pins):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self._hurry.is_set():
                log.warning("stopped with %d windows, %d pins", len(store.windows), len(store.pins))
                return
            await asyncio.sleep(0.05)


class _Announcer:
    """Keeps the node's record in the metadata under a lease, and takes it back at the end."""

    def __init__(self, metadata: Metadata, record: NodeRecord, lease_ms: int) -> None:
        self._metadata, self._record, self._lease_ms = metadata, record, lease_ms
        self._lease: Lease | None = None

    async def announce(self) -> None:
        self._lease = await self._metadata.grant(self._lease_ms)
        await self._put()

    async def keep(self) -> None:
        """Renew until cancelled. While the metadata is away the node serves on."""
        while True:
            await asyncio.sleep(self._lease_ms / 3e3)
            try:
                if self._lease is None:
                    await self.announce()
                else:
                    await self._metadata.keep_alive(self._lease)
            except LeaseLost:
                self._lease = None  # we were stopped for longer than the lease: say we are back
            except Unavailable as error:
                log.warning("the metadata does not answer: %s", error)

    async def change_state(self, state: Any) -> None:
        values = {name: getattr(self._record, name) for name in self._record.__dataclass_fields__}
        self._record = NodeRecord(**{**values, "state": state})
        with suppress(KVStoreError):  # the lease says it soon enough
            await self._put()

    async def leave(self) -> None:
        with suppress(KVStoreError):
            if self._lease is not None:
                await self._metadata.revoke(self._lease)

    async def _put(self) -> None:
        if self._lease is not None:
            key, value = self._record.key(), self._record.encode()
            await self._metadata.put(key, value, lease=self._lease.id)


def _volumes(config: NodeConfig) -> Volumes | None:
    """Every path of the SSD tier opened, or none of them."""
    if not config.ssd:
        return None
    with ExitStack() as opened:
        disks = {}
        for one in config.ssd:
            disk = LocalDisk.open(
                one.path, one.size_bytes, config.ssd_file_bytes(one), buffered=one.buffered
            )
            opened.callback(disk.close)
            disks[os.fspath(one.path)] = disk
        volumes = Volumes(disks)
        opened.pop_all()
        return volumes


def _ssd_slabs(volumes: Volumes | None, slab_bytes: int, epoch: int) -> Slabs | None:
    """Its generations begin anew with each start: none is ever given out twice."""
    if volumes is None:
        return None
    return Slabs(volumes.capacity_bytes, slab_bytes, Tier.SSD, _first_generation(epoch))


def _first_generation(epoch: int) -> int:
    """Above all that earlier starts gave out on SSD, and below all that this one does."""
    return epoch << 40


def _bound_the_process() -> None:
    """What callers can make the process hold beside the messages that `kvstore.rpc` admits."""
    # Each message's buffer is mapped by itself and leaves the process when it is freed. Else glibc
    # keeps, in each of gRPC's threads, room for the most that ever was there at once.
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES_MAX if most == resource.RLIM_INFINITY else min(most, _FILES_MAX)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


def _locked(config: NodeConfig) -> Any:
    lock = config.lock_file.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(
            f"node.dir = {config.directory}: another node runs there; stop it, or use another --dir"
        ) from None
    return lock


def _next_epoch(config: NodeConfig) -> int:
    """One more than the last start's. The lock is held, so nobody else counts."""
    path = config.directory / "node.epoch"
    text = path.read_text().strip() if path.exists() else "0"
    if not text.isdecimal():
        raise ConfigError(f"{path} holds no number: delete it and node.id to start a new node")
    epoch = int(text) + 1
    path.with_suffix(".new").write_text(f"{epoch}\n")
    path.with_suffix(".new").replace(path)
    return epoch


async def _secret(metadata: Metadata, name: str) -> bytes:
    """A tenant's secret, drawn by whichever node asks first."""
    made = TenantRecord(name, secrets.token_hex(32))
    await metadata.put_if(made.key(), made.encode(), expected_revision=0)
    entry = await metadata.get(made.key())
    assert entry is not None, "the record was just put"
    return bytes.fromhex(TenantRecord.parse(entry).secret)
