"""Blocks as streams of bytes: whole, in parts, behind a writer, and broken off half-way."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from kvstore.limits import RPC_BULK_MAX
from kvstore.wire.v1 import kv_pb2 as pb
from tests.nodes import (
    CALL_SECONDS,
    LARGE,
    LAYOUT,
    SPEC,
    Caller,
    NodeProcess,
    Refusal,
    eventually,
    payload,
    prompt,
    put_parts,
    refused,
)

CODE = grpc.StatusCode
LAYER_0, LAYER_1 = pb.Fragment(layers=1), pb.Fragment(layer_first=1, layers=1)


class Behind(threading.Thread):
    """A reader that collects what a Read sends, as it comes."""

    def __init__(self, caller: Caller, handle: bytes) -> None:
        super().__init__(daemon=True)
        self.pieces: queue.Queue[bytes] = queue.Queue()
        self.failure: Refusal | None = None
        request = pb.ReadRequest(session=caller.session, handle=handle)
        self.call = caller.kv.Read(request, timeout=CALL_SECONDS)
        self.start()

    def run(self) -> None:
        try:
            for part in self.call:
                self.pieces.put(part.data)
        except grpc.RpcError as error:
            self.failure = Refusal(error)

    def end(self) -> Refusal | None:
        self.join(CALL_SECONDS)
        assert not self.is_alive(), "the Read neither ended nor failed"
        return self.failure


class Sender:
    """A request stream that sends what it is told to, and stays open."""

    def __init__(self) -> None:
        self._parts: queue.Queue[Any] = queue.Queue()

    def send(self, part: Any) -> None:
        self._parts.put(part)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts.get, None)


def followed(writer: Caller, reader: Caller, number: int) -> tuple[bytes, Behind]:
    """A window's handle, and a reader that follows it by its hand-off."""
    blocks = prompt(number)
    window = writer.reserve(blocks, hand_off=True)
    opened = reader.ask("Open", **reader.about(blocks), hand_offs=window.hand_offs)
    assert list(opened.outcomes) == [pb.HIT] and opened.roots[0] == b""
    return window.handles[0], Behind(reader, opened.handles[0])


def test_blocks_of_any_size_come_back_as_they_went_in(shared: Caller) -> None:
    for blocks, spec in ((prompt(1, 5, last=1), SPEC), (prompt(2, 3, LARGE, last=200), LARGE)):
        assert shared.put(blocks, spec=spec) == [pb.PutReply.STORED] * len(blocks)
        outcomes, found = shared.get(blocks, spec)
        wanted = [payload(h, spec, n) for h, n in zip(blocks.hashes, blocks.tokens, strict=True)]
        assert outcomes == [pb.HIT] * len(blocks) and found == wanted
        assert shared.put(blocks, spec=spec) == [pb.PutReply.EXISTED] * len(blocks)
        assert shared.match(blocks, spec) == (len(blocks), pb.HIT)


def test_every_fragment_of_a_block_can_be_written_and_read_by_itself(shared: Caller) -> None:
    blocks = prompt(3, last=3)
    data, strip = payload(blocks.hashes[0], tokens=3), 3 * LAYOUT.token_bytes
    strips = [data[i * strip : (i + 1) * strip] for i in range(4)]
    window = shared.reserve(blocks).handles[0]
    for i in (2, 0, 3, 1):
        layer, head = divmod(i, 2)
        one = pb.Fragment(layer_first=layer, layers=1, head_first=head, heads=1)
        shared.write(window, strips[i], one, dtype=SPEC.dtype)
    assert shared.ask("Seal", handles=[window]).sealed[0] == pb.SealReply.SEALED
    opened = shared.ask("Open", **shared.about(blocks)).handles[0]
    assert shared.read(opened) == data
    assert shared.read(opened, pb.Fragment(head_first=1)) == strips[1] + strips[3]
    assert shared.read(opened, LAYER_1) == strips[2] + strips[3]


def test_a_writer_group_of_two_sessions_makes_one_block(
    shared: Caller, shared_node: NodeProcess
) -> None:
    other, blocks = Caller(shared_node.address), prompt(4)
    halves = [pb.Fragment(heads=1), pb.Fragment(head_first=1)]
    ranks = list(zip((shared, other), halves, strict=True))
    windows = [rank.reserve(blocks, writer_group="g", fragment=half) for rank, half in ranks]
    assert windows[0].slot_offsets == windows[1].slot_offsets
    for (rank, half), window in zip(ranks, windows, strict=True):
        rank.write(window.handles[0], bytes([7]) * 256, half)
        assert shared.match(blocks) == (0, pb.UNSEALED)
        sealed = rank.ask("Seal", handles=window.handles).sealed[0]
    assert sealed == pb.SealReply.SEALED
    assert shared.get(blocks) == ([pb.HIT], [bytes([7]) * 512])
    other.close()


def test_layers_arrive_behind_their_writer_as_they_land(
    shared: Caller, shared_node: NodeProcess
) -> None:
    reader = Caller(shared_node.address)
    window, behind = followed(shared, reader, 5)
    for fragment, byte in ((LAYER_0, b"0"), (LAYER_1, b"1")):
        assert behind.pieces.empty(), "nothing comes before it is written"
        shared.write(window, byte * 256, fragment)
        assert behind.pieces.get(timeout=CALL_SECONDS) == byte * 256
    assert behind.end() is None, "it need not be sealed to be read"
    assert shared.match(prompt(5)) == (0, pb.UNSEALED)
    shared.ask("Seal", handles=[window])
    reader.close()


