"""Blocks that an engine names by keys of its own, to be stored each behind the one before it.

A node keeps what is before a block while it has the block, and finds no block whose predecessor is
gone. An engine has the beginning of a conversation itself and never asks for it, so the pool may
have lost that when the next turn is stored: what would follow it begins anew, and is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from kvstore.block import Keyed
from kvstore.client.client import Client


def linked(client: Client, keys: Sequence[str], before: Sequence[str]) -> Keyed:
    """Blocks of these keys, in the order of their prompt; `before` is the key before each, empty
    where there is none. One call to the node where one of those is not among `keys`."""
    elsewhere = list({*before}.difference(keys, ("",)))
    there = client.exists_each(client.keyed(elsewhere)) if elsewhere else ()
    known = {*keys, *compress(elsewhere, there)}
    hashes = iter(client.keyed([one for one in before if one in known]).hashes)
    parents = tuple(next(hashes) if one in known else b"" for one in before)
    return replace(client.keyed(keys), parents=parents)
