"""The engine process: loads a model, joins the pool of its host, serves until a signal.

With tensor parallelism it is one process a rank, on one host: this one is rank 0, which serves, and
`run_rank` is each other one. All end together, whichever ends first.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from kvstore import traces
from kvstore.client import Client, InDirectory
from kvstore.client.reporter import Reporter
from kvstore.client.switching import Switching
from kvstore.client.who import tell
from kvstore.config import Credentials, Stands
from kvstore.errors import ConfigError, Unavailable
from kvstore.garbage import keep_what_stands
from kvstore.layout import SlotLayout
from kvstore.rpc.identity import loopback_address
from kvstore.rpc.metrics_port import MetricsPort
from kvstore.rpc.server import NOT_SERVING, Server
from kvstore.spec import KVSpec
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

from .config import ModelConfig
from .core import EngineCore, EngineSettings
from .device import Device
from .follower import follow
from .gloo import GlooTeam
from .namespace import spec_of
from .pool import Pool
from .rehearsal import Costs, Rehearsal
from .service import EngineService
from .shard import Shard
from .team import SOLO, Team
from .worker import Worker

log = logging.getLogger(__name__)

# An elastic engine does what stands behind "=", or both, until its conductors want another role.
ROLES = ("prefill", "decode", "both", "elastic", "elastic=prefill", "elastic=decode")
DRAIN_SECONDS = 5.0
_SAID = {pb.PREFILLS: "prefill", pb.DECODES: "decode", pb.BOTH: "both"}
LINK_BYTES_PER_SECOND = 1e9  # what is thought of the host's link until transfers are measured


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine process."""

    model: Path
    directory: Path  # of the host's node: where its metadata is
    role: str = "both"  # one of ROLES: what a router asks of it
    listen: str = "127.0.0.1:0"
    threads: int = 0  # torch threads of each process; 0 shares the host's cores between them
    device: str = "cpu"  # where it computes: see engine.device
    graphs: bool = True  # whether decode steps are recorded there, if the device can: engine.graphs
    codec: str = "none"  # how the pool keeps blocks: see kvstore.codec
    settings: EngineSettings = field(default_factory=EngineSettings)
    ranks: int = 1  # processes that share the model
    conductors: tuple[str, ...] = ()  # HOST:PORT each, that are told of this engine,
    stands: Stands = field(default_factory=Stands)  # and of where its host stands
    metrics: str = ""  # HOST:PORT at which Prometheus reads them; empty: nowhere


class Others(Protocol):
    """The processes of ranks 1 on, as whoever can start some has them."""

    meeting: Path  # a folder of this user alone, where ranks find each other

    def start(self) -> None:
        """Start them; each begins to load its part of the model."""

    def meet(self) -> None:
        """Return when each has loaded its part and joins now. Raises `ConfigError` if one ended."""


async def run(
    config: EngineConfig, ready: Callable[[str, str], None], others: Others | None = None
) -> None:
    """Serve; `ready` is told where calls are answered, and where metrics.

    Of several ranks this is the first, and `others` are the rest. Raises `RankLost` if one goes.
    """
    traces.begin("engine")
    elastic, begins = _role(config)
    address = loopback_address(config.listen)
    _set_threads(config)
    node_id = _node_id(config.directory) if config.conductors else ""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    device = _device(config)
    Shard(ModelConfig.load(config.model), 0, config.ranks)  # before others are started in vain
    team: Team = SOLO if others is None else GlooTeam(0, config.ranks, others.meeting)
    if others is not None:
        others.start()
    spec = spec_of(config.model, config.settings.page_tokens, config.codec)
    core = EngineCore.load(config.model, config.settings, team=team, device=device)
    if others is not None:
        others.meet()
        team.join_others()
        team.tell(spec.canonical().encode())  # they need not hash the weights too
    # Its node may start later, or again: the client finds it when it is asked something.
    where, label = InDirectory(config.directory), f"engine {config.role}"
    client = Client(where, spec, label=label, device=device.place)
    try:
        where.find()
    except Unavailable as error:
        log.warning("every prompt is computed whole until a node serves: %s", error)

    def broken() -> None:
        loop.call_soon_threadsafe(stopping.set)

    pool = Pool(client, core.cache, team, device)
    costs = Rehearsal(core, pool, team).run() if config.conductors else None
    worker = Worker(core, pool, team, broken)
    service = EngineService(worker, _SAID[begins], str(config.model), spec)
    server = Server(
        address,
        {"moonpool.v1.Engine": lambda s: engine_pb2_grpc.add_EngineServicer_to_server(service, s)},
    )
    metrics = MetricsPort(worker.telemetry, Credentials.of_environment().tls)
    _look_up(worker)
    if config.metrics:
        await metrics.listen(config.metrics)
    reporter = switching = None
    if costs is not None:
        log.info("conductors are told: %s", costs)
        who = _who(config, spec, server.address, node_id, device, costs)
        reporter = Reporter(who, config.conductors, node=partial(_node_id, config.directory))
        worker.tell(reporter)
        if elastic:

            def took(role: pb.Role) -> None:
                service.role = _SAID[role]

            switching = Switching(reporter, who, config.conductors, took)
    worker.start()
    await server.start()
    keep_what_stands()
    ready(server.address, metrics.address)
    await stopping.wait()
    await server.set_health(NOT_SERVING)
    if switching is not None:
        await asyncio.to_thread(switching.close)
    if reporter is not None:
        await asyncio.to_thread(reporter.close)  # nobody is sent here while it drains
    await asyncio.to_thread(worker.stop, DRAIN_SECONDS)
    await server.stop(0.5)
    await metrics.close()
    pool.close()
    await asyncio.to_thread(client.close)
    if worker.error is not None:
        raise worker.error


