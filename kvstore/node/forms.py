"""What callers send, checked for form (lengths, counts), and how outcomes are said to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kvstore.block import Miss
from kvstore.core.lifecycle import Slot, Tier
from kvstore.errors import Invalid
from kvstore.layout import Fragment, SlotLayout
from kvstore.limits import (
    BLOCK_TOKENS_MAX,
    BROUGHT_SECONDS_MAX,
    HASH_BYTES,
    NAME_BYTES_MAX,
    REPLICAS_MAX,
    RPC_KEYS_MAX,
)
from kvstore.node.readers import Opened
from kvstore.node.sessions import Session
from kvstore.wire.v1 import kv_pb2 as pb

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

OUTCOME = {
    None: pb.HIT,
    Miss.ABSENT: pb.ABSENT,
    Miss.UNSEALED: pb.UNSEALED,
    Miss.UNLISTED: pb.UNLISTED,
    Miss.EVICTED: pb.EVICTED,
    Miss.REMOVED: pb.REMOVED,
    Miss.DAMAGED: pb.DAMAGED,
    Miss.QUARANTINED: pb.QUARANTINED,
    Miss.NO_ROOM: pb.NO_ROOM,
    Miss.LATE: pb.LATE,
    Miss.UNREACHABLE: pb.UNREACHABLE,
    Miss.FORGONE: pb.FORGONE,
}
SEALED = {
    "sealed": pb.SealReply.SEALED,
    "waiting": pb.SealReply.WAITING,
    "existed": pb.SealReply.EXISTED,
}


def opened_columns(
    opened: Sequence[Opened | Miss], slots: Sequence[Slot | None], request: pb.OpenRequest
) -> pb.OpenReply:
    """What each of these is, to whoever asked for them; `slots` are theirs."""
    reply = pb.OpenReply(
        outcomes=[pb.HIT if isinstance(one, Opened) else OUTCOME[one] for one in opened],
        slot_offsets=[slot.offset if slot else 0 for slot in slots],
        generations=[slot.generation if slot else 0 for slot in slots],
        tokens=[slot.tokens if slot else 0 for slot in slots],
        roots=[slot.root if slot else b"" for slot in slots],
    )
    if not request.unpinned:
        reply.handles.extend([one.handle if isinstance(one, Opened) else b"" for one in opened])
    if request.lineage:
        reply.parents.extend([slot.parent if slot else b"" for slot in slots])
        reply.origins.extend([slot.origin if slot else 0 for slot in slots])
    return reply


def patience(context: Context, most: float = BROUGHT_SECONDS_MAX) -> float:
    """Seconds that a call may wait for other nodes, for this one's disk, or for its HBM."""
    left = context.time_remaining()
    return most if left is None else min(most, 0.8 * float(left))


def copies_wanted(given: int) -> int:
    """Nodes that are to have a block; 0 on the wire means this one."""
    if given > REPLICAS_MAX:
        raise Invalid(f"replicas {given}: at most {REPLICAS_MAX}")
    return max(1, given)


def fragment_of(given: pb.Fragment, layout: SlotLayout) -> Fragment:
    """A fragment from the wire; zero counts mean all layers, all heads."""
    layers = given.layers or layout.layers - given.layer_first
    heads = given.heads or layout.kv_heads - given.head_first
    return layout.check(Fragment(given.layer_first, layers, given.head_first, heads))


def last_tokens(given: int, layout: SlotLayout) -> int:
    """Tokens of a chain's last block; 0 on the wire means it is full."""
    if given > layout.block_tokens:
        raise Invalid(f"tokens {given}: a block has at most {layout.block_tokens}")
    assert layout.block_tokens <= BLOCK_TOKENS_MAX
    return given or layout.block_tokens


def hashes_of(given: Sequence[bytes]) -> Sequence[bytes]:
    """Block hashes from the wire: not too many, each of the right length."""
    hashes = counted(given, "hashes")
    if set(map(len, hashes)) != {HASH_BYTES}:
        for i, one in enumerate(hashes):
            check_hash(f"hashes[{i}]", one)
    return hashes


