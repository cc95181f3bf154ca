"""Blocks that land beside memory that may be another's at any moment, and are copied there."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from kvstore.errors import Unavailable
from kvstore.layout import SlotLayout
from kvstore.limits import UCX_ASIDE_PIECES
from kvstore.transfer import ucx_aside
from kvstore.transfer.frames import Attach
from kvstore.transfer.landing import Landing
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_aside import Aside, AsideLane
from tests.client.kv import spec_of
from tests.nodes import NodeProcess, eventually, payload, prompt, running
from tests.transfer.ucx_rig import (
    LAYOUT,
    OFFERED,
    POISON,
    SECONDS,
    SPEC,
    connected,
    landed,
    landing,
    poisoned,
    session,
)

pytest.importorskip("nixl_cu12")


@pytest.fixture(scope="module")
def node() -> Iterator[NodeProcess]:
    with running(dram="64MiB", options=OFFERED) as started:
        yield started


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> Aside:
    """One with room for two blocks in a piece."""
    monkeypatch.setattr(ucx_aside, "UCX_ASIDE_BYTES", 2 * LAYOUT.payload_bytes)
    return Aside()


def test_more_blocks_than_a_piece_holds_come_in_turns_and_nothing_beside_them(
    node: NodeProcess, aside: Aside
) -> None:
    chain, size = prompt(1, 5, SPEC), LAYOUT.payload_bytes
    with session(node) as caller, connected(caller) as stream:
        caller.put(chain, [payload(one, SPEC) for one in chain.hashes], spec=SPEC)
        reply = caller.ask("Open", **caller.about(chain, SPEC))
        roots = np.frombuffer(b"".join(reply.roots), dtype=np.uint8).reshape(5, -1)
        memory, rows = poisoned(10 * size), np.array([8, 2, 0, 4, 6])  # every other place
        places = np.arange(10, dtype=np.int64) * size
        into = Landing(LAYOUT, memory, places, np.full(10, LAYOUT.block_tokens, dtype=np.int32))
        lane = AsideLane(aside, 20.0, stream)
        for came in lane.read(list(reply.handles), into, rows, LAYOUT.whole):
            assert into.proven(rows[came], LAYOUT.whole, roots[came]).all()
        blocks = memory.reshape(10, size)
        assert [blocks[row].tobytes() for row in rows] == [payload(h, SPEC) for h in chain.hashes]
        assert (blocks[1::2] == POISON).all()
        assert not shared_agent().knows(memory), "nobody was told of it"
        lane.close()


def test_blocks_that_are_no_whole_words_have_places_that_are(
    node: NodeProcess,
) -> None:
    odd = spec_of("odd", layers=3, kv_heads=1, head_dim=5, block_tokens=3, parts=1, dtype="uint8")
    layout, chain = SlotLayout.of(odd, 0), prompt(2, 4, odd)
    with session(node) as caller, connected(caller) as stream:
        caller.register(odd)
        caller.put(chain, spec=odd)
        reply = caller.ask("Open", **caller.about(chain, odd))
        size, rows = layout.payload_bytes, np.arange(4)
        memory, tokens = poisoned(4 * size), np.full(4, 3, dtype=np.int32)
        into, lane = Landing(layout, memory, rows * size, tokens), AsideLane(Aside(), 20.0, stream)
        landed = list(lane.read(list(reply.handles), into, rows, layout.whole))
        assert np.concatenate(landed).tolist() == [0, 1, 2, 3]
        assert memory.tobytes() == b"".join(payload(one, odd) for one in chain.hashes)
        lane.close()


def test_the_piece_of_a_call_that_was_given_up_is_nobodys_until_its_node_hangs_up(
    aside: Aside,
) -> None:
    pieces = [aside.pieces.take() for _ in range(UCX_ASIDE_PIECES - 1)]
    ours, node_side = socket.socketpair()
    node_side.send(bytes([Attach.KNOWN]))
    lane = AsideLane(aside, 0.1, DataStream(ours))
    with pytest.raises(Unavailable, match="stood still"):
        landed(lane, bytes(8), landing(poisoned()))
    lane.close()
    assert not aside.fits(LAYOUT)
    with pytest.raises(Unavailable, match="all 4 pieces"):
        aside.pieces.take()
    node_side.close()
    eventually(lambda: aside.fits(LAYOUT), SECONDS)
    assert aside.pieces.take() not in pieces
