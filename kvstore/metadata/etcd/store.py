"""The `Metadata` protocol in etcd's own words: ranges, transactions, leases, watches.

Reads are linearizable: they show every change that had been acknowledged, whichever member answers.
Opening connects to nobody; the first call does. A store belongs to the event loop of that call.

Beside what the protocol names, a call may raise `Denied`, where etcd refuses this user, and
`Overloaded`, where etcd has no room.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import grpc

from kvstore.config import EtcdConfig
from kvstore.metadata.bounds import (
    check_int64,
    check_ttl,
    check_value,
    key_bytes,
    prefix_bytes,
)
from kvstore.metadata.etcd import failure, requests
from kvstore.metadata.etcd.endpoint import (
    DELETE,
    GRANT,
    PUT,
    RANGE,
    RENEW,
    REVOKE,
    TXN,
    Method,
)
from kvstore.metadata.etcd.endpoints import Endpoints
from kvstore.metadata.etcd.keyspace import Keyspace
from kvstore.metadata.etcd.pages import entries_of
from kvstore.metadata.etcd.watch import changes
from kvstore.metadata.protocol import Change, Entry, Lease, LeaseLost


class EtcdMetadata:
    """Satisfies `Metadata`. Raises `ConfigError` for certificates that cannot be read."""

    def __init__(self, config: EtcdConfig) -> None:
        self._endpoints = Endpoints(config)
        self._keys = Keyspace(config.cluster)
        self._probe = (RANGE, requests.head_of(self._keys.root))

    async def get(self, key: str) -> Entry | None:
        found = (await self._ask(RANGE, requests.one(self._stored(key)))).kvs
        return self._keys.entry(found[0]) if found else None

    async def list(self, prefix: str) -> tuple[list[Entry], int]:
        stored_prefix = prefix_bytes(prefix)
        try:
            return await entries_of(self._endpoints, self._keys, stored_prefix)
        except grpc.aio.AioRpcError as error:
            raise self._endpoints.meaning(error) from None

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        put = _put(self._stored(key), value, lease)
        return int((await self._tell_with(lease, PUT, put)).header.revision)

    async def put_if(
        self, key: str, value: bytes, *, expected_revision: int, lease: int = 0
    ) -> int | None:
        stored_key = self._stored(key)
        put = _put(stored_key, value, lease)
        check_int64("expected_revision", expected_revision)
        request = requests.put_if(stored_key, expected_revision, put)
        reply = await self._tell_with(lease, TXN, request)
        return int(reply.header.revision) if reply.succeeded else None

    async def delete(self, key: str) -> bool:
        return bool((await self._tell(DELETE, requests.delete(self._stored(key)))).deleted)

    async def delete_if(self, key: str, *, expected_revision: int) -> bool:
        stored_key = self._stored(key)
        check_int64("expected_revision", expected_revision)
        if not expected_revision:  # which etcd takes for "there is none"
            return False
        request = requests.delete_if(stored_key, expected_revision)
        return bool((await self._tell(TXN, request)).succeeded)

    async def grant(self, ttl_ms: int) -> Lease:
        """etcd counts in seconds, and grants no less than its elections take (2 s by default)."""
        check_ttl(ttl_ms)
        granted = await self._tell(GRANT, requests.grant(ttl_ms))
        return Lease(granted.ID, granted.TTL * 1_000)

    async def keep_alive(self, lease: Lease) -> None:
        check_int64("lease", lease.id)
        reply = await self._ask(RENEW, requests.renew(lease.id))
        if reply.TTL <= 0:
            raise _lost(lease.id)

    async def revoke(self, lease: Lease) -> None:
        check_int64("lease", lease.id)
        try:
            await self._endpoints.ask(REVOKE, requests.revoke(lease.id))
        except grpc.aio.AioRpcError as error:
            if not failure.lease_gone(error):
                raise self._endpoints.meaning(error) from None

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[Change, None]:
        check_int64("from_revision", from_revision)
        return changes(self._endpoints, self._keys, prefix_bytes(prefix), from_revision)

    async def close(self) -> None:
        await self._endpoints.close()

    def _stored(self, key: str) -> bytes:
        return self._keys.inside(key_bytes(key))

    async def _ask(self, method: Method, request: Any) -> Any:
        try:
            return await self._endpoints.ask(method, request)
        except grpc.aio.AioRpcError as error:
            raise self._endpoints.meaning(error) from None

    async def _tell(self, method: Method, request: Any) -> Any:
        try:
            return await self._endpoints.tell(method, request, self._probe)
        except grpc.aio.AioRpcError as error:
            raise self._endpoints.meaning(error) from None

    async def _tell_with(self, lease: int, method: Method, request: Any) -> Any:
        try:
            return await self._tell(method, request)
        except LeaseLost:
            raise _lost(lease) from None


def _put(stored_key: bytes, value: bytes, lease: int) -> Any:
    check_value(value)
    check_int64("lease", lease)
    return requests.put(stored_key, value, lease)


def _lost(lease: int) -> LeaseLost:
    return LeaseLost(f"lease {lease} ended, or was never granted here")
