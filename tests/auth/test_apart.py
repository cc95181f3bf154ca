"""Two tenants who ask for the same prompt know nothing of each other, and hold nothing in common.

Which calls take a session or a handle is read from proto/: a new one has to say here how it is
asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from kvstore.wire.v1 import kv_pb2 as pb
from tests.auth.methods import METHODS
from tests.auth.people import People, caller_of
from tests.nodes import Caller, NodeProcess, prompt, refused

CODE = grpc.StatusCode
numbers = itertools.count(2_000_000)
HANDLES = {"handle", "handles", "suspects", "hand_offs"}


@pytest.fixture(scope="module")
def tenants(people: People, tls_node: NodeProcess) -> Iterator[tuple[Caller, Caller]]:
    yield caller_of(tls_node, people, "team-a"), caller_of(tls_node, people, "team-b")


def test_the_same_prompt_never_hits(tenants: tuple[Caller, Caller]) -> None:
    ours, other = tenants
    blocks = prompt(next(numbers), 3)
    assert ours.put(blocks) == [pb.PutReply.STORED] * 3
    absent = [pb.ABSENT] * 3
    for method in ("Exists", "Open", "Pin"):
        assert list(other.ask(method, **other.about(blocks)).outcomes) == absent, method
    assert other.match(blocks) == (0, pb.ABSENT)
    assert other.get(blocks) == (absent, [b""] * 3)
    assert other.ask("Remove", **other.about(blocks)).removed == 0
    grants = other.reserve(blocks)
    assert list(grants.grants) == [pb.ReserveReply.GRANTED] * 3
    other.ask("Abort", handles=grants.handles)
    mine = [bytes([i]) * 512 for i in range(3)]
    assert other.put(blocks, mine) == [pb.PutReply.STORED] * 3, "EXISTED would tell"
    assert other.get(blocks)[1] == mine
    assert ours.get(blocks)[1] != mine and ours.match(blocks)[0] == 3
    assert other.ask("Remove", **other.about(blocks)).removed == 3
    assert ours.match(blocks)[0] == 3


def test_a_writer_group_is_followed_by_its_own_tenant_alone(
    tenants: tuple[Caller, Caller],
) -> None:
    ours, other = tenants
    blocks = prompt(next(numbers))
    window = ours.reserve(blocks, writer_group="g").handles[0]
    seen = other.ask("Open", **other.about(blocks), writer_group="g").outcomes
    assert list(seen) == [pb.ABSENT]
    assert list(ours.ask("Open", **ours.about(blocks), writer_group="g").outcomes) == [pb.HIT]
    other.ask("Abort", writer_group="g")
    more = prompt(next(numbers))
    assert list(ours.ask("Open", **ours.about(more), writer_group="g").outcomes) == [pb.ABSENT]
    joined = other.reserve(blocks, writer_group="g")  # of the same name, and another group
    other.ask("Abort", handles=joined.handles)
    ours.ask("Abort", handles=[window])


class Held:
    """A session's handles: a window, a pin and a hand-off, fresh for each call."""

    def __init__(self, caller: Caller) -> None:
        sealed, filling = prompt(next(numbers)), prompt(next(numbers))
        caller.put(sealed)
        self.blocks = caller.about(filling)
        reserved = caller.reserve(filling, hand_off=True)
        self.window, self.hand_off = reserved.handles[0], reserved.hand_offs[0]
        self.pin = caller.ask("Pin", **caller.about(sealed)).handles[0]


def written(caller: Caller, handle: bytes, session: bytes | None = None) -> None:
    caller.write(handle, bytes(512), **({"session": session} if session else {}))


# Method -> how it is asked by a caller, in a session, with somebody's handles.
Ask = Callable[[Caller, bytes, Held], Any]
WITH_HANDLES: dict[str, Ask] = {
    "Write": lambda c, s, h: c.write(h.window, bytes(512), session=s),
    "Seal": lambda c, s, h: c.ask("Seal", session=s, handles=[h.window]),
    "Abort": lambda c, s, h: c.ask("Abort", session=s, handles=[h.window]),
    "Open": lambda c, s, h: c.ask("Open", session=s, **h.blocks, hand_offs=[h.hand_off]),
    "Read": lambda c, s, h: list(c.kv.Read(pb.ReadRequest(session=s, handle=h.pin), timeout=20)),
    "Close": lambda c, s, h: c.ask("Close", session=s, handles=[h.pin], suspects=[h.pin]),
    "Renew": lambda c, s, h: c.ask("Renew", session=s, handles=[h.pin]),
    "Unpin": lambda c, s, h: c.ask("Unpin", session=s, handles=[h.pin]),
}
WITH_SESSION: dict[str, Ask] = WITH_HANDLES | {
    "Reserve": lambda c, s, h: c.ask("Reserve", session=s, **h.blocks),
    "Pin": lambda c, s, h: c.ask("Pin", session=s, **h.blocks),
}


def fields_of(descriptor: Any) -> set[str]:
    """Names of all fields of a message, and of the messages in it."""
    names = {field.name for field in descriptor.fields}
    return names.union(*(fields_of(f.message_type) for f in descriptor.fields if f.message_type))


def test_every_call_that_takes_a_session_or_a_handle_is_asked_below() -> None:
    fields = {
        one.name: fields_of(one.descriptor.input_type)
        for one in METHODS
        if one.service == "moonpool.v1.KV"
    }
    assert {name for name, has in fields.items() if "session" in has} == WITH_SESSION.keys()
    assert {name for name, has in fields.items() if has & HANDLES} == WITH_HANDLES.keys()


@pytest.mark.parametrize("method", WITH_SESSION)
def test_another_tenants_session_is_as_unknown_as_any(
    method: str, tenants: tuple[Caller, Caller]
) -> None:
    ours, other = tenants
    held = Held(ours)
    for session in (ours.session, bytes(16)):
        found = refused(lambda session=session: WITH_SESSION[method](other, session, held))
        assert (found.kind, found.code) == ("SessionEnded", CODE.FAILED_PRECONDITION)
    let_go(ours, held)


@pytest.mark.parametrize("method", WITH_HANDLES)
def test_another_tenants_handle_moves_nothing(method: str, tenants: tuple[Caller, Caller]) -> None:
    ours, other = tenants
    held = Held(ours)
    found = refused(lambda: WITH_HANDLES[method](other, other.session, held))
    assert found.kind == ("WrongTenant" if method == "Open" else "NotYours"), found
    assert found.code is CODE.PERMISSION_DENIED
    let_go(ours, held)


@pytest.mark.parametrize("method", sorted(WITH_HANDLES.keys() - {"Open"}))
def test_nor_does_one_of_another_session_of_the_tenant(
    method: str, tenants: tuple[Caller, Caller], people: People, tls_node: NodeProcess
) -> None:
    ours, _ = tenants
    held, second = Held(ours), caller_of(tls_node, people, "team-a")
    found = refused(lambda: WITH_HANDLES[method](second, second.session, held))
    assert found.kind == "NotYours"
    second.close()
    let_go(ours, held)


def let_go(caller: Caller, held: Held) -> None:
    """Its own session may still use them: nothing was changed."""
    written(caller, held.window)
    sealed = caller.ask("Seal", handles=[held.window]).sealed
    assert list(sealed) == [pb.SealReply.SEALED]
    assert list(caller.ask("Close", handles=[held.pin]).held) == [True]
