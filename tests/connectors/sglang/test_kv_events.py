"""SGLang's own event classes, as it encodes them, are read as what they say."""

from __future__ import annotations

import msgspec
import pytest

from kvstore.block import chain
from kvstore.client.kv_events.messages import Cleared, Messages, Removed, Stored
from kvstore.client.kv_events.translation import Translation
from kvstore.naming import names_of
from tests.nodes import SPEC

events = pytest.importorskip("sglang.srt.disaggregation.kv_events")
GPU, CPU = events.StorageMedium.GPU, events.StorageMedium.CPU
TOKENS = list(range(100, 132))


def stored(hashes: list[int], parent: int | None, tokens: list[int], **fields: object) -> object:
    of = {"medium": GPU, **fields}
    return events.BlockStored(hashes, parent, tokens, len(tokens) // len(hashes), None, **of)


def encoded(*some: object) -> bytes:
    batch = events.KVEventBatch(ts=1.5, events=list(some), attn_dp_rank=1)
    return msgspec.msgpack.Encoder().encode(batch)


def test_what_sglang_says_is_read() -> None:
    messages = Messages()
    found = messages.read(
        encoded(
            stored([-5, 6], None, TOKENS, session_id="s"),
            events.BlockRemoved([6], medium=GPU),
            events.AllBlocksCleared(),
            stored([7], None, TOKENS, medium=CPU),
            stored([8], None, TOKENS, cache_salt="mine"),
            stored([9], None, TOKENS, lora_name="sql"),
        )
    )
    first, *others = found
    assert isinstance(first, Stored) and (first.hashes, first.parent) == ((-5, 6), None)
    assert first.tokens.tolist() == TOKENS and first.block_tokens == 16
    assert others == [Removed((6,)), Cleared()]
    assert messages.passed_over == {"other memory": 1, "key unknown": 2}


def test_its_pages_are_blocks_of_ours() -> None:
    read = Messages().read(encoded(stored([1, 2], None, TOKENS), stored([3], 2, TOKENS[:16])))
    change = Translation(names_of(SPEC.digest, 0, 16), 16).take(read)
    assert tuple(change.held) == chain(SPEC.digest, 0, TOKENS + TOKENS[:16], 16).hashes
