"""Where blocks of a caller lie on a host of two sockets: in its own memory while there is room."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kvstore.cli.main import main
from kvstore.client import Client
from kvstore.core.spread import ALIKE, Range
from kvstore.limits import KiB
from kvstore.memory import numa
from tests import sockets
from tests.client.kv import spec_of
from tests.nodes import NodeProcess, running

ClientAt = Callable[..., Client]
SLAB, SLABS = 64 * KiB, 8
HALF = SLABS // 2 * SLAB
SPEC = spec_of("two-sockets")
SIZES = {"dram": f"{SLABS * SLAB // KiB}KiB", "slab": f"{SLAB // KiB}KiB"}


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with sockets.on_two(**SIZES) as started:
        yield started


@pytest.fixture
def client_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientAt]:
    sockets.stand_in(monkeypatch)
    with ExitStack() as made:

        def make(node: NodeProcess, **options: Any) -> Client:
            told = {"deadline_seconds": 20.0} | options
            return made.enter_context(Client.at(node.address, SPEC, **told))

        yield make


def per_half(client: Client) -> int:
    return SLABS // 2 * (SLAB // client.space.layout.slot_bytes)


def reserved(client: Client, count: int, seed: int = 0) -> list[int]:
    """Offsets of the slots of so many new blocks, of which this gives up none."""
    tokens = SPEC.groups[0].block_tokens * count
    chain = client.chain(range(seed, seed + tokens))
    writer = client.writer(chain)
    return [int(offset) for offset in writer._slots.offsets]


def assert_anywhere(client: Client) -> None:
    slabs = {offset // SLAB for offset in reserved(client, per_half(client))}
    assert {slab * SLAB >= HALF for slab in slabs} == {False, True}, "some of each"


def test_blocks_lie_near_until_that_is_full_and_far_then(
    node: NodeProcess, client_at: ClientAt
) -> None:
    client = client_at(node)
    most = per_half(client)
    first, second = reserved(client, most - 1), reserved(client, 3, seed=1_000_000)
    assert all(offset >= HALF for offset in [*first, second[0]])
    assert all(offset < HALF for offset in second[1:]), "there is room, so it is given"
    assert len({*first, *second}) == most + 2
    rest = reserved(client, most - 2, seed=2_000_000)
    assert all(offset < HALF for offset in rest)


def test_a_caller_that_does_not_map_the_memory_is_given_any(
    node: NodeProcess, client_at: ClientAt
) -> None:
    assert_anywhere(client_at(node, transport="tcp"))


def test_a_caller_on_both_sockets_is_given_any(
    node: NodeProcess, client_at: ClientAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = {cpu for some in numa.nodes().values() for cpu in some}
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: cpus)
    assert_anywhere(client_at(node))


def test_a_caller_is_told_where_the_memory_is(node: NodeProcess, client_at: ClientAt) -> None:
    transport: Any = client_at(node).connection.link().transport
    ranges = (Range(sockets.FAR, 0, HALF), Range(sockets.NEAR, HALF, 2 * HALF))
    assert transport._writing.spread.ranges == ranges


def test_stat_says_what_each_numa_node_has(
    node: NodeProcess, client_at: ClientAt, capsys: pytest.CaptureFixture[str]
) -> None:
    reserved(client_at(node), 1)
    assert main(["stat", "--node", node.address]) == 0
    said = capsys.readouterr().out
    assert "numa 0    4 of the slabs, 4 empty\nnuma 1    4 of the slabs, 3 empty\n" in said
    assert main(["stat", "--node", node.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["numa"] == [
        {"node": 0, "slabs": 4, "slabs_empty": 4},
        {"node": 1, "slabs": 4, "slabs_empty": 3},
    ]


@pytest.mark.parametrize("how", ["told to mind none", "on one socket"])
def test_a_node_that_minds_no_numa_gives_all_callers_the_lowest(
    how: str, client_at: ClientAt, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {**SIZES, "options": ["--numa", "off"]}
    with running(**SIZES) if how == "on one socket" else sockets.on_two(**told) as node:
        client = client_at(node)
        transport: Any = client.connection.link().transport
        if transport._writing.spread.ranges and how == "on one socket":
            pytest.skip("this host has several sockets")
        assert transport._writing.spread == ALIKE
        assert min(reserved(client, 1)) == 0
        assert main(["stat", "--node", node.address]) == 0
        assert "numa" not in capsys.readouterr().out
