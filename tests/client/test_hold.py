"""A hold keeps blocks where they are for somebody else, and says what computed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Miss
from kvstore.client.hold_each import hold_each
from kvstore.errors import Invalid
from tests.client.kv import Cache, spec_of, truth_of
from tests.client.six_blocks import BLOCKS, Stored

Clients = Callable[..., Client]
Stats = Callable[[Client], Any]
TOKENS = 40


def stored(client_of: Clients, name: str, origin: int = 0) -> tuple[Client, Cache]:
    spec = spec_of(name)
    client, cache = client_of(spec), Cache(spec, TOKENS)
    cache.fill(truth_of(spec, TOKENS, 0))
    chain = client.chain(range(TOKENS))
    with client.writer(chain, origin=origin) as writer:
        writer.put(cache.memory(client))
        writer.seal()
    return client, cache


def test_what_is_held_stays_until_it_is_released(client_of: Clients, stats_of: Stats) -> None:
    client, _ = stored(client_of, "held")
    chain = client.chain(range(TOKENS))
    hold = client.hold(chain)
    assert (hold.blocks, hold.miss) == (len(chain), None)
    assert stats_of(client).pins >= len(chain)
    hold.release()
    hold.release()  # twice is once
    assert stats_of(client).pins == 0


def test_it_ends_at_the_first_block_that_is_not_there(client_of: Clients, stats_of: Stats) -> None:
    client, _ = stored(client_of, "shorter")
    longer = client.chain(range(TOKENS + 100))
    hold = client.hold(longer)
    full = TOKENS // longer.block_tokens
    assert (hold.blocks, hold.miss) == (full, Miss.ABSENT)
    assert len(hold.origins) == full
    hold.release()
    assert stats_of(client).pins == 0


def test_it_says_what_computed_each_block(client_of: Clients) -> None:
    client, _ = stored(client_of, "origin", origin=2**63 + 5)
    hold = client.hold(client.chain(range(TOKENS)))
    assert set(hold.origins) == {2**63 + 5}
    hold.release()


def test_of_a_session_that_has_ended_nothing_is_let_go_anew(
    client_of: Clients, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a node that hangs, each such hold would wait for it by itself."""

    def asked(*_: Any) -> None:
        pytest.fail("the node was asked")

    client, _ = stored(client_of, "ended")
    hold = client.hold(client.chain(range(TOKENS)))
    client.connection.give_up(link := client.connection.link())
    eventually(lambda: not link.alive)
    monkeypatch.setattr(client.connection, "link", asked)
    hold.release()


def test_blocks_that_stand_alone_have_no_leading_part_to_hold(client_of: Clients) -> None:
    client = client_of(spec_of("alone"))
    with pytest.raises(Invalid, match="stand alone"):
        client.hold(client.keyed(["a"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(("holes", "held"), [((), BLOCKS), ((3, 4), 3), ((1,), 1), ((0,), 0)])
def test_of_blocks_that_stand_alone_none_is_held_behind_a_hole(
    client_of: Clients, stats_of: Stats, holes: tuple[int, ...], held: int
) -> None:
    """A pin brings what it names from wherever it lies, and it stays there meanwhile."""
    kept = Stored(client_of(spec_of(f"holes {holes}")))
    client = kept.client
    assert client.remove(kept.only(*holes)) == len(holes)
    hold = hold_each(client, kept.blocks)
    assert (hold.blocks, stats_of(client).pins) == (held, held)
    assert hold.miss is (Miss.REMOVED if holes else None)
    hold.release()
    assert stats_of(client).pins == 0


def test_what_an_engine_says_it_used_is_counted(client_of: Clients, stats_of: Stats) -> None:
    client = client_of(spec_of("used"))
    before = dict(stats_of(client).counters)
    client.used(1_000, 640)
    after = dict(stats_of(client).counters)
    assert after["query_tokens"] - before["query_tokens"] == 1_000
    assert after["hit_tokens"] - before["hit_tokens"] == 640
    with pytest.raises(Invalid, match="hit_tokens 2 of query_tokens 1"):
        client.used(1, 2)


def test_groups_of_a_namespace_share_a_connection(client_of: Clients) -> None:
    client = client_of(spec_of("groups"))
    assert client.of_group(0).connection is client.connection
    with pytest.raises(Invalid, match=r"group 1: the spec has groups 0\.\.0"):
        client.of_group(1)
