"""Three real nodes in networks of their own, by certificate, and their etcd in a fourth.

a, b, c ──▶ etcd          a caller of team-a at each node
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvstore.block import Chain
from kvstore.client import Client, KVSpec
from kvstore.client.reader import Reader
from kvstore.client.writer import Writer
from kvstore.errors import Unauthenticated
from kvstore.metadata.records import NodeRecord
from kvstore.rpc.access import Role
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth.people import HOSTS, People, caller_of
from tests.cluster.three import SOON_SECONDS, held, right
from tests.etcd import EtcdProcess, need_etcd
from tests.hosts import Host, Network, network
from tests.nodes import Caller, NodeProcess, eventually, prompt, short_directory

Clients = Callable[..., Client]
TENANT = "team-a"
START_SECONDS = 110.0


class Apart:
    """Nodes a, b and c, each in a host of its own, and a caller of each."""

    def __init__(
        self, home: Path, net: Network, stack: ExitStack, options: Sequence[str] = ()
    ) -> None:
        self.net, self._stack = net, stack
        *hosts, self.beside = net.hosts  # the last is etcd's
        self.hosts: dict[str, Host] = dict(zip("abc", hosts, strict=True))
        self.etcd = EtcdProcess(home / "etcd", host=self.beside.address)
        run_in(self.beside, self.etcd.start, self.etcd.kill, stack)
        self.people = People(
            home / "certs", self.etcd.url, (*HOSTS, *(host.address for host in hosts))
        )
        self.nodes: dict[str, NodeProcess] = {}
        for name, host in self.hosts.items():
            (home / name).mkdir()
            node = NodeProcess(
                home / name,
                dram="64MiB",
                slab="8MiB",
                listen=f"{host.address}:0",
                options=["--etcd", self.etcd.url, *options],
                tls=self.people.certificate(Role.NODE, f"node-{name}"),
            )
            run_in(host, node.start, node.close, stack)
            self.nodes[name] = node
        self.at: dict[str, Caller] = {}
        for name in self.nodes:
            self.meet(name)
        self._shown = self.people.of(TENANT)
        self._prompts = iter(range(1, 1_000_000))

    def meet(self, name: str) -> None:
        """Have a caller at a node as it runs now."""
        self.at[name] = caller_of(self.nodes[name], self.people, TENANT, admin=True)

    def restart(self, name: str) -> None:
        """A node is killed and begins anew, at another address."""
        self.nodes[name].kill()
        run_in(self.hosts[name], self.nodes[name].start, lambda: None, self._stack)
        self.meet(name)

    def restart_etcd(self) -> None:
        """Killed, and started again with what it knew."""
        run_in(self.beside, self.etcd.restart, lambda: None, self._stack)

    @contextmanager
    def shown_by_children(self, tenant: str) -> Iterator[None]:
        """What is started within this shows a tenant's token and a client's certificate."""
        shown = self.people.of(tenant)
        assert shown.tls is not None
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ca", "cert", "key"):
                patch.setenv(f"MOONPOOL_TLS_{name.upper()}", str(getattr(shown.tls, name)))
            patch.setenv("MOONPOOL_TOKEN", shown.token)
            yield

    def client(self, name: str, spec: KVSpec, transport: str = "auto") -> Client:
        """An engine's client at a node, closed by whoever asked for it."""

        def begun() -> Client | None:
            try:
                return Client.at(
                    self.nodes[name].address,
                    spec,
                    deadline_seconds=20.0,
                    transport=transport,
                    credentials=self._shown,
                )
            except Unauthenticated:  # the node has not heard of the token yet
                return None

        made: Client = eventually(begun)
        return made

    def announced(self) -> int:
        """How many nodes etcd names."""
        listed = self.people.with_metadata(lambda store: store.list(NodeRecord.prefix))
        return len(listed[0])

    def stored(self, holders: str, blocks: int = 2) -> Chain:
        """A new prompt that these nodes hold."""
        made = prompt(next(self._prompts), blocks)
        for name in holders:
            assert self.at[name].put(made) == [pb.PutReply.STORED] * blocks
        return made

    def read(self, name: str, blocks: Chain) -> tuple[int, float]:
        """How many blocks a node reads, each of which is right, and how long that takes."""
        began = time.monotonic()
        return right(self.at[name], blocks), time.monotonic() - began

    def ready(self) -> None:
        """Each reads what any other has."""
        for holder in "abc":
            for reader in "abc":
                self.reads(reader, holder)

    def reads(self, reader: str, holder: str, seconds: float = SOON_SECONDS) -> None:
        eventually(lambda: self.read(reader, self.stored(holder))[0] == 2, seconds)

    def at_rest(self) -> None:
        """Nobody holds anything anywhere, and nothing broke."""
        for name, caller in self.at.items():
            eventually(lambda caller=caller: held(caller) == (0, 0), SOON_SECONDS)
            log = self.nodes[name].log
            assert "Traceback" not in log, log[-4_000:]


def run_in(host: Host, start: Callable[[], Any], end: Callable[[], Any], stack: ExitStack) -> None:
    """Start something in a host; it is ended with the stack."""
    thread = stack.enter_context(host.inside())
    stack.callback(end)
    thread.submit(start).result(START_SECONDS)


@contextmanager
def three_apart(*options: str) -> Iterator[Apart]:
    """They know each other; `options` are more of each node's."""
    need_etcd()
    with short_directory() as home, network(4) as net, ExitStack() as stack:
        made = Apart(home, net, stack, options)
        made.ready()
        yield made


def following(client: Client, chain: Any, memory: Any, writer: Writer) -> Reader:
    """A reader behind a writer at another host; asked anew where that host was late."""

    def opened() -> Reader | None:
        reader = client.reader(chain, memory, hand_offs=writer.hand_offs)
        if not reader.poll():
            return reader
        reader.close()
        return None

    made: Reader = eventually(opened, SOON_SECONDS)
    return made
