"""Blocks that an engine names by keys of its own in the order of a prompt: the end makes room
before the beginning, and each is found wherever it is asked for, whatever became of the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvstore.client import Client, Keyed, keyed
from kvstore.client import space as space_module
from kvstore.errors import Invalid
from tests.client.kv import Cache, spec_of
from tests.client.six_blocks import SIZE
from tests.nodes import NodeProcess, running
from tests.pools import pool

TURNS, OTHERS = 12, 100  # blocks that come in a turn each, and those of others between two
KEYS = [f"turn {turn}" for turn in range(TURNS)]


def client_at(node: NodeProcess) -> Client:
    return Client.at(node.address, spec_of("after"), deadline_seconds=20.0)


@pytest.fixture
def client() -> Iterator[Client]:
    with running(dram="2MiB", slab="1MiB") as node, client_at(node) as client:
        yield client


def store(client: Client, blocks: Keyed) -> None:
    source = Cache(client.space.spec, len(blocks) * SIZE)
    assert client.store_each(blocks, source.memory(client)) == [True] * len(blocks)


def left(client: Client, in_order: bool) -> list[bool]:
    """Which of a conversation's blocks are there behind its last turn."""
    room = 2 * 2**20 // client.space.layout.slot_bytes
    before = ""
    for key in KEYS:
        store(client, client.keyed([key], after=before if in_order else None))
        before = key
        for first in range(0, room * 2 // 3, OTHERS):
            store(client, client.keyed([f"other {key} {first + i}" for i in range(OTHERS)]))
        client.load_each(client.keyed([key]), Cache(client.space.spec, SIZE).memory(client))
    return client.exists_each(client.keyed(KEYS))


def test_the_beginning_stays_as_long_as_the_end(client: Client) -> None:
    assert all(left(client, in_order=True))


def test_blocks_of_which_no_order_is_known_go_by_their_age(client: Client) -> None:
    found = left(client, in_order=False)
    assert not found[0] and found[-1]


@pytest.mark.parametrize("calls", [2, 1_000])
def test_blocks_that_go_in_several_parts_and_calls_are_in_one_order(
    client: Client, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "PART_BLOCKS", 4)
    monkeypatch.setattr(space_module, "RPC_KEYS_MAX", calls)
    asked: list[tuple[bytes, ...]] = []
    begin = client.connection.begin

    def heard(method: str, request: object) -> object:
        if method == "Reserve":
            asked.append((request.after, *request.hashes))  # type: ignore[attr-defined]
        return begin(method, request)

    monkeypatch.setattr(client.connection, "begin", heard)
    blocks = client.keyed(KEYS, after="before")
    store(client, blocks)
    line = (*client.keyed(["before"]).hashes, *blocks.hashes)
    assert len(asked) > 1
    for after, first, *_ in asked:
        assert line[line.index(first) - 1] == after


def test_what_comes_after_itself_is_refused(client: Client) -> None:
    with pytest.raises(Invalid, match="after"):
        store(client, client.keyed(["a", "b"], after="b"))


def test_the_end_is_had_at_another_node_that_lacks_the_beginning() -> None:
    with pool() as nodes:
        ours, theirs = (client_at(nodes.node(name, "tests.unhurried")) for name in "ab")
        with ours, theirs:
            store(ours, ours.keyed(KEYS[:4], after=""))
            some = theirs.keyed(KEYS[1:4])
            target = Cache(theirs.space.spec, 3 * SIZE)
            assert theirs.load_each(some, target.memory(theirs)) == [True] * 3
            ours.remove(ours.keyed(KEYS[:1]))
            assert ours.exists_each(some) == theirs.exists_each(some) == [True] * 3
