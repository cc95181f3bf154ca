"""Blocks that an engine names by keys of its own: looked up, loaded and stored each by itself.

Such keys are no chain to the node, so a hit behind a miss is a hit. Answers are one flag a block,
in the order asked. What is reported as loaded was verified strip by strip, as in `Reader`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import numpy as np

from kvstore.block import Blocks, Keyed
from kvstore.client import looked
from kvstore.client.answer import Answer
from kvstore.client.connection import Connection
from kvstore.client.memory import check_target
from kvstore.client.opened import Opened, Target
from kvstore.client.reserving import Reserving
from kvstore.client.space import Space, calls, starts_of
from kvstore.client.writer import Writer
from kvstore.errors import Invalid
from kvstore.limits import SOCKET_CALLS_MAX
from kvstore.transfer.protocol import Ints, Mask, Memory
from kvstore.wire.v1 import kv_pb2 as pb

PART_BLOCKS = 512  # of which a node is asked at once: a call more costs what a hundred blocks do


def exists_each(connection: Connection, space: Space, blocks: Blocks) -> Mask:
    """Which blocks can be had now."""
    return np.asarray(outcomes_of(connection, space, blocks) == pb.HIT)


def outcomes_of(connection: Connection, space: Space, blocks: Blocks) -> Ints:
    """Of each block whether it can be had now, and why not."""
    found = np.zeros(len(blocks), dtype=np.int64)
    for some in calls(len(blocks)):
        request = pb.ExistsRequest(
            namespace=space.digest, group=space.group, hashes=blocks.hashes[some]
        )
        reply = connection.call(lambda link: link.kv.Exists, request)
        found[some] = reply.outcomes
    return found


def load_each(connection: Connection, space: Space, blocks: Keyed, memory: Memory) -> Mask:
    """Load what can be had, block i to token `i * block_tokens` of `memory`, in one move.

    Memory of a block that is not reported as loaded may have been written to.
    """
    if not len(blocks):
        return np.zeros(0, dtype=bool)
    space.blocks_from(blocks, 0)  # of this group's size
    part, starts = space.layout.check(memory.fragment), starts_of(blocks)
    memory.check(part, starts, np.array(blocks.tokens, dtype=np.int32))
    check_target(memory)
    target = Target(memory, starts, part)
    if not connection.link().maps_memory:
        return _load_held(connection, space, blocks, target)
    loaded, left = looked.load(connection, space, blocks, target)
    if len(left):
        some = Keyed(tuple(blocks.hashes[row] for row in left), blocks.block_tokens)
        again = replace(target, starts=starts[left])
        loaded[left] = _load_held(connection, space, some, again)
    return loaded


def _load_held(connection: Connection, space: Space, blocks: Keyed, target: Target) -> Mask:
    """Load what can be had while it is pinned. What fails is told to the owner."""
    loaded = np.zeros(len(blocks), dtype=bool)
    opened = Opened(connection, space, blocks, (), 0, target=target)
    damaged = np.zeros(opened.count, dtype=bool)
    try:
        if opened.count:
            good = opened.load(np.arange(opened.count), target.part)
            # After the copies: what changed hands meanwhile was not this block, or is not any more.
            current = opened.link.transport.current(opened.slots, good)
            damaged = current & ~good
            loaded[opened.rows[current & good]] = True
    finally:
        opened.close(damaged)
    return loaded


def store_all(connection: Connection, space: Space, blocks: Keyed, memory: Memory) -> None:
    """Store and seal what is not there yet: all of it, or the call raises.

    A key that is named twice is stored from where it stands first.

    Many go in a few parts where they are copied here alone: meanwhile the node sees to the others.
    """
    if not len(blocks):
        return
    if not memory.fragment.covers(space.layout.whole):
        raise Invalid(f"the memory holds {memory.fragment}; whole blocks are stored from it")
    blocks, starts = _each_once(blocks)
    with ExitStack() as open_:
        most = SOCKET_CALLS_MAX if connection.link().maps_memory else 1
        asked = []  # all at once: so none makes room for another by what was just stored
        for first, last in _parts(len(blocks), most):
            asked.append(Reserving(connection, space, blocks.between(0, last), first))
            open_.callback(asked[-1].drop)
        writers: Iterable[Writer] = (
            open_.enter_context(Writer(one, starts[one.first : len(one.chain)])) for one in asked
        )
        if not all(one.keeps for one in asked):
            writers = list(writers)
        sealed = Answer[list[str]](list)
        for writer in writers:
            writer.put(memory)
            sealed.get()
            sealed = writer.begin_seal()  # 'SEALED', or 'EXISTED' where another writer was first
            open_.callback(sealed.drop)
        sealed.get()


def _each_once(blocks: Keyed) -> tuple[Keyed, Ints]:
    """Each key where it stands first, and the first token of each of these blocks."""
    if len(set(blocks.hashes)) == len(blocks):  # as nearly always
        return blocks, starts_of(blocks)
    first = dict[bytes, int]()
    for row, key in enumerate(blocks.hashes):
        first.setdefault(key, row)
    rows = list(first.values())
    parents = tuple(blocks.parents[row] for row in rows if blocks.parents)
    return replace(blocks, hashes=tuple(first), parents=parents), starts_of(blocks)[rows]


def _parts(count: int, most: int) -> list[tuple[int, int]]:
    """First and last of each of `most` parts at most, as near to equal as can be."""
    parts = max(1, min(most, count // PART_BLOCKS))
    return list(pairwise(count * i // parts for i in range(parts + 1)))


def only_chain(blocks: Blocks) -> None:
    """Raise `Invalid` for blocks of which there is no leading part."""
    if blocks.alone:
        raise Invalid(
            "these blocks stand alone: use exists_each, load_each, store_each, or a chain as "
            "client.chain(tokens) gives it"
        )