def stored_keys_of(given: Sequence[bytes]) -> Sequence[bytes]:
    """Stored keys, as nodes tell them each other."""
    for i, one in enumerate(counted(given, "stored_keys")):
        if len(one) != HASH_BYTES:
            raise Invalid(f"stored_keys[{i}] is {len(one)} bytes; a stored key has {HASH_BYTES}")
    return list(given)


def parent_of(given: bytes) -> bytes:
    """The hash of the block before a chain's first; empty where there is none."""
    if given:
        check_hash("parent", given)
    return given


def after_of(request: pb.ReserveRequest) -> bytes | None:
    """The hash of what blocks that stand alone come after; None where nobody says it."""
    if not request.HasField("after"):
        return None
    if not request.alone:
        raise Invalid("after: alone beside it; a chain's blocks have parents")
    if request.after:
        check_hash("after", request.after)
    return request.after


def parents_of(request: pb.ReserveRequest, hashes: Sequence[bytes]) -> list[bytes]:
    """The block before each: as named, or the one before it in the call, or of lone blocks none."""
    first = parent_of(request.parent)
    if request.parents:
        if first or request.alone or request.last_tokens:
            raise Invalid("parents: no parent, alone or last_tokens beside it; blocks are full")
        if len(request.parents) != len(hashes):
            raise Invalid(f"{len(request.parents)} parents for {len(hashes)} hashes; one each")
        return [parent_of(one) for one in request.parents]
    if not request.alone:
        return [first, *hashes[:-1]]
    if first:
        raise Invalid("alone and parent: a block that stands alone has no block before it")
    return [b""] * len(hashes)


def suspects_of(given: Sequence[bytes], handles: Sequence[bytes]) -> set[bytes]:
    """Of handles that are closed those whose bytes did not have their hash."""
    if len(given) > len(handles):
        raise Invalid(f"{len(given)} suspects among {len(handles)} handles; each once at most")
    closed, suspects = set(handles), list(given)
    for i, suspect in enumerate(suspects):
        if suspect not in closed:
            raise Invalid(f"suspects[{i}] is not among the handles that are closed")
    return set(suspects)


def used_of(request: pb.UnpinRequest) -> tuple[int, int]:
    """Tokens that a caller looked for, and of those what it loaded."""
    if request.hit_tokens > request.query_tokens:
        raise Invalid(f"hit_tokens {request.hit_tokens} of query_tokens {request.query_tokens}")
    return request.query_tokens, request.hit_tokens


def check_hash(name: str, given: bytes) -> None:
    if len(given) != HASH_BYTES:
        raise Invalid(f"{name} is {len(given)} bytes; a block hash has {HASH_BYTES}")


def check_unpinned(request: pb.OpenRequest, *, maps: bool) -> None:
    """Raise `Invalid` where a reader could not tell what became of a block that nobody holds."""
    if not maps:
        raise Invalid("unpinned: only for a session that maps this node's memory")
    pinned = (request.hand_offs, request.writer_group, request.pin_ms, request.stored_keys)
    if any(pinned) or request.HasField("read_ahead"):
        raise Invalid(
            "unpinned: no hand_offs, writer_group, pin_ms, stored_keys or read_ahead beside it"
        )


def check_name(field: str, given: str) -> None:
    size = len(given.encode())
    if size > NAME_BYTES_MAX:
        raise Invalid(f"{field} is {size} bytes; at most {NAME_BYTES_MAX}")
    if "\0" in given:
        raise Invalid(f"{field} holds a zero byte; it is text for people")


def aborted_of(request: pb.AbortRequest) -> Sequence[bytes]:
    """The handles of an Abort, of which there may be none where it speaks of a group."""
    check_name("writer_group", request.writer_group)
    if request.writer_group and not request.handles:
        return ()
    return counted(request.handles, "handles")


def counted(given: Sequence[bytes], name: str) -> Sequence[bytes]:
    if not 0 < len(given) <= RPC_KEYS_MAX:
        raise Invalid(f"{len(given)} {name} in one call; send 1 to {RPC_KEYS_MAX}")
    return list(given)


def reach_of(session: Session, *, asked: bool) -> Tier:
    """The highest tier of which a caller is given slots: HBM where it asks for that and maps the
    arena, in which their heads are."""
    return Tier.HBM if asked and session.may_write else Tier.DRAM
