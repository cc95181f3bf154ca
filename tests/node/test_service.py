"""Every wrong call to the KV service is refused by name, and changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from kvstore.limits import (
    NAME_BYTES_MAX,
    PIN_MS_MAX,
    RPC_KEYS_MAX,
    RPC_MESSAGE_BYTES_MAX,
    SPECS_BYTES_MAX,
)
from kvstore.wire.v1 import kv_pb2 as pb
from kvstore.wire.v1 import kv_pb2_grpc
from tests.nodes import (
    SPEC,
    Caller,
    NodeProcess,
    mapped,
    prompt,
    put_parts,
    refused,
)

CODE = grpc.StatusCode
numbers = itertools.count(1)
ELSEWHERE = dataclasses.replace(SPEC, dtype="bfloat16")
HALF = pb.Fragment(heads=1)  # head 0 of every layer


class Desk:
    """What a call can be wrong about: a sealed block, windows, pins, and a second caller."""

    def __init__(self, caller: Caller, other: Caller) -> None:
        self.caller, self.other = caller, other
        self.sealed, self.fresh = prompt(next(numbers), 2), prompt(next(numbers))
        caller.put(self.sealed)
        self.window = caller.reserve(self.fresh, writer_group="tp2", fragment=HALF).handles[0]
        caller.write(self.window, bytes(256), HALF)
        half_written = prompt(next(numbers))
        self.half_written = caller.reserve(half_written).handles[0]
        caller.write(self.half_written, bytes(256), HALF)
        self.pin = caller.ask("Pin", **caller.about(self.sealed)).handles[0]
        self.lapsed = caller.ask("Pin", **caller.about(self.sealed), pin_ms=1).handles[0]
        time.sleep(0.002)

    def put(self, data: bytes, **header: Any) -> Any:
        sent = put_parts(prompt(next(numbers)), [data], SPEC, **header)
        return self.caller.kv.Put(sent, timeout=20)

    def session_of(self, token: bytes) -> dict[str, Any]:
        return {"session": token, **self.caller.about(self.sealed)}


def write_and_more(d: Desk) -> Any:
    """A Write of the right size, and a byte after it."""
    target = pb.WriteRequest.Target(
        session=d.caller.session,
        handle=d.half_written,
        fragment=pb.Fragment(head_first=1),
        payload_bytes=256,
    )
    data = [pb.WriteRequest(data=bytes(n)) for n in (256, 1)]
    return d.caller.kv.Write(iter([pb.WriteRequest(target=target), *data]), timeout=20)


# Counted, as they should be: a session began, a pin ended by itself, a Put was begun and given up.
COUNTED = {"sessions", "expired_pins", "put_bytes", "aborted_blocks"}


def everything(caller: Caller) -> dict[str, Any]:
    """What a refused call must leave as it was."""
    stats = caller.stats()
    counters = {name: n for name, n in stats.counters.items() if name not in COUNTED}
    stats.ClearField("counters")
    stats.ClearField("sessions")
    stats.ClearField("resident_bytes")
    stats.ClearField("pins")  # those that have expired go by themselves
    return {"stats": str(stats), **counters}


@pytest.fixture
def desk(shared: Caller, shared_node: NodeProcess) -> Iterator[Desk]:
    other = Caller(shared_node.address, "other")
    made = Desk(shared, other)
    yield made
    other.close()


def off_by_one(**fields: Any) -> str:
    """The canonical spec with one field changed or added."""
    return json.dumps({**SPEC.as_dict(), **fields}, sort_keys=True, separators=(",", ":"))


def forged(handle: bytes) -> bytes:
    return handle[:-1] + bytes([handle[-1] ^ 1])


WRONG: dict[str, tuple[Callable[[Desk], Any], grpc.StatusCode, str, tuple[str, ...]]] = {
    "namespace not registered": (
        lambda d: d.caller.ask("Match", namespace=ELSEWHERE.digest, hashes=d.sealed.hashes),
        *(CODE.NOT_FOUND, "UnknownNamespace", (ELSEWHERE.digest.hex()[:12], "Register")),
    ),
    "namespace of a wrong length": (
        lambda d: d.caller.ask("Match", namespace=b"12345", hashes=d.sealed.hashes),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("namespace is 5 bytes", "32")),
    ),
    "group that is not there": (
        lambda d: d.caller.ask("Exists", namespace=SPEC.digest, group=3, hashes=d.sealed.hashes),
        *(CODE.OUT_OF_RANGE, "OutOfRange", ("group 3", "groups 0..0")),
    ),
    "spec that differs in one field": (
        lambda d: d.caller.ask("Register", spec=ELSEWHERE.canonical(), namespace=SPEC.digest),
        *(CODE.FAILED_PRECONDITION, "SpecMismatch", ("dtype", "'float16'", "'bfloat16'")),
    ),
    "spec that is not the one expected": (
        lambda d: d.caller.ask("Register", spec=SPEC.canonical(), namespace=b"n" * 32),
        CODE.FAILED_PRECONDITION,
        "SpecMismatch",
        (SPEC.digest.hex()[:12], (b"n" * 32).hex()[:12], "no spec is registered"),
    ),
    "unknown field in the spec": (
        lambda d: d.caller.ask("Register", spec=off_by_one(dtpye="float16")),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("spec.dtpye", "dtype")),
    ),
    "spec that is no JSON": (
        lambda d: d.caller.ask("Register", spec="{'model': 1}"),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("not JSON",)),
    ),
    "spec as long as all may be together": (
        lambda d: d.caller.ask("Register", spec=" " * (SPECS_BYTES_MAX + 1)),
        *(CODE.INVALID_ARGUMENT, "Invalid", (str(SPECS_BYTES_MAX + 1), str(SPECS_BYTES_MAX))),
    ),
    "hash of a wrong length": (
        lambda d: d.caller.ask("Match", namespace=SPEC.digest, hashes=[b"h" * 32, b"h" * 31]),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("hashes[1] is 31 bytes", "32")),
    ),
    "parent of a wrong length": (
        lambda d: d.caller.reserve(prompt(next(numbers)), parent=b"p"),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("parent is 1 bytes", "32")),
    ),
    "a parent of blocks that stand alone": (
        lambda d: d.caller.reserve(prompt(next(numbers)), parent=b"p" * 32, alone=True),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("alone and parent", "no block before it")),
    ),
    "no hashes": (
        lambda d: d.caller.ask("Open", namespace=SPEC.digest),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("0 hashes", str(RPC_KEYS_MAX))),
    ),
    "too many hashes": (
        lambda d: d.caller.ask(
            "Match", namespace=SPEC.digest, hashes=[b"h" * 32] * (RPC_KEYS_MAX + 1)
        ),
        *(CODE.INVALID_ARGUMENT, "Invalid", (str(RPC_KEYS_MAX + 1), str(RPC_KEYS_MAX))),
    ),
    "too many handles": (
        lambda d: d.caller.ask("Seal", handles=[b"h"] * (RPC_KEYS_MAX + 1)),
        *(CODE.INVALID_ARGUMENT, "Invalid", (f"{RPC_KEYS_MAX + 1} handles", str(RPC_KEYS_MAX))),
    ),
    "more tokens than a block has": (
        lambda d: d.caller.ask("Match", **d.caller.about(d.sealed), last_tokens=5),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("tokens 5", "at most 4")),
    ),
    "payload of a wrong size": (
        lambda d: d.put(bytes(511)),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("payload_bytes is 511", "512")),
    ),
    "payload that ends early": (
        lambda d: d.put(bytes(500), payload_bytes=512),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("12 bytes before its announced end",)),
    ),
    "payload that goes on": (
        lambda d: d.put(bytes(513), payload_bytes=512),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("513 bytes came", "512")),
    ),
    "data before its block": (
        lambda d: d.caller.kv.Put(iter([pb.PutRequest(data=bytes(512))]), timeout=20),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("data before its PutBlock",)),
    ),
    "wrong dtype in Put": (
        lambda d: d.put(bytes(512), dtype="float32"),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("dtype is float32", "float16")),
    ),
    "wrong dtype in Write": (
        lambda d: d.caller.write(
            d.half_written, bytes(256), pb.Fragment(head_first=1), dtype="int8"
        ),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("dtype is int8", "float16")),
    ),
    "wrong size in Write": (
        lambda d: d.caller.write(d.half_written, bytes(255), pb.Fragment(head_first=1)),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("payload_bytes is 255", "256")),
    ),
    "more data than a Write announced": (
        write_and_more,
        *(CODE.INVALID_ARGUMENT, "Invalid", ("announced 256 bytes",)),
    ),
    "data piece above 1 MiB": (
        lambda d: d.caller.kv.Put(iter([pb.PutRequest(data=bytes((1 << 20) + 1))]), timeout=20),
        *(CODE.INVALID_ARGUMENT, "Invalid", (str((1 << 20) + 1), str(1 << 20))),
    ),
    "layer out of range": (
        lambda d: d.caller.reserve(
            prompt(next(numbers)), fragment=pb.Fragment(layer_first=1, layers=2)
        ),
        *(CODE.OUT_OF_RANGE, "OutOfRange", ("layers 1..2", "layers 0..1")),
    ),
    "first layer out of range": (
        lambda d: d.caller.read(d.pin, pb.Fragment(layer_first=7)),
        *(CODE.OUT_OF_RANGE, "OutOfRange", ("layers 7..", "layers 0..1")),
    ),
    "head out of range": (
        lambda d: d.caller.read(d.pin, pb.Fragment(head_first=2, heads=1)),
        *(CODE.OUT_OF_RANGE, "OutOfRange", ("heads 2..2", "heads 0..1")),
    ),
    "fragment outside the window": (
        lambda d: d.caller.write(d.window, bytes(512), pb.Fragment()),
        *(CODE.OUT_OF_RANGE, "OutOfRange", ("heads 0..1", "heads 0..0")),
    ),
    "fragment written twice": (
        lambda d: d.caller.write(d.half_written, bytes(512)),
        *(CODE.ALREADY_EXISTS, "AlreadyWritten", ("layers 0..0 of heads 0..0", "once")),
    ),
    "fragment that another member of the group has": (
        lambda d: d.other.reserve(d.fresh, writer_group="tp2"),
        *(CODE.ALREADY_EXISTS, "AlreadyWritten", ("heads 0..1", "heads 0..0", "'tp2'")),
    ),
    "block of another length in one group": (
        lambda d: d.other.ask(
            *("Reserve",), **d.other.about(d.fresh), last_tokens=3, writer_group="tp2"
        ),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("tokens 3", "4")),
    ),
    "a hash twice in one call": (
        lambda d: d.caller.ask("Reserve", namespace=SPEC.digest, hashes=[b"h" * 32] * 2),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("stands twice",)),
    ),
    "writer group with a zero byte": (
        lambda d: d.caller.reserve(prompt(next(numbers)), writer_group="\0001"),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("writer_group",)),
    ),
    "label too long": (
        lambda d: next(d.caller.kv.Session(pb.SessionRequest(label="x" * (NAME_BYTES_MAX + 1)))),
        *(CODE.INVALID_ARGUMENT, "Invalid", (str(NAME_BYTES_MAX + 1), str(NAME_BYTES_MAX))),
    ),
    "seal with a fragment missing": (
        lambda d: d.caller.ask("Seal", handles=[d.half_written]),
        *(CODE.FAILED_PRECONDITION, "Incomplete", ("heads 1..1 not written", "heads 0..1")),
    ),
    "seal by another session": (
        lambda d: d.other.ask("Seal", handles=[d.window]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("handles[0]", "another session", "its own writer")),
    ),
    "abort by another session": (
        lambda d: d.other.ask("Abort", handles=[d.window]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("handles[0]", "another session")),
    ),
    "close by another session": (
        lambda d: d.other.ask("Close", handles=[d.pin]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("handles[0]", "another session")),
    ),
    "write by another session": (
        lambda d: d.other.write(d.half_written, bytes(256), pb.Fragment(head_first=1)),
        *(CODE.PERMISSION_DENIED, "NotYours", ("another session",)),
    ),
    "unpin of an expired pin": (
        lambda d: d.caller.ask("Unpin", handles=[d.pin, d.lapsed]),
        *(CODE.FAILED_PRECONDITION, "PinExpired", ("handles[1]", "expired", "the block again")),
    ),
    "unpin that tells of more hits than looks": (
        lambda d: d.caller.ask("Unpin", handles=[d.pin], query_tokens=1, hit_tokens=2),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("hit_tokens 2 of query_tokens 1",)),
    ),
    "durable seal without an SSD": (
        lambda d: d.caller.ask("Seal", handles=[d.window], durable=True),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("durable", "--ssd")),
    ),
    "durable put without an SSD": (
        lambda d: d.put(bytes(512), durable=True),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("durable", "--ssd")),
    ),
    "renewal of an expired pin": (
        lambda d: d.caller.ask("Renew", handles=[d.lapsed]),
        *(CODE.FAILED_PRECONDITION, "PinExpired", ("expired", "open the block again")),
    ),
    "read behind an expired pin": (
        lambda d: d.caller.read(d.lapsed),
        *(CODE.FAILED_PRECONDITION, "PinExpired", ("expired", "open the block again")),
    ),
    "pin for too long": (
        lambda d: d.caller.ask("Pin", **d.caller.about(d.sealed), pin_ms=PIN_MS_MAX + 1),
        *(CODE.INVALID_ARGUMENT, "Invalid", (str(PIN_MS_MAX + 1), str(PIN_MS_MAX))),
    ),
    "truncated handle": (
        lambda d: d.caller.ask("Seal", handles=[d.window[:-3]]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("handles[0] is 70 bytes", "73")),
    ),
    "forged handle": (
        lambda d: d.caller.ask("Seal", handles=[forged(d.window)]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("not made by this node",)),
    ),
    "handle for another use": (
        lambda d: d.caller.ask("Seal", handles=[d.pin]),
        *(CODE.PERMISSION_DENIED, "NotYours", ("a READ handle", "WRITE")),
    ),
    "fewer hand-offs than hashes": (
        lambda d: d.caller.ask("Open", **d.caller.about(d.sealed), hand_offs=[b""]),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("1 hand_offs for 2 hashes",)),
    ),
    "blocks that nobody pins for a reader who maps nothing": (
        lambda d: d.caller.ask("Open", **d.caller.about(d.sealed), unpinned=True),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("unpinned", "maps this node's memory")),
    ),
    "suspect that is not closed": (
        lambda d: d.caller.ask("Close", handles=[d.pin], suspects=[d.lapsed]),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("suspects[0]",)),
    ),
    "more suspects than are closed": (
        lambda d: d.caller.ask("Close", handles=[d.pin], suspects=[d.pin, d.pin]),
        *(CODE.INVALID_ARGUMENT, "Invalid", ("2 suspects among 1 handles",)),
    ),
    "unknown session": (
        lambda d: d.caller.ask("Pin", **d.session_of(b"s" * 16)),
        *(CODE.FAILED_PRECONDITION, "SessionEnded", ("not known here", "Session stream")),
    ),
    "no session": (
        lambda d: d.caller.ask("Open", **d.session_of(b"")),
        *(CODE.FAILED_PRECONDITION, "SessionEnded", ("Session stream",)),
    ),
}


@pytest.mark.parametrize(
    "beside",
    [
        {"hand_offs": [b"one", b""]},
        {"writer_group": "tp2"},
        {"pin_ms": 1},
        {"read_ahead": pb.ReadAhead(connections=[1])},
        {"stored_keys": [b"k" * 32]},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_what_needs_a_pin_is_not_had_without(desk: Desk, beside: dict[str, Any]) -> None:
    about = {"session": desk.caller.session, **desk.caller.about(desk.sealed)}
    with mapped(desk.caller):
        seen = desk.caller.kv.Open(pb.OpenRequest(**about, unpinned=True))
        assert list(seen.outcomes) == [pb.HIT] * 2 and not seen.handles
        request = pb.OpenRequest(**about, **beside, unpinned=True)
        said = refused(lambda: desk.caller.kv.Open(request))
        assert said.code is CODE.INVALID_ARGUMENT and "unpinned: no hand_offs" in said.text


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_is_refused_by_name_and_changes_nothing(desk: Desk, what: str) -> None:
    call, code, kind, words = WRONG[what]
    before = everything(desk.caller)
    found = refused(lambda: call(desk))
    assert (found.code, found.kind) == (code, kind), found
    assert all(word in found.text for word in words), found
    assert everything(desk.caller) == before
    # What the refused call meant to touch is as good as before.
    assert desk.caller.get(desk.sealed)[0] == [pb.HIT] * 2
    desk.caller.write(desk.half_written, bytes(256), pb.Fragment(head_first=1))
    assert list(desk.caller.ask("Seal", handles=[desk.half_written, desk.window]).sealed) == [
        pb.SealReply.SEALED,
        pb.SealReply.WAITING,
    ]
    assert list(desk.caller.ask("Close", handles=[desk.pin]).held) == [True]


def test_a_message_over_the_limit_is_refused_with_both_sizes(desk: Desk) -> None:
    unbounded = [("grpc.max_send_message_length", -1)]
    channel = grpc.insecure_channel(desk.caller.address, options=unbounded)
    kv = kv_pb2_grpc.KVStub(channel)
    before = everything(desk.caller)
    size = RPC_MESSAGE_BYTES_MAX + 1
    for call in (
        lambda: kv.Match(pb.MatchRequest(namespace=bytes(size)), timeout=20),
        lambda: kv.Put(iter([pb.PutRequest(data=bytes(size))]), timeout=20),
    ):
        found = refused(call)
        assert found.code is CODE.RESOURCE_EXHAUSTED and str(RPC_MESSAGE_BYTES_MAX) in found.text
        assert found.text.count(str(size)[:5]) == 2, "it says how much was sent, too"
    channel.close()
    assert everything(desk.caller) == before
