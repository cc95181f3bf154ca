"""Four nodes on three hosts, by certificate; one host dies with both of its nodes.

h1: a, beside        h2: b        h3: c        what is put at a is to be at another host too
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.block import Chain
from kvstore.rpc.access import Role
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth.people import HOSTS, People, caller_of
from tests.cluster.three import SOON_SECONDS, right
from tests.copies import copied, holding, put
from tests.hosts import Network, network
from tests.nodes import Caller, NodeProcess, eventually, prompt, short_directory

STANDING = {"a": "h1", "beside": "h1", "b": "h2", "c": "h3"}
START_SECONDS = 60.0


class Standing:
    """The nodes, and a caller of each."""

    def __init__(self, home: Path, net: Network, stack: ExitStack) -> None:
        database = home / "metadata.db"
        hosts = dict(zip(("h1", "h2", "h3"), net.hosts, strict=True))
        people = People(home / "certs", database, (*HOSTS, *(one.address for one in net.hosts)))
        self.nodes: dict[str, NodeProcess] = {}
        for name, host in STANDING.items():
            (home / name).mkdir()
            node = NodeProcess(
                home / name,
                listen=f"{hosts[host].address}:0",
                options=["--metadata", os.fspath(database), "--label", f"host={host}"],
                tls=people.certificate(Role.NODE, f"node-{name}"),
            )
            thread = stack.enter_context(hosts[host].inside())
            stack.callback(node.close)
            thread.submit(node.start).result(START_SECONDS)
            self.nodes[name] = node
        self.at: dict[str, Caller] = {
            name: caller_of(node, people, "team-a") for name, node in self.nodes.items()
        }
        self._prompts = iter(range(1, 1_000_000))

    def stored(self, replicas: int, blocks: int = 3) -> Chain:
        """A new prompt, put at node a for so many nodes."""
        made = prompt(next(self._prompts), blocks)
        if replicas > 1:
            copied(self.at["a"], made, replicas)
        else:
            assert self.at["a"].put(made) == [pb.PutReply.STORED] * blocks
        return made

    def ready(self) -> None:
        """Node a has all others take blocks, and each of them reads what it alone has."""

        def reached() -> bool:
            made = prompt(next(self._prompts))
            return list(put(self.at["a"], made, replicas=4).copies) == [4]

        eventually(reached, SOON_SECONDS)
        for caller in self.at.values():
            eventually(lambda caller=caller: right(caller, self.stored(1)) == 3, SOON_SECONDS)


@pytest.fixture
def standing() -> Iterator[Standing]:
    with short_directory() as home, network(3) as net, ExitStack() as stack:
        made = Standing(home, net, stack)
        made.ready()
        yield made
        for node in made.nodes.values():
            assert "Traceback" not in node.log, node.log[-4_000:]


def test_what_is_put_for_two_nodes_is_read_after_the_host_of_the_first_is_dead(
    standing: Standing,
) -> None:
    safe, alone = [standing.stored(2) for _ in range(12)], [standing.stored(1) for _ in range(4)]
    where = [holding([standing.at[name] for name in STANDING], blocks) for blocks in safe]
    assert all(some[0] == 3 and 3 in some[2:] for some in where)
    assert not any(beside for _, beside, _, _ in where), "a copy on the host that it is to outlive"
    for name in ("a", "beside"):
        standing.nodes[name].kill()
    for reader in ("b", "c"):
        at = standing.at[reader]
        for blocks in safe:  # `right` raises where a read fails; who is late is asked again
            eventually(lambda at=at, blocks=blocks: right(at, blocks) == 3, SOON_SECONDS)
        lost = [right(standing.at[reader], blocks) for blocks in alone]
        assert lost == [0] * len(alone), "what had none is a miss, and no more than that"
