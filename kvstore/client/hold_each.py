"""Holding blocks that an engine names by keys of its own, between its lookup and its load.

The leading ones, as `Client.hold` does for a chain: what lies behind the first that is missing is
of no use to an engine whose keys stand for prefixes. To the node such keys are no chain, and a pin
brings whatever it names from wherever it lies, so where the first hole is is asked before.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from kvstore.block import Keyed
from kvstore.client import keyed
from kvstore.client.client import Client
from kvstore.client.hold import Hold
from kvstore.client.opened import miss_of
from kvstore.errors import SessionEnded, UnknownNamespace
from kvstore.wire.v1 import kv_pb2 as pb


def hold_each(client: Client, blocks: Keyed, *, pin_ms: int = 0) -> Hold:
    """Keep the leading blocks that are there from going. Raises as `Client.hold` does."""
    try:
        return _hold(client, blocks, pin_ms)
    except (UnknownNamespace, SessionEnded):
        client.register()  # the node was restarted, or a link broke
        return _hold(client, blocks, pin_ms)


def _hold(client: Client, blocks: Keyed, pin_ms: int) -> Hold:
    leading, miss = len(blocks), None
    if leading > 1:  # before a single one is no hole
        outcomes = keyed.outcomes_of(client.connection, client.space, blocks)
        holes = np.flatnonzero(outcomes != pb.HIT)
        if len(holes):
            leading = int(holes[0])
            miss = miss_of(outcomes[leading])
    made: Any = cast(Any, blocks.between(0, leading))  # asked of it: its hashes and their number
    hold = Hold(client.connection, client.space, made, pin_ms)
    hold.miss = hold.miss or miss  # of those that were there one may have gone meanwhile
    return hold
