"""Two nodes and a conductor that know each other by certificate: what one tenant stored at one node
is fetched by the other for that tenant, and for nobody else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.block import Chain
from kvstore.cli.stack import Child
from kvstore.config import Credentials
from kvstore.rpc.access import Role
from kvstore.rpc.channel import open_channel
from kvstore.rpc.identity import TENANT_KEY
from kvstore.rpc.status import ERROR_KEY
from kvstore.wire.v1 import (
    conductor_pb2,
    conductor_pb2_grpc,
    directory_pb2,
    directory_pb2_grpc,
)
from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth import ks, test_timing
from tests.auth.people import People, caller_of
from tests.conductor.reporting import Reporting, asked, engine
from tests.nodes import (
    SPEC,
    Caller,
    eventually,
    payload,
    prompt,
    put_parts,
    refused,
    short_directory,
)
from tests.standing_in import StandingIn

BLOCKS = 64  # of a prompt whose reading is timed


class Cluster:
    def __init__(self, home: Path) -> None:
        database = home / "metadata.db"
        self.people = People(home / "certs", database)
        shared = ["--metadata", os.fspath(database)]
        self.nodes = [
            StandingIn(
                "tests.unhurried",
                home / name,
                tls=self.people.certificate(Role.NODE, name),
                options=shared,
            )
            for name in ("n1", "n2")
        ]
        for one in self.nodes:
            one.directory.mkdir()
        tls = self.people.conductor
        shown = ["--tls-ca", tls.ca, "--tls-cert", tls.cert, "--tls-key", tls.key]
        asked = ["conductor", "--dir", home, *shared, *shown]
        self.conductor = Child("conductor", [os.fspath(one) for one in asked], home)

    def start(self) -> None:
        for one in self.nodes:
            one.start()
        self.conductor.start()
        self.conductor.wait_ready()

    def close(self) -> None:
        self.conductor.stop()
        for one in self.nodes:
            one.close()
        self.conductor.reap(time.monotonic() + 10)

    def callers(self, tenant: str) -> list[Caller]:
        return [caller_of(node, self.people, tenant) for node in self.nodes]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with short_directory() as home:
        made = Cluster(home)
        try:
            made.start()
            yield made
        finally:
            made.close()


def test_what_one_node_holds_the_other_fetches_for_its_tenant_alone(cluster: Cluster) -> None:
    (first, second), (_, stranger) = cluster.callers("team-a"), cluster.callers("team-b")
    blocks = prompt(1, 3)
    assert first.put(blocks) == [pb.PutReply.STORED] * 3

    def fetched() -> list[bytes]:
        outcomes, found = second.get(blocks)
        return found if outcomes == [pb.HIT] * 3 else []

    assert eventually(fetched, 30) == [payload(h) for h in blocks.hashes]
    assert stranger.get(blocks)[0] == [pb.ABSENT] * 3


def test_an_engine_is_its_tokens_tenants_and_nobodys_once_that_is_revoked(
    cluster: Cluster,
) -> None:
    people, address = cluster.people, cluster.conductor.address
    of_engine = people.of("team-a")
    shown = {"team-a": people.of("team-a"), "team-b": people.of("team-b")}
    channels = {tenant: open_channel(address, one) for tenant, one in shown.items()}

    def sent_to(tenant: str) -> str:
        stub = conductor_pb2_grpc.ConductorStub(channels[tenant])
        try:
            # A client's word on whose it is counts for nothing.
            reply = stub.Schedule(asked("r"), timeout=20, metadata=[(TENANT_KEY, "team-a")])
        except grpc.RpcError as error:
            return str(dict(error.trailing_metadata() or ()).get(ERROR_KEY, ""))
        return str(reply.prefill.engine_id)

    for tenant in shown:
        eventually(lambda tenant=tenant: sent_to(tenant) == "Unavailable")
    first = conductor_pb2.ReportRequest(engine=engine("one"))
    with Reporting(address, first, tenant="team-b", credentials=of_engine) as stream:
        eventually(lambda: sent_to("team-a") == "one")
        assert sent_to("team-b") == "Unavailable"
        people.revoke(of_engine.token)
        error = dict(stream.refused().trailing_metadata() or ())
        assert error[ERROR_KEY] == "Unauthenticated"
        assert sent_to("team-a") == "Unavailable"
    for channel in channels.values():
        channel.close()


def test_the_conductor_answers_a_client_for_its_own_tenant(cluster: Cluster) -> None:
    (first, _), blocks = cluster.callers("team-a"), prompt(2, 3)
    first.put(blocks)
    request = conductor_pb2.PoolMatchRequest(namespace=SPEC.digest, group=0, hashes=blocks.hashes)

    def matched(credentials: Credentials) -> int | None:
        with open_channel(cluster.conductor.address, credentials) as channel:
            stub = conductor_pb2_grpc.ConductorStub(channel)
            try:
                return int(stub.Match(request, timeout=20).blocks)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED, "its token is new"
                return None

    ours, others = cluster.people.of("team-a"), cluster.people.of("team-b")
    assert eventually(lambda: matched(ours) == 3, 30)
    eventually(lambda: matched(others) is not None)
    assert matched(others) == 0


def test_a_copy_is_made_for_its_tenant_alone_and_by_nodes_alone(cluster: Cluster) -> None:
    (first, second), (_, stranger) = cluster.callers("team-a"), cluster.callers("team-b")
    numbers = iter(range(100, 1_000))

    def copied() -> Chain | None:
        blocks = prompt(next(numbers), 2)
        data = [payload(name) for name in blocks.hashes]
        reply = first.kv.Put(put_parts(blocks, data, replicas=2), timeout=20)
        return blocks if list(reply.copies) == [2, 2] else None

    blocks = eventually(copied, 30)
    about = {**second.about(blocks), "lineage": True}
    reply = second.ask("Open", **about)
    assert list(reply.outcomes) == [pb.HIT] * 2
    assert list(stranger.ask("Open", **about).outcomes) == [pb.ABSENT] * 2
    # A client may not name blocks as nodes do, and a node reaches the tenant that it names.
    by_key = {"namespace": SPEC.digest, "group": 0, "stored_keys": [reply.parents[1]]}
    told = refused(lambda: second.ask("Open", **by_key))
    assert (told.kind, told.code) == ("Denied", grpc.StatusCode.PERMISSION_DENIED)
    take = directory_pb2.TakeRequest(source=first.opened.node_id, **by_key)
    drop = directory_pb2.DropRequest(**by_key)
    with open_channel(cluster.nodes[1].address, Credentials(cluster.people.node)) as channel:
        directory = directory_pb2_grpc.DirectoryStub(channel)
        asked = {
            tenant: {"metadata": [(TENANT_KEY, tenant)], "timeout": 20}
            for tenant in ("team-a", "team-b")
        }
        assert directory.Drop(drop, **asked["team-b"]).dropped == b"\0"
        assert directory.Drop(drop, **asked["team-a"]).dropped == b"\1"
        assert directory.Take(take, **asked["team-b"]).has == b"\0"
        assert directory.Take(take, **asked["team-a"]).has == b"\1"
        assert refused(lambda: directory.Take(take, timeout=20)).kind == "Unauthenticated"


@pytest.fixture(scope="module")
def stored(cluster: Cluster) -> list[Chain]:
    """Prompts of team-a at the first node, of which the second knows."""
    first, second = cluster.callers("team-a")
    made = test_timing.new_prompts(BLOCKS)
    for blocks in made:
        first.put(blocks)
    eventually(lambda: second.match(made[-1])[0] == len(made[-1]), 30)
    return made


def p_values(caller: Caller, stored: list[Chain]) -> Iterator[float]:
    """Whether these take as long as those that nobody stored: a test of chance, tried twice."""
    for seed in (1, 2):
        kinds = {"stored": stored, "never": test_timing.new_prompts(BLOCKS)}
        found = test_timing.interleaved(caller, kinds, seed)
        yield ks.p_value(test_timing.of("stored", found), test_timing.of("never", found))


def test_how_long_one_node_takes_tells_a_tenant_nothing_of_what_another_has_at_the_next(
    cluster: Cluster, stored: list[Chain]
) -> None:
    """Row 26 between nodes: who asks is at the second, what it asks for at the first."""
    _, stranger = cluster.callers("team-b")
    assert any(p > test_timing.ALIKE for p in p_values(stranger, stored))


def test_ones_own_at_the_next_node_does_take_another_time(
    cluster: Cluster, stored: list[Chain]
) -> None:
    _, second = cluster.callers("team-a")
    assert any(p < test_timing.DIFFERENT for p in p_values(second, stored)), "the test is blind"
