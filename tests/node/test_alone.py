"""Blocks that stand alone: no other's absence hides one, and the last of a call goes first."""

from __future__ import annotations

import pytest

from kvstore.block import Keyed, foreign
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig
from tests.nodes import SPEC, Caller, pairs, payload, prompt, refused

SIZE = SPEC.groups[0].block_tokens


def blocks(*keys: str) -> Keyed:
    return foreign(SPEC.digest, 0, keys, SIZE)


def about(some: Keyed) -> dict[str, object]:
    return {"namespace": SPEC.digest, "hashes": some.hashes}


def store(caller: Caller, some: Keyed) -> None:
    reply = caller.ask("Reserve", **about(some), alone=True)
    assert list(reply.grants) == [pb.ReserveReply.GRANTED] * len(some)
    for handle, name in zip(reply.handles, some.hashes, strict=True):
        caller.write(handle, payload(name))
    sealed = list(caller.ask("Seal", handles=reply.handles).sealed)
    assert sealed == [pb.SealReply.SEALED] * len(some)


def outcomes(caller: Caller, some: Keyed) -> list[int]:
    return list(caller.ask("Exists", namespace=SPEC.digest, hashes=some.hashes).outcomes)


def test_a_block_alone_is_had_whatever_became_of_those_before_it(shared: Caller) -> None:
    some = blocks("a", "b", "c", "d")
    store(shared, some)
    gone = [some.hashes[0], some.hashes[2]]
    assert shared.ask("Remove", namespace=SPEC.digest, hashes=gone).removed == 2
    assert outcomes(shared, some) == [pb.REMOVED, pb.HIT, pb.REMOVED, pb.HIT]
    reply = shared.ask("Open", namespace=SPEC.digest, hashes=some.hashes)
    assert list(reply.outcomes) == [pb.REMOVED, pb.HIT, pb.REMOVED, pb.HIT]
    assert shared.read(reply.handles[3]) == payload(some.hashes[3])
    shared.ask("Close", handles=[one for one in reply.handles if one])
    assert shared.stats().blocks_unlisted == 0


def test_the_same_blocks_as_a_chain_would_be_hidden(shared: Caller) -> None:
    some = blocks("e", "f")
    shared.ask("Abort", handles=shared.ask("Reserve", **about(some), alone=True).handles)
    reply = shared.ask("Reserve", **about(some))
    for handle, name in zip(reply.handles, some.hashes, strict=True):
        shared.write(handle, payload(name))
    shared.ask("Seal", handles=reply.handles)
    shared.ask("Remove", namespace=SPEC.digest, hashes=some.hashes[:1])
    assert outcomes(shared, some) == [pb.REMOVED, pb.UNLISTED]


def test_of_blocks_stored_in_one_call_the_last_is_evicted_first() -> None:
    rig = Rig()
    session = rig.session()
    keys = foreign(*SMALL.owner, ["a", "b", "c"], TOKENS)
    wanted = [(name, b"", TOKENS) for name in keys.hashes]
    found = [one for one in rig.store.reserve(session, SMALL, wanted, SMALL.layout.whole) if one]
    for one in found:
        rig.write(one.slot, SMALL)
    rig.store.seal(session, [one.handle for one in found])
    rig.store.check()
    order = [slot.key for slot in rig.blocks.index.coldest()]
    assert order == [one.slot.key for one in reversed(found)]


def test_blocks_of_several_chains_are_reserved_in_one_call(caller: Caller) -> None:
    left, right = prompt(901, blocks=3), prompt(902, blocks=2)
    both = left.hashes + right.hashes
    parents = [b"", *left.hashes[:2], b"", right.hashes[0]]
    reply = caller.ask("Reserve", namespace=SPEC.digest, group=0, hashes=both, parents=parents)
    assert list(reply.grants) == [pb.ReserveReply.GRANTED] * 5
    for (hash_, tokens), handle in zip(pairs(left) + pairs(right), reply.handles, strict=True):
        caller.write(handle, payload(hash_, SPEC, tokens))
    caller.ask("Seal", handles=reply.handles)
    assert caller.match(left) == (3, pb.HIT) and caller.match(right) == (2, pb.HIT)
    caller.ask("Remove", **caller.about(left.between(0, 1)))
    assert caller.match(left) == (0, pb.REMOVED), "each chain is a chain"
    assert caller.match(right) == (2, pb.HIT)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"parents": [b""]}, "1 parents for 2 hashes"),
        ({"parents": [b"", b"short"]}, "parent is 5 bytes"),
        ({"parents": [b"", b""], "alone": True}, "no parent, alone or last_tokens"),
        ({"parents": [b"", b""], "last_tokens": 2}, "no parent, alone or last_tokens"),
        ({"after": b"p" * 32}, "after: alone beside it"),
        ({"after": b"p" * 31, "alone": True}, "after is 31 bytes"),
    ],
)
def test_parents_that_do_not_fit_are_refused(
    caller: Caller, more: dict[str, object], said: str
) -> None:
    hashes = prompt(903, blocks=2).hashes
    told = refused(lambda: caller.ask("Reserve", namespace=SPEC.digest, hashes=hashes, **more))
    assert told.kind == "Invalid" and said in told.text
