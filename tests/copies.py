"""Callers that put blocks for several nodes, and see which node has them itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from kvstore.block import Chain
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    CALL_SECONDS,
    Caller,
    NodeProcess,
    eventually,
    pairs,
    payload,
    prompt,
    put_parts,
)

_numbers = itertools.count(1_000_000)  # of prompts that no test puts


def put(
    caller: Caller,
    blocks: Chain,
    first: int = 0,
    last: int | None = None,
    **fields: Any,
) -> pb.PutReply:
    """Put blocks [first, last) of a chain; `fields` stand in each PutBlock."""
    payloads = [payload(name, tokens=count) for name, count in pairs(blocks)]
    parts = list(put_parts(blocks, payloads, **fields))
    at = [i for i, part in enumerate(parts) if part.HasField("block")] + [len(parts)]
    some = parts[at[first] : at[len(blocks) if last is None else last]]
    return caller.kv.Put(iter(some), timeout=CALL_SECONDS)


def copied(
    caller: Caller,
    blocks: Chain,
    count: int,
    first: int = 0,
    last: int | None = None,
    **fields: Any,
) -> list[pb.PutReply.Stored]:
    """Put blocks for so many nodes, and again until that many have them; what came of the first
    put. On a busy machine a node answers late, and is then left alone for a moment."""
    asked: list[pb.PutReply] = []

    def all_have_them() -> bool:
        asked.append(put(caller, blocks, first, last, replicas=count, **fields))
        return set(asked[-1].copies) == {count}

    eventually(all_have_them, 60.0)
    return list(asked[0].stored)


def holding(callers: Sequence[Caller], blocks: Chain) -> list[int]:
    """How many leading blocks each node lists itself: it does not look for these elsewhere."""
    found = []
    for caller in callers:
        reply = caller.ask("Open", **caller.about(blocks), lineage=True)
        hits = [one == pb.HIT for one in reply.outcomes]
        found.append(hits.index(False) if False in hits else len(hits))
        if handles := [one for one in reply.handles if one]:
            caller.ask("Close", handles=handles)
    return found


def between(caller: Caller, blocks: Chain) -> list[bytes]:
    """Stored keys of all blocks but the last, as a node that asks for lineage is told them."""
    reply = caller.ask("Open", **caller.about(blocks), lineage=True)
    caller.ask("Close", handles=reply.handles)
    return [one for one in reply.parents if one]


def knowing(nodes: Sequence[NodeProcess]) -> list[Caller]:
    """A caller of each, once each of them has learned of all others and can reach them."""
    callers = [node.caller() for node in nodes]
    for caller in callers:
        caller.register()
    for caller in callers:
        eventually(lambda caller=caller: _reaches(caller, len(nodes)), 30.0)
    return callers


def _reaches(caller: Caller, count: int) -> bool:
    reply = put(caller, prompt(next(_numbers)), replicas=count)
    return list(reply.copies) == [count]
