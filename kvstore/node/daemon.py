"""The node process: builds its parts, announces itself, serves, drains, stops.

One node runs in a directory at a time (a lock says so). A killed node leaves a lock the kernel has
released, a socket file that the next start replaces, and a lease that runs out; its memory had no
name, so it went with its last user.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from kvstore import traces
from kvstore.block import Miss
from kvstore.clock import SystemClock
from kvstore.config import Credentials, NodeConfig, host_name
from kvstore.core.slabs import Slabs
from kvstore.disk.division import files_kept
from kvstore.failpoint import arm, failpoint
from kvstore.garbage import keep_what_stands
from kvstore.memory.arena import Arena
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.records import NodeRecord
from kvstore.metadata.tenants import Tenants
from kvstore.node.admin import AdminService
from kvstore.node.blocks import Blocks
from kvstore.node.data_port import DataPort
from kvstore.node.data_socket import DataSocket
from kvstore.node.departure import Departure
from kvstore.node.from_hbm import FromHbm
from kvstore.node.gauges import look_up
from kvstore.node.grants import Grants
from kvstore.node.handles import Handles
from kvstore.node.hbm import Hbm
from kvstore.node.heartbeat import Heartbeat
from kvstore.node.moves import Moves
from kvstore.node.namespaces import LayoutOf, Namespaces
from kvstore.node.peer_service import PeerService
from kvstore.node.pool import Pool
from kvstore.node.purge import Purge, Scope, load_tombstones
from kvstore.node.read_ahead import ReadAhead
from kvstore.node.scrubber import Scrubber
from kvstore.node.sessions import Session, Sessions
from kvstore.node.start import (
    first_generation,
    locked,
    next_epoch,
    spread_of,
    ssd_slabs,
    stable_node_id,
    volumes_of,
)
from kvstore.node.store import Store
from kvstore.node.streams import StreamingKVService
from kvstore.node.threads import Threads
from kvstore.node.tiers import Tiers
from kvstore.node.ucx_moves import UcxMoves
from kvstore.node.ucx_way import UcxWays
from kvstore.rpc.access import Role
from kvstore.rpc.address_file import AddressFile
from kvstore.rpc.identity import Caller, announced_host, listen_address
from kvstore.rpc.kept import kept
from kvstore.rpc.metrics_port import MetricsPort
from kvstore.rpc.process import bound_the_process
from kvstore.rpc.server import NOT_SERVING, Server
from kvstore.rpc.socket_server import SocketCaller
from kvstore.rpc.tls import Renewing, check_role, data_server
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer.lending import lending
from kvstore.wire.v1 import admin_pb2_grpc, directory_pb2_grpc, kv_pb2, kv_pb2_grpc

log = logging.getLogger(__name__)

EXPIRE_SECONDS = 0.25  # how often pins are looked over; a late end harms nobody
DRAIN_SECONDS = 5.0  # for open windows to be sealed, and what waits for SSD to be written


class Node:
    """One storage node. `run` serves until a signal, or until `stop` is called."""

    def __init__(self, config: NodeConfig) -> None:
        arm(os.environ)
        if config.tls is not None:
            check_role(config.tls, Role.NODE)
        bound_the_process(files_kept(config))
        self._config = config
        self._stopping = asyncio.Event()
        self._hurry, self._warned = asyncio.Event(), False
        config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = locked(config)
        self.node_id = stable_node_id(config)
        self.epoch = next_epoch(config)
        self._counters = Telemetry(NODE)
        self._lending = lending(config)
        whole = config.dram_bytes // config.slab_bytes * config.slab_bytes
        self._arena = Arena.create(whole, self._lending.size_bytes, spread_of(config))
        self._volumes = volumes_of(config)
        ssd = ssd_slabs(self._volumes, config.slab_bytes, self.epoch)
        self._blocks = Blocks(self._arena, config.slab_bytes, self._counters, ssd)
        self._sessions = Sessions()
        self._handles = Handles(self.epoch, self.node_id)
        self._threads, self._until_end = Threads(), ExitStack()

    async def run(self, ready: Callable[[str, str], None]) -> None:
        """Serve; `ready` is told where calls are answered, and where metrics."""
        traces.begin("node")
        config, loop = self._config, asyncio.get_running_loop()
        address = listen_address(config.listen, config.tls)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        where = config.etcd or os.fspath(config.metadata_file)
        metadata = open_metadata(where)
        tenants = Tenants(metadata)
        await tenants.load()
        namespaces = Namespaces(metadata, SystemClock(), random.Random())
        await namespaces.load_quarantines()
        grants = Grants(metadata, self._blocks.shares, SystemClock())
        await grants.load()
        store = Store(
            self._blocks,
            self._handles,
            SystemClock(),
            tenants.secrets,
            self._counters,
            namespaces.quarantined,
        )
        self._store = store
        moves = Moves(store, lambda owner: namespaces.place_of(owner).layout)
        ahead = ReadAhead(moves)
        host, known_as = address.rpartition(":")[0], announced_host(address, config.advertise)
        ucx = UcxMoves(self._arena) if "ucx" in config.transports else None
        data = DataPort(
            *(host, config.data_port, self._arena, moves, ahead, self._sessions, self._counters),
            None if config.tls is None else Renewing(config.tls, data_server).latest,
            ucx,
        )
        self._opened = kv_pb2.SessionEvent.Opened(
            host=host_name(),
            data_address=f"{known_as}:{data.port}",
            node_id=self.node_id,
            epoch=self.epoch,
            shm_socket=os.fspath(config.shm_socket.absolute()),
            arena_bytes=self._arena.size,
            hbm_bytes=self._arena.hbm_bytes,
            hbm_device=self._lending.name,
            spread=[
                kv_pb2.NumaRange(numa_node=node, bytes=last - first)
                for node, first, last in self._arena.spread.ranges
            ],
        )
        tiers = (
            None
            if self._volumes is None
            else await self._tiers(metadata, namespaces, tenants.secrets)
        )
        pool = Pool(
            *(self.node_id, metadata, store, self._arena, SystemClock(), self._counters),
            *(Credentials(config.tls), tiers, self._labels()),
            None if ucx is None else UcxWays(SystemClock(), self._counters),
        )
        hbm = self._hbm(lambda owner: namespaces.place_of(owner).layout)
        kv = StreamingKVService(
            *(store, namespaces, self._sessions, self._counters, self._opened, ahead),
            *(tiers, pool, hbm),
        )
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
            *(first_generation(self.epoch), SystemClock(), self._counters),
        )
        self._admin = admin = AdminService(
            *(self.node_id, self.epoch, store, namespaces, self._sessions, self._counters),
            *(self.stop, self._leave, scrubber, purge, pool.contacts, pool.replicas),
            Departure(store, pool.replicas, pool.whereabouts, SystemClock(), self._counters),
            *(tiers, self._lending, hbm),
        )
        self._directory = directory = PeerService(
            *(self.node_id, self.epoch, SystemClock(), store, namespaces, pool.taking, tiers)
        )
        server = Server(
            address,
            {
                "moonpool.v1.KV": lambda s: kv_pb2_grpc.add_KVServicer_to_server(kv, s),
                "moonpool.v1.Admin": lambda s: admin_pb2_grpc.add_AdminServicer_to_server(admin, s),
                "moonpool.v1.Directory": partial(
                    directory_pb2_grpc.add_DirectoryServicer_to_server, directory
                ),
            },
            bulk=[f"/moonpool.v1.KV/{method}" for method in ("Put", "Get", "Write", "Read")],
            tls=config.tls,
            tenancy=tenants,
        )

        def answering(session: Session) -> SocketCaller:
            who = Caller(Role.CLIENT, session.label, session.tenant)
            return SocketCaller(kv, server.admission, who, lambda: session.streaming)

        socket = DataSocket(
            *(config.shm_socket, self._arena, self._lending.handle, self._sessions, store),
            answering,
        )
        look_up(self._counters, store, self._sessions, self._slabs())
        metrics = MetricsPort(self._counters, config.tls)
        if config.metrics:
            await metrics.listen(config.metrics)
        await server.start()
        self._announcer = announcer = Heartbeat(
            partial(open_metadata, where),
            self._record(f"{known_as}:{server.port}"),
            config.lease_ms,
            self._lapsed,
            SystemClock(),
            failed=self._failed,
        )
        await announcer.announce()
        found_at = AddressFile(config.directory, f"{known_as}:{server.port}", self.node_id)

        async def quarantines() -> None:
            await namespaces.keep_quarantines(
                lambda digest: purge.carry_out(Scope(namespace=digest), Miss.QUARANTINED)
            )

        tasks = self._kept(
            {
                "letting mappers in": socket.serve,
                "letting data connections in": partial(data.serve, answering),
                "ending pins": partial(self._expire, store),
                "scrubbing": scrubber.serve,
                "reading shares": grants.keep,
                "reading tenants": tenants.keep,
                "reading quarantines": quarantines,
                **({} if tiers is None else {"writing to SSD": tiers.serve}),
                **({} if hbm is None else {"making room in HBM": hbm.serve}),
                **pool.keepers,
            }
        )
        keep_what_stands()
        ready(server.address, metrics.address)
        try:
            await self._stopping.wait()
            store.draining = True
            kv.drained.set()
            failpoint("shutdown.before_drain")
            await server.set_health(NOT_SERVING)
            await announcer.change_state("draining")
            await self._drained(store, tiers, hbm)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0.2)
            await metrics.close()
            socket.close()
            await pool.close()
            data.close()
            if ucx is not None:
                ucx.close()
            found_at.close()
            await announcer.leave()
            await metadata.close()
            failpoint("shutdown.before_close")
            if not self._threads.shutdown():
                log.error("stopped while a disk does not return from what it was asked")
                os._exit(1)  # the interpreter would wait for its threads
            self._until_end.close()
            if self._volumes is not None:
                self._volumes.close()
            self._lock.close()

    def _kept(
        self, works: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    ) -> list[asyncio.Task[None]]:
        """What the node does by itself, until these are cancelled."""
        nature = (SystemClock(), self._failed)
        return [asyncio.create_task(kept(*one, *nature)) for one in works.items()]

    def _failed(self) -> None:
        self._counters.add("task_failures")

    async def _leave(self) -> None:
        """Take no new blocks; others are told, and give this node none."""
        self._store.draining = True
        await self._announcer.change_state("draining")

    def stop(self) -> None:
        """Drain and end."""
        self._stopping.set()

    def _signalled(self) -> None:
        """Likewise; at the second signal at once. A call to drain is none: supervisors send the
        first as soon as `moonpool drain` has ended."""
        if self._warned:
            self._hurry.set()
        self._warned = True
        self.stop()

    async def _tiers(
        self, metadata: Metadata, namespaces: Namespaces, tenants: Collection[str]
    ) -> Tiers:
        """The SSD tier, with the blocks it had when the node last ran."""
        assert self._volumes is not None
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

    def _hbm(self, layout_of: LayoutOf) -> Hbm | None:
        """The HBM tier, where the node has taken any."""
        if self._lending.region is None:
            return None
        copy = self._until_end.enter_context(self._lending.downward(self._arena))
        read = FromHbm(self._blocks.view, self._blocks.heads, copy).read
        return Hbm(self._blocks, read, layout_of, self._threads, SystemClock())

    def _lapsed(self, record: NodeRecord) -> NodeRecord:
        """Others held this node for dead, and it is not: what it promised them before is void."""
        self.epoch = next_epoch(self._config)
        log.warning(
            "held for dead meanwhile: epoch %d, and sessions of other hosts begin anew", self.epoch
        )
        self._handles.renew(self.epoch)
        self._opened.epoch = self._directory.epoch = self._admin.epoch = self.epoch
        self._sessions.end_remote()
        return replace(record, epoch=self.epoch)

    def _record(self, address: str) -> NodeRecord:
        return NodeRecord(
            node_id=self.node_id,
            epoch=self.epoch,
            address=address,
            tiers={name: one.capacity_bytes for name, one in self._slabs().items()},
            transports=("shm", *self._config.transports, "grpc"),
            labels=self._labels(),
            state="serving",
        )

    def _labels(self) -> dict[str, str]:
        return {"host": host_name()} | dict(self._config.labels)

    def _slabs(self) -> dict[str, Slabs]:
        blocks = self._blocks
        tiers = {"hbm": blocks.hbm, "dram": blocks.slabs, "ssd": blocks.ssd}
        return {name: slabs for name, slabs in tiers.items() if slabs is not None}

    async def _expire(self, store: Store) -> None:
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            store.expire()

    async def _drained(self, store: Store, tiers: Tiers | None, hbm: Hbm | None) -> None:
        """Wait for writers to finish what they have begun, and for what waits for SSD to be written
        there, for a bounded time."""
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        if tiers is not None and hbm is not None:
            hbm.empty()
        while True:
            above = 0 if hbm is None else hbm.left
            unwritten = 0 if tiers is None else tiers.unwritten + above
            if not (len(store.windows) or len(store.pins) or unwritten):
                return
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self._hurry.is_set():
                log.warning(
                    "stopped with %d windows, %d pins, %d blocks that were not written to SSD yet",
                    *(len(store.windows), len(store.pins), unwritten),
                )
                return
            await asyncio.sleep(0.05)
