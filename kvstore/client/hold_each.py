"""Holding blocks that an engine names by keys of its own, between its lookup and its load.

The leading ones, as `Client.hold` does for a chain: what lies behind the first that is missing is
of no use to an engine whose keys stand for prefixes. To the node such keys are no chain, and a pin
brings whatever it names from wherever it lies, so where the first hole is is asked before.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from kvstore.block import Keyed, Miss
from kvstore.client import keyed
from kvstore.client.client import Client
from kvstore.client.hold import Hold
from kvstore.errors import SessionEnded, UnknownNamespace


def hold_each(client: Client, blocks: Keyed, *, pin_ms: int = 0) -> Hold:
    """Keep the leading blocks that are there from going. Raises as `Client.hold` does."""
    try:
        return _hold(client, blocks, pin_ms)
    except (UnknownNamespace, SessionEnded):
        client.register()  # the node was restarted, or a link broke
        return _hold(client, blocks, pin_ms)


def _hold(client: Client, blocks: Keyed, pin_ms: int) -> Hold:
    leading = len(blocks)
    if leading > 1:  # before a single one is no hole
        there = keyed.exists_each(client.connection, client.space, blocks)
        leading = leading if there.all() else int(np.argmin(there))
    made: Any = cast(Any, blocks.between(0, leading))  # asked of it: its hashes and their number
    hold = Hold(client.connection, client.space, made, pin_ms)
    if leading < len(blocks) and hold.miss is None:
        hold.miss = Miss.ABSENT
    return hold
