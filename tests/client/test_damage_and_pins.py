"""Damaged bytes are a miss to every reader, and pinned ones are read where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client, Match, Miss
from kvstore.errors import Invalid, SessionEnded
from kvstore.layout import TABLE_OFFSET
from tests.client.conftest import Node
from tests.client.kv import Cache, spec_of
from tests.client.stored import BLOCKS, TOKENS, Stored

Clients = Callable[..., Client]
Stats = Callable[[Client], Any]


@pytest.mark.parametrize("where", ["first byte", "last byte", "strip table", "identity"])
def test_a_flipped_bit_is_a_miss_from_there_until_the_block_is_put_again(
    stored: Stored, stats_of: Stats, where: str
) -> None:
    client, layout = stored.client, stored.client.space.layout
    at = {
        "first byte": layout.head_bytes,
        "last byte": layout.head_bytes + layout.payload_bytes - 1,
        "strip table": TABLE_OFFSET + 8 * 5,
        "identity": 64,
    }[where]
    stored.flip(1, at)
    assert stored.got() == Match(1, 8, Miss.DAMAGED)
    assert stats_of(client).counters["damaged_blocks"] == 1
    assert client.match(stored.chain) == Match(1, 8, Miss.DAMAGED)
    assert stored.got() == Match(1, 8, Miss.DAMAGED), "and the node remembers why"
    behind = client.get(stored.chain.between(2, 4), stored.source.memory(client), first=1)
    assert behind.miss is Miss.UNLISTED
    assert stats_of(client).blocks_unlisted == 2
    # Healed by that block alone: what came after it was never lost.
    only = stored.chain.between(0, 2)
    assert client.put(only, stored.source.memory(client), first=1) == 1
    assert client.match(stored.chain) == Match(BLOCKS, TOKENS, None)
    assert stored.got() == Match(BLOCKS, TOKENS, None)
    assert stats_of(client).counters["damaged_blocks"] == 1
    assert stats_of(client).blocks_unlisted == 0


def test_only_the_heads_that_are_read_are_answered_for(stored: Stored, stats_of: Stats) -> None:
    layout = stored.client.space.layout
    stored.flip(0, layout.head_bytes)  # head 0 of layer 0
    other = Cache(stored.spec, TOKENS, heads=(1, 3))
    found = stored.client.get(stored.chain, other.memory(stored.client))
    assert found == Match(BLOCKS, TOKENS, None) and other.holds(stored.truth)
    assert stored.got() == Match(0, 0, Miss.DAMAGED)
    assert stats_of(stored.client).counters["damaged_blocks"] == 1


def test_damage_is_a_miss_to_a_pin_too(stored: Stored, stats_of: Stats) -> None:
    stored.flip(2, stored.client.space.layout.head_bytes + 99)
    with stored.client.pin(stored.chain) as pinned:
        assert (pinned.blocks, pinned.miss) == (2, Miss.DAMAGED)
        assert len(pinned.views()) == 2
    assert stats_of(stored.client).counters["damaged_blocks"] == 1


def test_pinned_blocks_are_read_where_they_lie_and_by_no_other_hand(
    stored: Stored, stats_of: Stats, eventually: Callable[..., Any]
) -> None:
    client, layout = stored.client, stored.client.space.layout
    mapping = client.connection.link().transport._reading.bytes  # type: ignore[attr-defined]
    with client.pin(stored.chain) as pinned:
        assert (pinned.blocks, pinned.tokens, pinned.miss) == (BLOCKS, (8, 8, 8, 6), None)
        assert stats_of(client).pins == BLOCKS
        views = pinned.views()
        for i, (view, tokens) in enumerate(zip(views, pinned.tokens, strict=True)):
            assert np.shares_memory(view, mapping) and not view.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                view[0, 0, 0, 0] = 1
            known = stored.truth[:, :, 8 * i : 8 * i + tokens]
            # A short block's strips are at the stride of a full one, and fill less.
            found = view.reshape(layout.layers, layout.kv_heads, -1)
            size = tokens * layout.token_bytes
            shape = (layout.layers, layout.kv_heads, size)
            assert np.array_equal(found[:, :, :size], known.reshape(shape))
        assert pinned.confirm() == BLOCKS
    eventually(lambda: stats_of(client).pins == 0)
    del mapping


def test_a_pinned_block_that_is_removed_stays_readable_until_it_is_let_go(
    stored: Stored, stats_of: Stats, eventually: Callable[..., Any]
) -> None:
    client = stored.client
    target = Cache(stored.spec, TOKENS, seed=5)
    pinned = client.pin(stored.chain)
    with client.reader(stored.chain, target.memory(client)) as reader:
        assert client.remove(stored.chain) == BLOCKS
        assert client.match(stored.chain) == Match(0, 0, Miss.REMOVED)
        assert reader.poll() and reader.blocks == BLOCKS and reader.miss is None
    assert target.holds(stored.truth)
    assert pinned.confirm() == BLOCKS
    pinned.close()
    eventually(lambda: stats_of(client).slabs_empty == stats_of(client).slabs)
    assert pinned.confirm() == 0, "its memory is free: what is read now is void"


def test_views_stay_memory_after_the_client_is_closed(own_node: Node) -> None:
    client = Client.at(own_node.address, spec_of("d"), deadline_seconds=20.0)
    stored = Stored(client)
    pinned = client.pin(stored.chain)
    views = pinned.views()
    copies = [view.copy() for view in views]
    client.close()
    pinned.close()
    with pytest.raises(SessionEnded):
        pinned.confirm()
    assert all(np.array_equal(*both) for both in zip(views, copies, strict=True))


def test_a_pin_of_an_absent_block_is_a_miss_and_of_an_empty_chain_is_empty(stored: Stored) -> None:
    with stored.client.pin(stored.client.chain([5, 6])) as pinned:
        assert (pinned.blocks, pinned.miss, pinned.views()) == (0, Miss.ABSENT, [])
        assert pinned.confirm() == 0
    with stored.client.pin(stored.client.chain([])) as pinned:
        assert (pinned.blocks, pinned.miss, pinned.confirm()) == (0, None, 0)


def test_what_cannot_be_read_where_it_lies_is_not_kept_pinned(
    stored: Stored, stats_of: Stats, eventually: Callable[..., Any]
) -> None:
    own = stored.client
    with Client.at(
        own.connection.link().address, stored.spec, deadline_seconds=20.0, transport="tcp"
    ) as other:
        with pytest.raises(Invalid, match="cannot be read where they lie"):
            other.pin(stored.chain, pin_ms=600_000)
        eventually(lambda: stats_of(own).pins == 0)
