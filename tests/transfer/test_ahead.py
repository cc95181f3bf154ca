"""Blocks that come with Open: taken unasked where they are wanted, in nobody's way where not."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from kvstore.client import Client
from kvstore.limits import DATA_SESSION_CONNECTIONS_MAX
from kvstore.transfer import calls
from tests.client.kv import Cache
from tests.nodes import eventually
from tests.transfer.test_tcp import (
    DENSE,
    SPEC,
    TOKENS,
    WAYS,
    Proxy,
    client,
    proxy,
    served,
    stats,
    stored,
)

__all__ = ["client", "proxy", "served"]


@WAYS
def test_sealed_blocks_are_loaded_without_asking_for_them(
    client: Client, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, truth = stored(client)
    target, keyed = Cache(SPEC, TOKENS, **way), Cache(SPEC, TOKENS, **way)
    monkeypatch.setattr(calls, "read", None)
    assert client.get(chain, target.memory(client)).blocks == len(chain)
    assert target.holds(truth)
    names = client.keyed([chain.hashes[0].hex(), chain.hashes[1].hex()])
    source = Cache(SPEC, TOKENS, **DENSE)
    source.fill(truth)
    assert client.store_each(names, source.memory(client)) == [True, True]
    assert client.load_each(names, keyed.memory(client)) == [True, True]
    assert keyed.holds(truth)


def test_keyed_blocks_behind_a_miss_are_asked_for(client: Client) -> None:
    chain, truth = stored(client)
    source, target = Cache(SPEC, TOKENS, **DENSE), Cache(SPEC, TOKENS, **DENSE)
    source.fill(truth)
    names = [chain.hashes[0].hex() + "x", chain.hashes[1].hex() + "x"]
    client.store_each(client.keyed(names), source.memory(client))
    client.remove(client.keyed(names[:1]))
    assert client.load_each(client.keyed(names), target.memory(client)) == [False, True]
    assert target.holds(truth, TOKENS // 2, TOKENS)


@WAYS
def test_a_reader_whose_connection_was_hung_up_asks_again(
    client: Client, proxy: Proxy, way: dict[str, Any]
) -> None:
    """As the node does with one that takes nothing for long."""
    chain, truth = stored(client)
    target = Cache(SPEC, TOKENS, **way)
    with client.reader(chain, target.memory(client)) as reader:
        proxy.cut()
        assert reader.poll()
        assert (reader.blocks, reader.miss) == (len(chain), None)
        assert target.holds(truth)


def test_readers_that_load_nothing_are_in_nobodys_way(client: Client) -> None:
    chain, truth = stored(client)
    target = Cache(SPEC, TOKENS, **DENSE)
    with ExitStack() as held:
        for _ in range(2 * DATA_SESSION_CONNECTIONS_MAX):
            unused = Cache(SPEC, TOKENS, **DENSE)
            held.enter_context(client.reader(chain, unused.memory(client)))
        assert client.get(chain, target.memory(client)).blocks == len(chain)
        assert target.holds(truth)
    again = Cache(SPEC, TOKENS, **DENSE)
    assert client.get(chain, again.memory(client)).blocks == len(chain), "what lay unread is gone"
    assert again.holds(truth)
    assert eventually(lambda: stats(client).pins == 0)


def test_an_open_that_is_broken_off_holds_no_connection(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, _ = stored(client)
    memory = Cache(SPEC, TOKENS, **DENSE).memory(client)

    def broken_off(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(client.connection, "call", broken_off)
        for _ in range(DATA_SESSION_CONNECTIONS_MAX):
            with pytest.raises(KeyboardInterrupt):
                client.reader(chain, memory)
    with client.reader(chain, memory) as reader:
        assert reader._opened._ahead is not None


def test_a_client_is_closed_while_a_reader_holds_connections(served: Any) -> None:
    with Client.at(served.address, SPEC, transport="tcp", deadline_seconds=20.0) as client:
        chain, _ = stored(client)
        reader = client.reader(chain, Cache(SPEC, TOKENS, **DENSE).memory(client))
        assert reader._opened._ahead is not None
    reader.close()


def test_a_reader_from_a_later_block_on_has_what_belongs_there(client: Client) -> None:
    chain, truth = stored(client, 3 * TOKENS)
    target = Cache(SPEC, 3 * TOKENS, **DENSE)
    with client.reader(chain, target.memory(client), first=2) as reader:
        assert reader.poll()
        assert reader.blocks == len(chain) - 2
    assert target.holds(truth, TOKENS, 3 * TOKENS)