@pytest.mark.parametrize("how", ["abort", "end of session"])
def test_a_writer_that_gives_up_makes_its_reader_fail_and_not_hang(
    shared: Caller, shared_node: NodeProcess, how: str
) -> None:
    writer = Caller(shared_node.address)
    window, behind = followed(writer, shared, 6)
    writer.write(window, b"0" * 256, LAYER_0)
    assert behind.pieces.get(timeout=CALL_SECONDS) == b"0" * 256
    if how == "abort":
        writer.ask("Abort", handles=[window])
    else:
        writer.stream.cancel()
    failure = behind.end()
    assert failure is not None and failure.kind == "Lapsed", failure
    assert failure.code is CODE.FAILED_PRECONDITION and "given up" in failure.text
    assert shared.match(prompt(6)) == (0, pb.ABSENT)
    writer.close()


def test_a_reader_whose_pin_ends_while_it_waits_is_told_so(shared: Caller) -> None:
    blocks = prompt(7)
    window = shared.reserve(blocks, hand_off=True)
    opened = shared.ask("Open", **shared.about(blocks), hand_offs=window.hand_offs, pin_ms=50)
    failure = Behind(shared, opened.handles[0]).end()
    assert failure is not None and failure.kind == "PinExpired", failure
    shared.ask("Abort", handles=window.handles)


def test_a_put_that_breaks_off_leaves_nothing_behind(caller: Caller) -> None:
    caller.register(LARGE)
    before = caller.stats()
    sender, parts = Sender(), put_parts(prompt(1, 1, LARGE), [bytes(4 << 20)], LARGE)
    sender.send(next(parts))
    sender.send(next(parts))
    call = caller.kv.Put.future(iter(sender))
    eventually(lambda: caller.counters()["put_bytes"] == 1 << 20)
    assert caller.match(prompt(1, 1, LARGE), LARGE) == (0, pb.UNSEALED)
    call.cancel()
    eventually(lambda: caller.stats().windows == 0)
    after = caller.stats()
    assert (after.slabs_empty, after.blocks, after.sessions) == (
        before.slabs_empty,
        before.blocks,
        before.sessions,
    )
    sender.send(None)
    assert caller.put(prompt(1, 1, LARGE), spec=LARGE) == [pb.PutReply.STORED]


def test_a_write_that_breaks_off_can_be_finished_from_where_it_stood(caller: Caller) -> None:
    blocks = prompt(1)
    window = caller.reserve(blocks).handles[0]
    target = {"session": caller.session, "handle": window, "payload_bytes": 512}
    sender = Sender()
    sender.send(pb.WriteRequest(target=pb.WriteRequest.Target(**target)))
    sender.send(pb.WriteRequest(data=payload(blocks.hashes[0])[:200]))  # a strip and a half
    call = caller.kv.Write.future(iter(sender))
    eventually(lambda: caller.counters()["put_bytes"] == 200)
    found = refused(lambda: caller.write(window, bytes(512)))
    assert found.kind == "AlreadyWritten", "it is being written by the first call"
    call.cancel()
    sender.send(None)
    rest = payload(blocks.hashes[0])
    second = pb.Fragment(layers=1, head_first=1)

    def finished() -> bool:
        try:
            caller.write(window, rest[128:256], second)
        except grpc.RpcError as error:
            assert Refusal(error).kind == "AlreadyWritten"  # the broken call has not ended yet
            return False
        return True

    eventually(finished)
    caller.write(window, rest[256:], LAYER_1)
    assert caller.ask("Seal", handles=[window]).sealed[0] == pb.SealReply.SEALED
    assert caller.get(blocks) == ([pb.HIT], [rest])


def test_a_get_whose_caller_takes_nothing_and_hangs_up_holds_no_pin(caller: Caller) -> None:
    caller.register(LARGE)
    blocks = prompt(1, 2, LARGE)
    caller.put(blocks, spec=LARGE)
    other = Caller(caller.address)
    calls = [other.kv.Get(pb.GetRequest(**other.about(blocks, LARGE))) for _ in range(3)]
    eventually(lambda: caller.stats().pins == 3)
    time.sleep(0.1)  # the node now waits for room to send
    for call in calls:
        call.cancel()
    eventually(lambda: caller.stats().pins == 0)
    other.close()


def test_streams_beyond_the_limit_are_refused_at_once_and_let_in_later(caller: Caller) -> None:
    senders = [Sender() for _ in range(30)]
    calls = [caller.kv.Put.future(iter(sender), timeout=CALL_SECONDS) for sender in senders]
    surplus = len(calls) - 3 * RPC_BULK_MAX // 4  # a tenant that is alone gets no more
    eventually(lambda: sum(call.done() for call in calls) == surplus)
    refusals = [call for call in calls if call.done()]
    for call in refusals:
        found = Refusal(call.exception())
        assert (found.code, found.kind) == (CODE.RESOURCE_EXHAUSTED, "Overloaded"), found
        assert found.retry_after_ms > 0
    assert caller.match(prompt(1)) == (0, pb.ABSENT), "other calls are served meanwhile"
    for sender in senders:
        sender.send(None)
    for call in calls:
        if call not in refusals:
            assert not call.result().stored
    assert caller.put(prompt(1)) == [pb.PutReply.STORED]
