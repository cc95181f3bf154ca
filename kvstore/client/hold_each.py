"""Holding blocks that an engine names by keys of its own, between its lookup and its load.

The leading ones, as `Client.hold` does for a chain: what lies behind the first that is missing is
of no use to an engine whose keys stand for prefixes.
"""

from __future__ import annotations

from typing import Any, cast

from kvstore.block import Keyed
from kvstore.client.client import Client
from kvstore.client.hold import Hold
from kvstore.errors import SessionEnded, UnknownNamespace


def hold_each(client: Client, blocks: Keyed, *, pin_ms: int = 0) -> Hold:
    """Keep the leading blocks that are there from going. Raises as `Client.hold` does."""
    made: Any = cast(Any, blocks)  # a hold asks of its blocks their hashes and their number
    try:
        return Hold(client.connection, client.space, made, pin_ms)
    except (UnknownNamespace, SessionEnded):
        client.register()  # the node was restarted, or a link broke
        return Hold(client.connection, client.space, made, pin_ms)
