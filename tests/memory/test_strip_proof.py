"""A payload is held against its strip table whatever the pieces it comes in."""

from __future__ import annotations

import random

import pytest

from kvstore.layout import TABLE_OFFSET
from kvstore.memory.strip_proof import StripProof
from tests.node.rig import LARGE, SMALL, Place, Rig, prompt


def sealed(place: Place, tokens: int) -> tuple[bytearray, bytearray]:
    """Head and payload of a sealed block, as they lie in its slot."""
    rig, layout = Rig(), place.layout
    (slot,) = rig.put(rig.session(), place, prompt(place, tokens))
    whole = bytearray(rig.blocks.view[slot.offset : slot.offset + layout.slot_bytes])
    return whole[: layout.head_bytes], whole[layout.head_bytes :]


def proven(head: bytearray, payload: bytearray, place: Place, tokens: int, seed: int) -> bool:
    rng, at = random.Random(seed), 0
    proof = StripProof(memoryview(head), tokens, place.layout)
    while at < len(payload):
        size = rng.choice([1, 7, 64, 513, 4096])
        if not proof.take(memoryview(payload)[at : at + size]):
            return False
        at += size
    return True


@pytest.mark.parametrize("tokens", [1, 3, 4])
@pytest.mark.parametrize("place", [SMALL, LARGE], ids=["small", "large"])
def test_every_byte_of_every_strip_counts_and_no_other(place: Place, tokens: int) -> None:
    head, payload = sealed(place, tokens)
    layout = place.layout
    assert all(proven(head, payload, place, tokens, seed) for seed in range(5))
    rng = random.Random(tokens)
    for seed in range(40):
        at = rng.randrange(len(payload))
        payload[at] ^= 1
        in_a_strip = at < layout.payload_bytes
        in_a_strip &= at % layout.strip_stride < tokens * layout.token_bytes
        assert proven(head, payload, place, tokens, seed) is not in_a_strip
        payload[at] ^= 1


def test_another_table_is_not_believed() -> None:
    head, payload = sealed(SMALL, 4)
    head[TABLE_OFFSET + 9] ^= 1
    assert not proven(head, payload, SMALL, 4, 0)
