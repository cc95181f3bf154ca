"""The gateway's process: knows a model, serves HTTP on loopback until a signal, then drains.

Draining it lets nobody in and says so; answers under way have some seconds, and whoever still waits
then is told that the rest does not come. A second signal makes that now.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette

from kvstore import traces
from kvstore.client.conductors import Conductors
from kvstore.client.explained import facts_of
from kvstore.clock import SystemClock
from kvstore.config import OPEN, Credentials, GatewayConfig
from kvstore.dashboard import board
from kvstore.dashboard.watch import Watch
from kvstore.errors import ConfigError, Invalid
from kvstore.garbage import keep_what_stands
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.http.app import app_of
from kvstore.gateway.http.connection import Connection
from kvstore.gateway.http.keys import Anybody, KeyFile
from kvstore.gateway.http.listener import address_of, listening_at
from kvstore.gateway.http.ready import Readiness
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.work import Work
from kvstore.gateway.spaces import Told
from kvstore.limits import SERVE_DRAIN_SECONDS, SERVE_REQUESTS_MAX
from kvstore.rpc.kept import kept
from kvstore.rpc.metrics_port import MetricsPort
from kvstore.rpc.process import bound_files
from kvstore.telemetry import GATEWAY, Telemetry

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75  # longer than proxies and clients keep a connection that they may use again
_LAST_WORDS_SECONDS = 2  # in which those who were told read it


async def run(config: GatewayConfig, ready: Callable[..., None]) -> None:
    """`ready` is told where calls are answered, where metrics, and where the dashboard is, if that
    has an address of its own."""
    traces.begin("gateway")
    bound_files()
    keys = Anybody() if config.keys is None else KeyFile(config.keys)
    served = Served.of(config)
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if isinstance(keys, KeyFile):
        loop.add_signal_handler(signal.SIGHUP, _read_again, keys)
    with (
        ExitStack() as stack,
        closing(listening_at(config.listen, "--listen")) as listener,
        Conductors(config.conductors) as conductors,
        # Engines of ours serve loopback, without TLS.
        closing(
            Dispatcher(conductors, Told(conductors, served.revision), config.engines, OPEN)
        ) as dispatcher,
        closing(Readiness(served, config.conductors, config.engines)) as readiness,
    ):
        telemetry = Telemetry(GATEWAY)
        work = Work(dispatcher, SERVE_REQUESTS_MAX, telemetry)
        metrics = MetricsPort(telemetry, Credentials.of_environment().tls)
        await metrics.listen(config.metrics or "127.0.0.1:0")  # it reads its own, too
        watch = Watch([metrics.address, *config.watch])

        def explain(request_id: str) -> dict[str, Any] | None:
            try:
                return facts_of(conductors.explain(request_id))
            except Invalid as unknown:
                log.debug("nobody explains %s: %s", request_id, unknown)
                return None

        def prefixes() -> list[dict[str, Any]]:
            return work.prefixes.hottest(time.monotonic())

        shown = board.routes(watch, work.recent.newest, prefixes, explain)
        # Who has a key is one of several, and is not shown what the others do.
        behind_keys = config.keys is not None
        app = app_of(work, served, readiness, keys, () if behind_keys else shown)
        servers = [(_server(app), listener)]
        if config.board:
            listening = closing(listening_at(config.board, "--board"))
            servers.append((_server(Starlette(routes=shown)), stack.enter_context(listening)))
        address, *boards = (address_of(at) for _, at in servers)
        serving = asyncio.gather(*(one.serve(sockets=[at]) for one, at in servers))
        beside = [
            asyncio.create_task(kept("reading metrics", watch.keep, SystemClock())),
            asyncio.create_task(kept("looking for engines", readiness.warn, SystemClock())),
        ]
        keep_what_stands()
        ready(address, metrics.address, *boards)
        await _first(stopping.wait(), serving)
        work.close()
        await _first(work.idle(), hurry.wait(), seconds=SERVE_DRAIN_SECONDS)
        work.abandon()
        for server, _ in servers:
            server.should_exit = True
        await serving
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await metrics.close()


def _read_again(keys: KeyFile) -> None:
    try:
        keys.read()
        log.warning("keys were read again")
    except ConfigError as error:
        log.error("keys are as they were: %s", error)


class _Server(uvicorn.Server):
    """Leaves signals to `run`, which drains first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Starlette) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.ERROR,  # of callers that it refuses, `Connection` tells
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_WORDS_SECONDS,
        )
    )


async def _first(*awaited: Awaitable[object], seconds: float | None = None) -> None:
    """Returns once one of these is done, or the time is over."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
