"""The conductor's process: follows the pool, announces itself, answers, drains, stops.

It serves from the start, and says `approximate` until it knows every node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from kvstore import traces
from kvstore.clock import SystemClock
from kvstore.conductor.choices import RULES
from kvstore.conductor.pool import Pool
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.service import ConductorService
from kvstore.config import ConductorConfig, Credentials
from kvstore.errors import ConfigError
from kvstore.garbage import keep_what_stands
from kvstore.limits import REPORTS_MAX
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.announcer import Announcer
from kvstore.metadata.records import ConductorRecord
from kvstore.metadata.tenants import Tenants
from kvstore.rpc.access import Role
from kvstore.rpc.identity import announced_host, listen_address
from kvstore.rpc.listening import in_the_way
from kvstore.rpc.metrics_port import MetricsPort
from kvstore.rpc.process import bound_the_process
from kvstore.rpc.server import NOT_SERVING, Server
from kvstore.rpc.tls import check_role
from kvstore.telemetry import CONDUCTOR, Telemetry
from kvstore.wire.v1 import conductor_pb2_grpc

log = logging.getLogger(__name__)

DRAIN_SECONDS = 2.0  # for calls under way


class Conductor:
    """One conductor. `run` serves until a signal, or until `stop` is called; what it calls is to be
    compiled by then (see `kvstore.conductor.warm_up`), and `check` is for before that."""

    def __init__(self, config: ConductorConfig) -> None:
        if config.tls is not None:
            check_role(config.tls, Role.CONDUCTOR)
        self._config = config
        self._stopping = asyncio.Event()

    async def check(self) -> None:
        """Raise what is quickly known to be in the way of a start. Nobody is told of it."""
        config = self._config
        listen = listen_address(config.listen, config.tls)
        announced_host(listen, config.advertise)
        for option, address in (("--listen", listen), ("--metrics", config.metrics)):
            if address and (why := in_the_way(address)):
                raise ConfigError(f"{option} = {address!r}: {why}")
        metadata = self._metadata()
        try:
            await metadata.list(ConductorRecord.prefix)
        finally:
            await metadata.close()

    async def run(self, ready: Callable[[str, str], None]) -> None:
        """Serve; `ready` is told where calls are answered, and where metrics."""
        traces.begin("conductor")
        bound_the_process()
        config, clock, dice = self._config, SystemClock(), random.Random()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        metadata = self._metadata()
        try:
            tenants = Tenants(metadata)
            await tenants.load()
            credentials = Credentials(config.tls)
            pool = Pool(metadata, clock, dice, credentials, lambda *said: scheduler.carried(*said))
            targets = {"ttft": 1e-3 * config.ttft_ms, "tpot": 1e-3 * config.tpot_ms}
            rules = RULES._replace(**targets)
            scheduler = Scheduler(pool.table, pool.named_ids, dice, rules, pool.coming_ids)
            telemetry = Telemetry(CONDUCTOR)
            telemetry.look_up("followed_nodes", lambda: float(len(pool.named_ids())))
            telemetry.look_up("known_blocks", lambda: float(len(pool.table)))
            telemetry.look_up("reporting_engines", lambda: float(scheduler.engines))
            metrics = MetricsPort(telemetry, config.tls)
            service = ConductorService(pool, tenants, scheduler, clock, telemetry)
            add = partial(conductor_pb2_grpc.add_ConductorServicer_to_server, service)
            server = Server(
                listen_address(config.listen, config.tls),
                {"moonpool.v1.Conductor": add},
                tls=config.tls,
                tenancy=tenants,
                streams=REPORTS_MAX,
            )
            known_as = announced_host(config.listen, config.advertise)
            address = f"{known_as}:{server.port}"
            record = ConductorRecord(str(uuid.uuid4()), address, "serving")
            announcer = Announcer(metadata, record, config.lease_ms, _as_it_was, clock, dice)
            revision = await pool.load()
            if not pool.approximate:  # as where nodes come later, or a name is mistyped
                log.warning("no node serves yet in the pool of %s", _pool_of(config))
            following = self._task(pool.keep(revision))
            learning = self._task(tenants.keep())
            sweeping = self._task(service.keep())
            try:
                if config.metrics:
                    await metrics.listen(config.metrics)
                await server.start()
                await announcer.announce()
                renewing = self._task(announcer.keep())
                keep_what_stands()
                ready(server.address, metrics.address)
                await self._stopping.wait()
                await server.set_health(NOT_SERVING)
                await _ended(renewing)
            finally:
                service.end_reports()
                await announcer.leave()
                await server.stop(DRAIN_SECONDS)
                await metrics.close()
                await _ended(sweeping)
                await _ended(learning)
                await _ended(following)
        finally:
            await metadata.close()

    def _metadata(self) -> Metadata:
        return open_metadata(self._config.etcd or os.fspath(self._config.metadata))

    def stop(self) -> None:
        """Drain and end."""
        self._stopping.set()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """One that goes on for ever; should it fail, so does the process."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.stop())
        return task


def _pool_of(config: ConductorConfig) -> str:
    """As whoever started it named the pool."""
    etcd = config.etcd
    return f"{config.metadata}" if etcd is None else f"{etcd.cluster} in {','.join(etcd.endpoints)}"


async def _ended(task: asyncio.Task[None]) -> None:
    """Once a task is cancelled and over; what it failed with before is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _as_it_was(record: ConductorRecord) -> ConductorRecord:
    """A conductor promises nothing that the end of its lease could void."""
    return record
