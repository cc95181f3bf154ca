"""Blocks under an engine's own keys in the order of their prompt: each behind the one before it, if
that is in the pool, and else found all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from kvstore.client import Client
from kvstore.client.linked import linked
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of
from tests.client.six_blocks import SIZE

KEYS = tuple("abcdef")


@pytest.fixture
def client(own_node: Node) -> Iterator[Client]:
    with Client.at(own_node.directory, spec_of("linked"), deadline_seconds=20.0) as client:
        yield client


def store(client: Client, keys: Sequence[str], before: Sequence[str]) -> None:
    source = Cache(client.space.spec, len(keys) * SIZE)
    stored = client.store_each(linked(client, keys, before), source.memory(client))
    assert stored == [True] * len(keys)


def found(client: Client) -> str:
    there = client.exists_each(client.keyed(KEYS))
    return "".join(key for key, one in zip(KEYS, there, strict=True) if one)


def lose(client: Client, key: str) -> None:
    assert client.remove(client.keyed([key])) == 1


def test_a_block_is_found_while_what_is_before_it_is_there_over_calls(client: Client) -> None:
    store(client, KEYS[:3], ("", "a", "b"))
    store(client, KEYS[3:], ("c", "d", "e"))
    assert found(client) == "abcdef"
    lose(client, "c")
    assert found(client) == "ab", "a prompt's beginning is of use alone, its end is not"


def test_behind_a_block_that_is_not_there_a_new_beginning_is_made(client: Client) -> None:
    store(client, KEYS[:2], ("", "a"))
    lose(client, "b")
    store(client, KEYS[2:], ("b", "c", "", "e"))
    assert found(client) == "acdef"
    lose(client, "a")
    assert found(client) == "cdef"


def test_what_is_before_each_is_asked_for_in_one_call_and_only_where_it_was_stored_before(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    exists = Client.exists_each
    monkeypatch.setattr(
        Client, "exists_each", lambda self, some: asked.append(len(some)) or exists(self, some)
    )
    assert linked(client, KEYS, ("", *KEYS[:5])).parents[1:] == client.keyed(KEYS[:5]).hashes
    assert asked == []
    assert linked(client, KEYS[:3], ("x", "y", "")).parents == (b"", b"", b"")
    assert asked == [2]
