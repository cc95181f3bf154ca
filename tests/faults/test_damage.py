"""One flipped bit is one counted miss: no reader gets it, no other block goes, a put heals it."""

from __future__ import annotations

import pytest

from kvstore.layout import IDENTITY_OFFSET, TABLE_OFFSET, SlotLayout
from kvstore.spec import KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import LARGE, LAYOUT, SPEC, Caller, mapped, payload, prompt, refused

HEAD = LAYOUT.head_bytes
PLACES = {
    "first byte": HEAD,
    "last byte": HEAD + LAYOUT.payload_bytes - 1,
    "strip table": TABLE_OFFSET + 11,
    "identity": IDENTITY_OFFSET + 40,
}


def offsets(caller: Caller, blocks: list[bytes], spec: KVSpec = SPEC) -> list[int]:
    """Where blocks lie."""
    opened = caller.ask("Open", namespace=spec.digest, hashes=blocks)
    caller.ask("Close", handles=opened.handles)
    return list(opened.slot_offsets)


def flip(caller: Caller, at: int) -> None:
    with mapped(caller) as arena:
        arena.bytes[at] ^= 4


@pytest.mark.parametrize("where", PLACES)
def test_a_flipped_bit_is_a_miss_of_that_block_alone_until_a_put_heals_it(
    caller: Caller, where: str
) -> None:
    blocks, others = prompt(1, 4), prompt(2, 3)
    wanted = [payload(h) for h in blocks.hashes]
    caller.put(blocks)
    caller.put(others)
    flip(caller, offsets(caller, list(blocks.hashes))[1] + PLACES[where])
    assert caller.match(blocks) == (4, pb.HIT), "nobody has looked at it yet"
    outcomes, found = caller.get(blocks)
    assert outcomes == [pb.HIT, pb.DAMAGED, pb.UNLISTED, pb.UNLISTED]
    assert found == [wanted[0], b"", b"", b""]
    stats = caller.stats()
    assert (stats.counters["damaged_blocks"], stats.blocks_unlisted) == (1, 2)
    assert caller.match(blocks) == (1, pb.DAMAGED)
    assert caller.get(others)[0] == [pb.HIT] * 3
    stored, existed = pb.PutReply.STORED, pb.PutReply.EXISTED
    assert caller.put(blocks) == [existed, stored, existed, existed]
    assert caller.get(blocks) == ([pb.HIT] * 4, wanted)
    stats = caller.stats()
    assert (stats.counters["damaged_blocks"], stats.blocks_unlisted, stats.pins) == (1, 0, 0)


def test_what_a_reader_suspects_is_looked_at_and_dropped_only_if_damaged(caller: Caller) -> None:
    blocks = prompt(1, 3)
    caller.put(blocks)
    opened = caller.ask("Open", **caller.about(blocks))
    flip(caller, opened.slot_offsets[1] + HEAD)
    closed = caller.ask("Close", handles=opened.handles, suspects=opened.handles[:2])
    assert list(closed.held) == [True] * 3
    assert caller.counters()["damaged_blocks"] == 1
    assert list(caller.ask("Exists", **caller.about(blocks)).outcomes) == [
        pb.HIT,
        pb.DAMAGED,
        pb.UNLISTED,
    ]


def test_a_block_damaged_after_it_was_opened_is_not_read(caller: Caller) -> None:
    blocks = prompt(1)
    caller.put(blocks)
    opened = caller.ask("Open", **caller.about(blocks))
    flip(caller, opened.slot_offsets[0] + HEAD + 300)  # layer 1
    layers = [pb.Fragment(layer_first=layer, layers=1) for layer in range(2)]
    assert caller.read(opened.handles[0], layers[0]) == payload(blocks.hashes[0])[:256]
    found = refused(lambda: caller.read(opened.handles[0], layers[1]))
    assert found.kind == "Lapsed" and "damaged" in found.text
    assert caller.match(blocks) == (0, pb.DAMAGED)
    assert caller.counters()["damaged_blocks"] == 1


def test_a_strip_of_many_messages_is_verified_before_its_first_byte_is_sent(
    caller: Caller,
) -> None:
    caller.register(LARGE)
    blocks, layout = prompt(1, 1, LARGE), SlotLayout.of(LARGE, 0)
    caller.put(blocks, spec=LARGE)
    opened = caller.ask("Open", **caller.about(blocks, LARGE))
    at = opened.slot_offsets[0] + layout.head_bytes
    flip(caller, at + layout.strip_stride + (1 << 20) + 5)  # the second message of layer 1
    request = pb.ReadRequest(session=caller.session, handle=opened.handles[0])
    received: list[bytes] = []
    found = refused(lambda: received.extend(part.data for part in caller.kv.Read(request)))
    assert found.kind == "Lapsed"
    assert b"".join(received) == payload(blocks.hashes[0], LARGE)[: layout.strip_stride]
