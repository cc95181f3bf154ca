"""Everything under a prefix at one revision, in as many replies as it takes, each bounded.

etcd counts a page in entries, and its reply is bounded in bytes: a page that would have more is
refused by the channel before it is taken in, and a smaller one asked for.
"""

from __future__ import annotations

import grpc

from kvstore.errors import Overloaded
from kvstore.limits import MiB
from kvstore.metadata.etcd import failure, requests
from kvstore.metadata.etcd.endpoint import RANGE
from kvstore.metadata.etcd.endpoints import Endpoints
from kvstore.metadata.etcd.keyspace import Keyspace
from kvstore.metadata.protocol import Entry

PAGE_ENTRIES = 256
LIST_BYTES_MAX = 256 * MiB  # of one list, in memory: as much as the embedded form stores


async def entries_of(
    endpoints: Endpoints, keys: Keyspace, prefix: bytes
) -> tuple[list[Entry], int]:
    """By key, and the revision they show. Raises as `Endpoints.ask` does, and `Overloaded`."""
    while True:
        try:
            return await _pages(endpoints, keys, prefix)
        except grpc.aio.AioRpcError as error:
            if not failure.compacted(error):  # between two pages: begin anew
                raise


async def _pages(endpoints: Endpoints, keys: Keyspace, prefix: bytes) -> tuple[list[Entry], int]:
    start, limit, size = keys.inside(prefix), PAGE_ENTRIES, 0
    found: list[Entry] = []
    revision = 0  # from the first page on, the first page's
    while True:
        try:
            page = await endpoints.ask(
                RANGE, requests.page(start, keys.end(prefix), limit, revision)
            )
        except grpc.aio.AioRpcError as error:
            if not failure.too_large(error) or limit == 1:
                raise
            limit = -(-limit // 4)
            continue
        revision = revision or int(page.header.revision)
        size += page.ByteSize()
        if size > LIST_BYTES_MAX:
            raise Overloaded(f"what was listed takes more than {LIST_BYTES_MAX} bytes")
        found += [entry for entry in map(keys.entry, page.kvs) if entry]
        if not page.more or not page.kvs:
            return found, revision
        start = page.kvs[-1].key + b"\0"
