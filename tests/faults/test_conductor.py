"""Nodes and conductors die, stop and come back: nobody is named who is gone, and nothing is lost.

node a   ──▶ Follow ──▶ conductor x
node b   ──▶ Follow ──▶ conductor y          whoever is killed, the others know the rest
node c
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kvstore.limits import LEASE_MS_DEFAULT
from kvstore.metadata.records import NodeRecord
from kvstore.wire.v1 import kv_pb2
from tests.etcd import EtcdProcess, need_etcd
from tests.nodes import Caller, NodeProcess, eventually, payload, prompt
from tests.pools import ConductorProcess, Nodes, pool

# A dead node is named no longer: 3.5 s are promised, on a machine that does nothing else.
GONE_SECONDS = 10.0
KNOWN_SECONDS = 30.0  # far more than it takes to be known


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


def registered(node: NodeProcess) -> Caller:
    caller = node.caller()
    caller.register()
    return caller


def test_a_killed_node_is_named_no_more_and_those_beside_it_are(nodes: Nodes) -> None:
    killed, left = nodes.node("a"), nodes.node("b")
    blocks = prompt(1, blocks=4)
    for node in (killed, left):
        registered(node).put(blocks)
    conductor = nodes.conductor()
    both = {killed.address: (4, 4), left.address: (4, 4)}
    eventually(lambda: conductor.holding(blocks) == both, KNOWN_SECONDS)
    killed.kill()
    only = {left.address: (4, 4)}
    eventually(lambda: conductor.holding(blocks) == only, GONE_SECONDS)
    prints = nodes.prints(blocks)
    assert [one.tiers for one in conductor.holders(prints).holders] == [bytes([1] * 4)]


def test_a_node_that_was_stopped_for_longer_than_its_lease_is_named_again_with_all_it_has(
    nodes: Nodes,
) -> None:
    stopped = nodes.node("a")
    blocks = prompt(1, blocks=3)
    caller = registered(stopped)
    caller.put(blocks)
    conductor = nodes.conductor()
    named = {stopped.address: (3, 3)}
    eventually(lambda: conductor.holding(blocks) == named, KNOWN_SECONDS)
    stopped.signal(signal.SIGSTOP)
    eventually(lambda: not conductor.holding(blocks), GONE_SECONDS)
    eventually(lambda: not nodes.entries(NodeRecord.prefix), KNOWN_SECONDS)
    time.sleep(1.0)  # streams fall silent and are begun in vain
    stopped.signal(signal.SIGCONT)
    eventually(lambda: conductor.holding(blocks) == named, KNOWN_SECONDS)
    more = prompt(2)
    caller.put(more)
    eventually(lambda: conductor.holding(more) == {stopped.address: (1, 1)}, KNOWN_SECONDS)


def test_nodes_and_conductors_restarted_in_turn_leave_ssd_in_the_index_and_it_is_never_empty(
    nodes: Nodes,
) -> None:
    ring = [nodes.node(name, ssd="64MiB") for name in ("a", "b")]
    blocks = prompt(1, blocks=5)
    for node in ring:
        caller, payloads = registered(node), [payload(name) for name in blocks.hashes]
        stored = caller.put(blocks, payloads)
        assert stored == [kv_pb2.PutReply.STORED] * 5
        eventually(lambda caller=caller: caller.counters()["stored_blocks"] == 5, KNOWN_SECONDS)
    conductors = [nodes.conductor(name) for name in ("x", "y")]
    for one in conductors:
        eventually(lambda one=one: len(one.holding(blocks)) == 2, KNOWN_SECONDS)

    for node, left in (ring, ring[::-1]):
        node.kill()
        for one in conductors:
            eventually(lambda one=one, left=left: left.address in one.holding(blocks), GONE_SECONDS)
        node.start()

        def has_it_on_ssd(one: ConductorProcess, address: str) -> bool:
            return one.holding(blocks).get(address) == (5, 0)

        for one in conductors:  # nobody has put anything again
            eventually(partial(has_it_on_ssd, one, node.address), KNOWN_SECONDS)
    for one, other in (conductors, conductors[::-1]):
        one.kill()
        assert other.match(blocks).blocks == 5, "the index is empty because one process died"
        one.start()
        eventually(lambda one=one: len(one.holding(blocks)) == 2, KNOWN_SECONDS)
    for node in ring:
        caller = registered(node)
        assert caller.get(blocks)[1] == payloads
        eventually(lambda: (5, 5) in conductors[0].holding(blocks).values(), KNOWN_SECONDS)


def test_while_etcd_is_away_those_who_are_heard_of_are_named_and_the_dead_are_not(
    tmp_path: Path,
) -> None:
    need_etcd()
    etcd = EtcdProcess(tmp_path).start()
    try:
        with pool(etcd.url) as nodes:
            killed, left = nodes.node("a"), nodes.node("b")
            blocks, more = prompt(1, blocks=4), prompt(2, blocks=2)
            callers = [registered(node) for node in (killed, left)]
            for caller in callers:
                caller.put(blocks)
            conductor = nodes.conductor()
            eventually(lambda: len(conductor.holding(blocks)) == 2, KNOWN_SECONDS)
            etcd.kill()
            time.sleep(LEASE_MS_DEFAULT / 1e3 + 1.0)  # no lease could be renewed
            eventually(lambda: len(conductor.holding(blocks)) == 2, KNOWN_SECONDS)
            callers[1].put(more)
            eventually(lambda: conductor.holding(more) == {left.address: (2, 2)}, KNOWN_SECONDS)
            killed.kill()
            only = {left.address: (4, 4)}
            eventually(lambda: conductor.holding(blocks) == only, GONE_SECONDS)
            etcd.start()
            eventually(lambda: len(nodes.entries(NodeRecord.prefix)) == 1, 30.0)
            eventually(lambda: conductor.holding(blocks) == only, KNOWN_SECONDS)
    finally:
        etcd.stop()


def test_a_conductor_that_was_stopped_knows_what_it_missed(nodes: Nodes) -> None:
    node, conductor = nodes.node("a"), nodes.conductor()
    caller, blocks = registered(node), prompt(1, blocks=3)
    caller.put(blocks.between(0, 1))
    eventually(lambda: conductor.holding(blocks) == {node.address: (1, 1)}, KNOWN_SECONDS)
    conductor.signal(signal.SIGSTOP)
    caller.put(blocks)
    time.sleep(1.0)
    conductor.signal(signal.SIGCONT)
    eventually(lambda: conductor.holding(blocks) == {node.address: (3, 3)}, KNOWN_SECONDS)