def run_rank(config: EngineConfig, rank: int, meeting: Path, join: Callable[[], None]) -> None:
    """Be rank `rank`, from 1, until rank 0 ends the engine; `join` waits until all can meet.

    Raises `RankLost` if another rank goes.
    """
    _set_threads(config)
    team = GlooTeam(rank, config.ranks, meeting)
    core = EngineCore.load(config.model, config.settings, team=team)
    join()
    team.join_others()
    spec = KVSpec.parse(team.hear().decode())
    label = f"engine {config.role} rank {rank}"
    client = Client(InDirectory(config.directory), spec, label=label)
    try:
        follow(core, Pool(client, core.cache, team), team)
        team.part()
    finally:
        client.close()


def _who(
    config: EngineConfig,
    spec: KVSpec,
    address: str,
    node_id: str,
    device: Device,
    costs: Costs,
) -> pb.ReportRequest.Engine:
    """What conductors are told of this engine."""
    (group,) = spec.groups
    layout = SlotLayout.of(spec, 0)
    settings, does = config.settings, {}
    elastic, begins = _role(config)
    if elastic or begins != pb.DECODES:
        does["prefill"] = pb.ReportRequest.Cost(**asdict(costs.prefill))
    if elastic or begins != pb.PREFILLS:
        does["decode"] = pb.ReportRequest.Cost(**asdict(costs.decode))
    engine = pb.ReportRequest.Engine(
        engine_id=f"{config.role.partition('=')[0]} {address}",
        address=address,
        node_id=node_id,
        namespace=spec.digest,
        block_tokens=group.block_tokens,
        token_bytes=layout.block_bytes(group.block_tokens) / group.block_tokens,
        room_tokens=settings.pages * settings.page_tokens,
        link_bytes_per_second=LINK_BYTES_PER_SECOND,
        elastic=begins if elastic else pb.AS_IT_IS,
        revision=spec.revision,
        kind=f"{device.kind} x {config.ranks}",
        **does,
    )
    tell(config.stands, engine)
    return engine


def _look_up(worker: Worker) -> None:
    """What is asked for when somebody reads the metrics."""
    pages = worker.core.cache.allocator

    def by_state() -> dict[str, float]:
        return {"free": float(pages.free), "taken": float(pages.pages - pages.free)}

    worker.telemetry.look_up("pages", by_state)
    worker.telemetry.look_up("running_requests", lambda: float(worker.requests))


def _role(config: EngineConfig) -> tuple[bool, pb.Role]:
    """Whether it can switch, and what it does first."""
    if config.role not in ROLES:
        raise ConfigError(f"--role {config.role}: is one of {', '.join(ROLES)}")
    kind, _, first = config.role.partition("=")
    elastic = kind == "elastic"
    if elastic and not config.conductors:
        raise ConfigError(f"--role {config.role}: conductors say which: give --conductor HOST:PORT")
    said = first or ("both" if elastic else kind)
    return elastic, next(role for role, name in _SAID.items() if name == said)


def _node_id(directory: Path) -> str:
    """Of the node whose directory it is; it need not run yet, but it must have run."""
    try:
        return (directory / "node.id").read_text().strip()
    except FileNotFoundError:
        raise ConfigError(
            f"--conductor: no node has run in {directory}, whose memory conductors are to be told "
            "of: start it first"
        ) from None


def _device(config: EngineConfig) -> Device:
    if config.ranks > 1 and config.device != "cpu":
        raise ConfigError(
            f"--tp {config.ranks} --device {config.device}: ranks add up on the CPU alone; "
            "--tp 1 computes on one device"
        )
    device = Device.named(config.device)
    return device if config.graphs else device.without_graphs()


def _set_threads(config: EngineConfig) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)
    elif config.ranks > 1:  # the ranks of a host share its cores
        torch.set_num_threads(max(1, torch.get_num_threads() // config.ranks))
