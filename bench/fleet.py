"""A pool with engines, as real processes: nodes that share a metadata file, conductors that follow
them, and engines that report to all of those. Nothing is simulated; all of it goes with the block.

Each engine has the memory of one node; with as many nodes as engines, each has a host of its own.
Engines are ours where no others are given.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import grpc

from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.config import OPEN
from kvstore.engine.namespace import spec_of
from kvstore.gateway.request import Request
from kvstore.rpc.channel import open_channel
from kvstore.spec import KVSpec
from kvstore.wire.v1 import admin_pb2, admin_pb2_grpc, conductor_pb2_grpc
from kvstore.wire.v1 import conductor_pb2 as pb

KNOWN_SECONDS = 60.0  # until every conductor knows every engine: far more than it takes
_LOOK_SECONDS = 0.05
_HEARD_SECONDS = 1.0  # that conductors have to follow nodes anew, which takes them a tenth of it


@dataclass(frozen=True, slots=True)
class Plan:
    """How large it is."""

    nodes: int = 4
    prefills: int = 2
    decodes: int = 2
    conductors: int = 2
    dram: tuple[str, ...] = ("48MiB",)  # of each node, again from the start if they are more
    slab: str = "8MiB"
    pages: int = 160  # of each engine, of 64 tokens
    elastic: bool = False  # they can switch


@dataclass(frozen=True, slots=True)
class Seat:
    """One engine's place in a fleet, and what it is told."""

    name: str
    role: str  # prefill or decode
    home: Path  # the directory of its node
    model: Path
    told: Sequence[str]  # conductors, and whoever else hears what those hear
    log: Path  # the directory for it
    plan: Plan


