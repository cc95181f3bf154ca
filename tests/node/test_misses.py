"""A block that cannot be had is an answer with its reason; a pin holds what can, for its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from kvstore.limits import HOLDS_MAX, RPC_KEYS_MAX, SPECS_BYTES_MAX
from kvstore.spec import KVGroup, KVSpec
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    LARGE,
    SPEC,
    Caller,
    Refusal,
    eventually,
    payload,
    prompt,
    put_parts,
    refused,
)

CODE = grpc.StatusCode
ROOM = 16 << 20 >> 13  # slots of 8 KiB in a node's 16 MiB


def seen(caller: Caller, block: bytes) -> set[int]:
    """What Match, Exists, Open, Pin and Get say of one block."""
    about = {"namespace": SPEC.digest, "hashes": [block]}
    found = {
        caller.ask("Match", **about).reason,
        caller.ask("Exists", **about).outcomes[0],
        caller.ask("Pin", **about).outcomes[0],
        *(part.block.outcome for part in caller.kv.Get(pb.GetRequest(**about))),
    }
    opened = caller.ask("Open", **about)
    assert opened.outcomes[0] == pb.HIT or opened.handles[0] == b""
    return found | {opened.outcomes[0]}


def test_each_reason_for_a_miss_is_told_alike_by_every_call(caller: Caller) -> None:
    absent, filling, gone = prompt(1), prompt(2), prompt(3)
    behind, kept = prompt(4, 3), prompt(5)
    assert seen(caller, absent.hashes[0]) == {pb.ABSENT}
    window = caller.reserve(filling)
    assert seen(caller, filling.hashes[0]) == {pb.UNSEALED}
    caller.ask("Abort", handles=window.handles)
    assert seen(caller, filling.hashes[0]) == {pb.ABSENT}
    caller.put(gone)
    assert caller.ask("Remove", **caller.about(gone)).removed == 1
    assert seen(caller, gone.hashes[0]) == {pb.REMOVED}
    caller.put(behind)
    assert seen(caller, behind.hashes[2]) - {pb.ABSENT} == {pb.HIT}
    caller.ask("Remove", namespace=SPEC.digest, hashes=[behind.hashes[1]])
    assert seen(caller, behind.hashes[1]) == {pb.REMOVED}
    assert seen(caller, behind.hashes[2]) == {pb.UNLISTED}
    assert caller.match(behind) == (1, pb.REMOVED)
    caller.put(kept)
    old = prompt(6)
    caller.put(old)
    for first in range(100, 100 + 2 * ROOM, 512):  # one prompt after another, until room is made
        caller.ask("Match", **caller.about(kept))
        caller.put(prompt(first, 512))
    assert seen(caller, old.hashes[0]) == {pb.EVICTED}
    assert seen(caller, kept.hashes[0]) == {pb.HIT}


def test_one_call_tells_hits_and_misses_apart(caller: Caller) -> None:
    there, absent = prompt(1, 3, last=2), prompt(2)
    caller.put(there)
    asked = [there.hashes[0], absent.hashes[0], there.hashes[2]]
    about = {"namespace": SPEC.digest, "hashes": asked}
    wanted = [pb.HIT, pb.ABSENT, pb.HIT]
    assert list(caller.ask("Exists", **about).outcomes) == wanted
    opened = caller.ask("Open", **about)
    assert list(opened.outcomes) == wanted and list(opened.tokens) == [4, 0, 2]
    assert [len(root) for root in opened.roots] == [16, 0, 16]
    assert [bool(handle) for handle in opened.handles] == [True, False, True]
    assert caller.read(opened.handles[2]) == payload(there.hashes[2], tokens=2)
    parts = list(caller.kv.Get(pb.GetRequest(**about)))
    assert [p.block.outcome for p in parts if p.HasField("block")] == wanted
    assert caller.match(there) == (3, pb.HIT)


def test_a_block_is_found_under_its_own_namespace_only(caller: Caller) -> None:
    caller.register(LARGE)
    blocks = prompt(1, 2)
    caller.put(blocks)
    assert caller.get(blocks, LARGE)[0] == [pb.ABSENT] * 2
    assert caller.match(blocks, LARGE) == (0, pb.ABSENT)
    assert caller.ask("Remove", **caller.about(blocks, LARGE)).removed == 0
    assert caller.get(blocks)[0] == [pb.HIT] * 2, "nobody took it for a damaged block"


def test_a_pin_ends_by_the_nodes_clock_and_then_the_block_may_go(caller: Caller) -> None:
    held, free = prompt(1), prompt(2)
    caller.put(held)
    caller.put(free)
    pinned = caller.ask("Open", **caller.about(held), pin_ms=600_000)
    lapsing = caller.ask("Open", **caller.about(free), pin_ms=1)
    eventually(lambda: caller.stats().pins == 1)
    assert caller.counters()["expired_pins"] == 1
    for number in range(100, 100 + 2 * ROOM, 512):
        caller.put(prompt(number, 512))
    assert caller.match(free) == (0, pb.EVICTED)
    assert caller.match(held) == (1, pb.HIT)
    handles = [pinned.handles[0], lapsing.handles[0]]
    assert list(caller.ask("Close", handles=handles).held) == [True, False]


def test_a_renewed_pin_outlives_its_first_time(caller: Caller) -> None:
    blocks = prompt(1)
    caller.put(blocks)

    def renewed() -> Any:
        handles = caller.ask("Pin", **caller.about(blocks), pin_ms=300).handles
        try:
            caller.ask("Renew", handles=handles, pin_ms=600_000)
        except grpc.RpcError as error:
            assert Refusal(error).kind == "PinExpired", error  # this test was late
            return None
        return handles

    handles = eventually(renewed)
    time.sleep(0.6)
    assert caller.read(handles[0]) == payload(blocks.hashes[0])
    caller.ask("Unpin", handles=handles)
    assert caller.stats().pins == 0
    found = refused(lambda: caller.ask("Unpin", handles=handles))
    assert found.code is CODE.FAILED_PRECONDITION


def test_a_pool_full_of_pinned_blocks_is_overloaded_until_one_is_let_go(caller: Caller) -> None:
    pinned = []
    for number in range(0, ROOM, 512):
        blocks = prompt(number + 1, 512)
        caller.put(blocks)
        pinned += caller.ask("Pin", **caller.about(blocks), pin_ms=600_000).handles
    before = caller.stats()
    assert before.slabs_empty == 0 and before.pins == ROOM
    blocks = prompt(9_999)
    reserve = pb.ReserveRequest(session=caller.session, **caller.about(blocks))

    def in_time(call: Callable[[], Any]) -> Refusal | None:
        """How it is refused, unless the refusal came later than the call waited for it."""
        found = refused(call)
        return None if found.code is CODE.DEADLINE_EXCEEDED else found

    for call in (
        lambda: caller.kv.Put(put_parts(blocks, [payload(blocks.hashes[0])]), timeout=0.5),
        lambda: caller.kv.Reserve(reserve, timeout=0.5),
    ):
        found = eventually(partial(in_time, call))
        assert (found.code, found.kind) == (CODE.RESOURCE_EXHAUSTED, "Overloaded"), found
        assert found.retry_after_ms > 0 and "pinned" in found.text
    after = caller.stats()
    assert (after.blocks, after.windows, after.pins) == (before.blocks, 0, before.pins)
    caller.ask("Unpin", handles=pinned[-1:])
    assert caller.put(prompt(9_999)) == [pb.PutReply.STORED]
    assert caller.get(prompt(9_999))[0] == [pb.HIT]


def test_pins_are_limited_so_that_their_memory_is(caller: Caller) -> None:
    blocks = prompt(1)
    caller.put(blocks)
    many = list(blocks.hashes) * RPC_KEYS_MAX
    for _ in range(HOLDS_MAX * 3 // 4 // RPC_KEYS_MAX):
        caller.ask("Pin", namespace=SPEC.digest, hashes=many)
    found = refused(lambda: caller.ask("Pin", **caller.about(blocks)))
    assert (found.code, found.kind) == (CODE.RESOURCE_EXHAUSTED, "Overloaded")
    assert str(HOLDS_MAX) in found.text and found.retry_after_ms > 0
    caller.stream.cancel()
    other = Caller(caller.address)
    eventually(lambda: other.stats().pins == 0)
    assert other.ask("Pin", **other.about(blocks)).outcomes[0] == pb.HIT
    other.close()


def test_specs_are_limited_so_that_their_memory_is(caller: Caller) -> None:
    layers = range(1_000_000, 1_004_000)
    long = [KVSpec(f"m{i}", "r", "int8", (KVGroup(tuple(layers), 1, 1, 1),)) for i in range(40)]
    size = len(long[0].canonical())
    fit = SPECS_BYTES_MAX // size
    for spec in long[:fit]:
        assert caller.register(spec) == spec.digest
    found = refused(lambda: caller.register(long[fit]))
    assert (found.code, found.kind) == (CODE.RESOURCE_EXHAUSTED, "Overloaded")
    assert str(SPECS_BYTES_MAX) in found.text
    assert len(caller.stats().namespaces) == fit + 1, "what is known can still be told"
    assert caller.register(long[0]) == long[0].digest, "what is known needs no room"
