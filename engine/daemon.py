"""The engine process: loads a model, joins the pool of its host, serves until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kvstore.client import Client, FromMetadata
from kvstore.rpc.identity import listen_address
from kvstore.rpc.server import NOT_SERVING, Server
from kvstore.wire.v1 import engine_pb2_grpc

from .core import EngineCore, EngineSettings
from .namespace import spec_of
from .pool import Pool
from .service import EngineService
from .worker import Worker

DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine process."""

    model: Path
    directory: Path  # of the host's node: where its metadata is
    role: str = "both"  # prefill, decode or both: what a router asks of it
    listen: str = "127.0.0.1:0"
    threads: int = 0  # torch threads; 0 leaves torch's own choice
    settings: EngineSettings = field(default_factory=EngineSettings)


async def run(config: EngineConfig, ready: Callable[[str], None]) -> None:
    """Serve; `ready` is told the address once calls are answered."""
    if config.threads:
        torch.set_num_threads(config.threads)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    spec = spec_of(config.model, config.settings.page_tokens)
    core = EngineCore.load(config.model, config.settings)
    # Its node may start later, or again: the client finds it when it is asked something.
    client = Client(FromMetadata(config.directory), spec, label=f"engine {config.role}")
    worker = Worker(core, Pool(client, core.cache))
    worker.start()
    service = EngineService(worker, config.role, str(config.model), spec.digest)
    server = Server(
        listen_address(config.listen),
        {"moonpool.v1.Engine": lambda s: engine_pb2_grpc.add_EngineServicer_to_server(service, s)},
    )
    await server.start()
    ready(server.address)
    await stopping.wait()
    await server.set_health(NOT_SERVING)
    await asyncio.to_thread(worker.stop, DRAIN_SECONDS)
    await server.stop(0.5)
    await asyncio.to_thread(client.close)