class Engine(Protocol):
    """A process, as `Child` is."""

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def exited(self) -> int | None: ...
    def start(self) -> None: ...
    def wait_ready(self) -> None: ...
    def stop(self) -> None: ...
    def reap(self, deadline: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """Of engines."""

    engine: Callable[[Seat], Engine]
    specs: Callable[[Fleet], list[KVSpec]]  # of blocks; none before engines have named them
    alone: Callable[[Request], Request]  # the same, and an engine finds nothing of it anywhere
    remembers: bool  # it has a cache of its own, whatever becomes of nodes


def _ours(seat: Seat) -> Engine:
    does = f"elastic={seat.role}" if seat.plan.elastic else seat.role
    at = ["--dir", os.fspath(seat.home), "--model", os.fspath(seat.model), "--role", does]
    sizes = ["--threads", "1", "--pages", str(seat.plan.pages)]
    where = [f"--conductor={one}" for one in seat.told]
    return Child(seat.name, ["engine", *at, *sizes, *where], seat.log)


def _without_pool(request: Request) -> Request:
    return replace(request, id=f"{request.id} alone", without_pool=True)


def _specs(fleet: Fleet) -> list[KVSpec]:
    return [spec_of(fleet.model)]


OURS = Kind(_ours, _specs, _without_pool, remembers=False)


class Fleet:
    """Made by `running`."""

    spec: KVSpec  # of the engines' blocks, once it has started

    def __init__(
        self,
        directory: Path,
        model: Path,
        plan: Plan,
        listeners: Sequence[str] = (),
        kind: Kind = OURS,
    ) -> None:
        """`listeners` are told by engines what conductors are told."""
        self.plan, self.kind = plan, kind
        shared = ["--metadata", os.fspath(directory / "pool.db")]
        homes = [directory / f"n{number}" for number in range(plan.nodes)]
        for home in homes:
            home.mkdir(parents=True)
        sizes = zip(homes, itertools.cycle(plan.dram), strict=False)
        self.nodes = [
            Child(home.name, [*_node(home, dram, plan.slab), *shared], directory)
            for home, dram in sizes
        ]
        self.conductors = [
            Child(f"c{number}", ["conductor", *shared], directory)
            for number in range(plan.conductors)
        ]
        self._directory, self._homes, self.model = directory, homes, model
        self._listeners = listeners
        self.engines: dict[str, list[Engine]] = {}  # by role
        self._at: list[tuple[Engine, Child]] = []  # each with its node

    @property
    def addresses(self) -> dict[str, list[str]]:
        """Of engines, by role."""
        return {role: [one.address for one in some] for role, some in self.engines.items()}

    def stats(self) -> list[admin_pb2.StatsReply]:
        """What nodes say of themselves."""
        found = []
        for one in self.nodes:
            with open_channel(one.address, OPEN) as channel:
                stats = admin_pb2_grpc.AdminStub(channel).Stats
                found.append(stats(admin_pb2.StatsRequest(), timeout=KNOWN_SECONDS))
        return found

    def node_ids(self) -> dict[str, str]:
        """Of engines' nodes, by the engine's address."""
        said = zip(self.nodes, self.stats(), strict=True)
        named = {node.address: stats.node_id for node, stats in said}
        return {engine.address: named[node.address] for engine, node in self._at}

    @property
    def told(self) -> list[str]:
        """Addresses of the conductors."""
        return [one.address for one in self.conductors]

    def start(self) -> None:
        """Returns when all serve and every conductor knows every engine."""
        _begin([*self.nodes, *self.conductors])
        told = (*self.told, *self._listeners)
        roles = ["prefill"] * self.plan.prefills + ["decode"] * self.plan.decodes
        for number, role in enumerate(roles):
            home = self._homes[number % len(self._homes)]
            name, log = f"{role}-{number}", self._directory
            one = self.kind.engine(Seat(name, role, home, self.model, told, log, self.plan))
            self.engines.setdefault(role, []).append(one)
            self._at.append((one, self.nodes[number % len(self.nodes)]))
        _begin([one for some in self.engines.values() for one in some])
        self.wait(lambda: self.kind.specs(self) != [], "no engine has named its blocks")
        (self.spec,) = self.kind.specs(self)
        self.wait_known()

    def refresh(self) -> None:
        """Nodes start anew, and have nothing; by the end conductors have heard of it."""
        _end(self.nodes)
        _begin(self.nodes)
        time.sleep(_HEARD_SECONDS)

    def wait_known(self) -> None:
        """Until every conductor that runs knows all engines."""
        wanted = {one for some in self.addresses.values() for one in some}
        for child in self.conductors:
            if child.exited is None:
                self.wait(
                    lambda child=child: self._named(child.address) >= wanted,
                    "a conductor does not know all engines",
                )

    def kill(self, child: Child) -> None:
        os.kill(child.pid, signal.SIGKILL)
        child.reap(time.monotonic() + STOP_SECONDS)

    def stop(self) -> None:
        _end([one for some in self.engines.values() for one in some])
        _end([*self.conductors, *self.nodes])

    def _named(self, conductor: str) -> set[str]:
        """Engines that a conductor would send requests to: of equals it takes any."""
        found: set[str] = set()
        probe = pb.ScheduleRequest(request_id="probe", namespace=self.spec.digest, tokens=64)
        with open_channel(conductor, OPEN) as channel:
            explain = conductor_pb2_grpc.ConductorStub(channel).Explain
            for _ in range(8 * sum(len(some) for some in self.engines.values())):
                try:
                    reply = explain(pb.ExplainRequest(request=probe), timeout=KNOWN_SECONDS)
                except grpc.RpcError:
                    return set()  # no engine has reported yet
                found |= {reply.plan.prefill.address, reply.plan.decode.address}
        return found

    def wait(self, so: Callable[[], bool], why: str) -> None:
        deadline = time.monotonic() + KNOWN_SECONDS
        while not so():
            if time.monotonic() > deadline:
                raise RuntimeError(why)
            time.sleep(_LOOK_SECONDS)


@contextmanager
def running(
    directory: Path,
    model: Path,
    plan: Plan,
    listeners: Sequence[str] = (),
    kind: Kind = OURS,
) -> Iterator[Fleet]:
    """Stopped on any way out."""
    fleet = Fleet(directory, model, plan, listeners, kind)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def _node(home: Path, dram: str, slab: str) -> list[str]:
    return ["node", "--dir", os.fspath(home), "--dram", dram, "--slab", slab]


def _begin(children: Sequence[Engine]) -> None:
    for one in children:
        one.start()
    for one in children:
        one.wait_ready()


def _end(children: Sequence[Engine]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    for one in children:
        one.stop()
    for one in children:
        one.reap(deadline)


def free_port() -> int:
    """Of loopback, for who cannot be told to take any."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
