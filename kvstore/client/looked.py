"""Blocks that are read where they lie and that nobody holds: for who maps the node's memory.

A block may be dropped while it is copied. Then the copy is worth nothing, and the slot's head says
so; whoever still wants the block opens it, so that it stays. As a rule none is, and what pins cost
a node and its caller is saved.
"""

from __future__ import annotations

import numpy as np

from kvstore.block import Keyed
from kvstore.client.connection import Connection
from kvstore.client.opened import Target, hits_of
from kvstore.client.space import Space, calls, slots_of
from kvstore.transfer import staged
from kvstore.transfer.protocol import Ints, Mask
from kvstore.wire.v1 import kv_pb2 as pb


def load(connection: Connection, space: Space, blocks: Keyed, target: Target) -> tuple[Mask, Ints]:
    """Which blocks are loaded, verified and unchanged meanwhile; and the rows of those that were
    found and are not: to be opened."""
    link = connection.link()
    near = target.memory.staging is not None and link.transport.lends(space.layout)
    reply = pb.OpenReply()
    for some in calls(len(blocks)):
        request = pb.OpenRequest(
            session=link.session,
            namespace=space.digest,
            group=space.group,
            hashes=blocks.hashes[some],
            hbm=near,
            unpinned=True,
        )
        reply.MergeFrom(connection.call(lambda link: link.kv.Open, request))
    rows = np.flatnonzero(hits_of(reply, blocks.tokens))
    nothing: list[bytes] = [b""] * len(blocks)
    columns = (reply.slot_offsets, reply.generations, reply.tokens)
    slots = slots_of(*columns, nothing, reply.roots).pick(rows)
    loaded = np.zeros(len(blocks), dtype=bool)
    if len(rows):
        where = (target.memory, target.starts[rows], target.part)
        good = staged.load(link.transport, space.layout, slots, *where)
        loaded[rows] = good & link.transport.current(slots, good)
    return loaded, rows[~loaded[rows]]
