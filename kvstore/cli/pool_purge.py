"""A purge at every node of a pool, which says of each node that it missed whether that is gone.

Only who drained, has no record any more and refuses connections is taken for gone: whoever else was
not reached may run, and serve what was to be forgotten.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from kvstore.cli.diagnosis import knock
from kvstore.cli.options import admin_at, metadata
from kvstore.cli.purge_question import STATS_SECONDS, agreed, meant
from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.metadata.records import BadRecord, NodeRecord
from kvstore.wire.v1 import admin_pb2 as pb

PURGE_SECONDS_MAX = 3_600.0  # a head of each block is overwritten: minutes for millions of them
_AT_ONCE, _ROUNDS_MAX = 16, 5  # nodes; rounds over all of them
_LEAVES_SECONDS = 5.0  # in which a node that drains and serves no more is gone
_LOOK_SECONDS = 0.1  # between two looks at whether it is


def purge_everywhere(args: argparse.Namespace, request: pb.PurgeRequest, whose: str) -> int:
    """All nodes at once, and again until a round finds nothing: while one is not purged yet,
    another may have fetched blocks from it once more."""
    if args.node:
        raise ConfigError("--everywhere and --node: give one of them")
    (addresses, bad), dropped = asyncio.run(_states(args)), 0
    if not addresses and not bad:
        raise Unavailable("no node of the pool runs now, so none was asked")
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        if not args.yes:
            told = [one for one in threads.map(_stats_at, addresses) if one is not None]
            if not agreed(meant(request, told, len(addresses) + len(bad))):
                return 1
        for _ in range(_ROUNDS_MAX):
            left = [one for one in addresses if one not in failed]
            rounds = list(threads.map(lambda address: _purge_at(address, request), left))
            failed |= {one: why for one, why in zip(left, rounds, strict=True) if type(why) is str}
            found = sum(one for one in rounds if type(one) is int)
            dropped += found
            if not found:
                break
    gone = _gone(args, [one for one in failed if addresses[one] == "draining"])
    for address in gone:
        del failed[address]
        print(f"moonpool: {address} has left: purge it there when it is back", file=sys.stderr)
    count = len(addresses) - len(gone)
    done, of = count - len(failed), count + len(bad)
    print(f"purged {whose}: {dropped} blocks dropped at {done} of {of} nodes")
    for address, why in failed.items():
        print(f"moonpool: {address} was not purged: {why}", file=sys.stderr)
    for error in bad:
        print(f"moonpool: a node whose record is bad was not purged: {error}", file=sys.stderr)
    if found:
        print(f"moonpool: blocks of {whose} keep coming: stop its engines first", file=sys.stderr)
    return 1 if failed or found or bad else 0


def _purge_at(address: str, request: pb.PurgeRequest) -> int | str:
    """Blocks that one node dropped, or why it did not."""
    try:
        with admin_at(address) as stub:
            (reply,) = stub.Purge(request, timeout=PURGE_SECONDS_MAX)
    except KVStoreError as error:
        return str(error)
    return int(reply.dropped_blocks)


def _stats_at(address: str) -> pb.StatsReply | None:
    """What one node holds; None where it does not say."""
    try:
        with admin_at(address) as stub:
            reply: pb.StatsReply = stub.Stats(pb.StatsRequest(), timeout=STATS_SECONDS)
            return reply
    except KVStoreError:
        return None


def _gone(args: argparse.Namespace, drained: Collection[str]) -> list[str]:
    """Of nodes that drained and were not reached, those that run no more. One that ends serves no
    calls before it takes its record back: it is waited for. A record that is gone says nothing by
    itself: one that is cut off or stopped for longer than its lease has none, and serves again."""
    deadline, left = time.monotonic() + _LEAVES_SECONDS, set(drained)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        while left and time.monotonic() < deadline:
            unnamed = sorted(left - _named(args, left))
            refused = threads.map(_refuses, unnamed)
            left -= {one for one, no in zip(unnamed, refused, strict=True) if no}
            if left:
                time.sleep(_LOOK_SECONDS)
    return [one for one in drained if one not in left]


def _named(args: argparse.Namespace, addresses: set[str]) -> set[str]:
    """Those with a record; all of them while nobody can say."""
    try:
        return asyncio.run(_states(args))[0].keys() & addresses
    except KVStoreError:
        return addresses


def _refuses(address: str) -> bool:
    try:
        knock(address).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False  # its host is away, or says nothing: the node may run
    return False


async def _states(args: argparse.Namespace) -> tuple[dict[str, str], list[BadRecord]]:
    """Of the nodes that have a record, by their addresses; and of which nobody can say where they
    are."""
    async with metadata(args) as store:
        entries, _ = await store.list(NodeRecord.prefix)
    records, bad = NodeRecord.readable(entries)
    return {one.address: one.state for one in records}, bad
