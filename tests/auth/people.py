"""Everybody who calls in these tests: certificates and tokens, made by the product's own code."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc

from kvstore.config import Credentials, TlsConfig
from kvstore.metadata import Metadata, open_metadata
from kvstore.metadata.records import TokenRecord
from kvstore.metadata.tenants import new_tenant
from kvstore.metadata.tokens import make
from kvstore.rpc.access import Role
from kvstore.rpc.authority import Authority, Holder
from tests.nodes import Caller, NodeProcess, eventually

T = TypeVar("T")
DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")
TENANTS = ("team-a", "team-b")
HOUR_SECONDS = 3_600


class People:
    """An authority, a certificate for each role, and tokens in a node's metadata."""

    def __init__(self, folder: Path, database: Path | str, hosts: tuple[str, ...] = HOSTS) -> None:
        """`database` is a file, or an etcd's URL."""
        self._folder, self._database, self._hosts = folder, database, hosts
        self._authority = Authority.make(folder / "ours", DAY)
        self.node = self.certificate(Role.NODE, "a")
        self.conductor = self.certificate(Role.CONDUCTOR, "c")
        self.client = self.certificate(Role.CLIENT, "engine")
        self.expired = self._authority.sign(Holder(Role.CLIENT, "old"), -DAY)
        foreign = Authority.make(folder / "theirs", DAY)
        signed = foreign.sign(Holder(Role.CLIENT, "engine"), DAY)
        # It believes our server, and our server does not believe it.
        self.foreign = TlsConfig(self.node.ca, signed.cert, signed.key)

        async def add(store: Metadata) -> None:
            for name in TENANTS:
                record = new_tenant(name)
                await store.put_if(record.key(), record.encode(), expected_revision=0)

        self.with_metadata(add)

    def certificate(self, role: Role, name: str) -> TlsConfig:
        hosts = () if role is Role.CLIENT else self._hosts
        return self._authority.sign(Holder(role, name, hosts), DAY)

    def token(self, tenant: str, admin: bool = False, seconds: int = HOUR_SECONDS) -> str:
        """A token that every node of the metadata knows a moment later."""
        token, record = make(tenant, admin, int(time.time()) + seconds)
        self.with_metadata(lambda store: store.put(record.key(), record.encode()))
        return token

    def revoke(self, token: str) -> None:
        key = TokenRecord.prefix + token.split("_")[1]
        assert self.with_metadata(lambda store: store.delete(key))

    def of(self, tenant: str, admin: bool = False) -> Credentials:
        """A client of a tenant, as it should be."""
        return Credentials(self.client, self.token(tenant, admin))

    def with_metadata(self, ask: Callable[[Metadata], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            store = open_metadata(str(self._database))
            try:
                return await ask(store)
            finally:
                await store.close()

        return asyncio.run(run())


def admitted(node: NodeProcess, credentials: Credentials) -> Caller | None:
    """A caller with a session, once the node has heard of its token."""
    try:
        return node.caller(credentials=credentials)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        return None


def caller_of(node: NodeProcess, people: People, tenant: str, admin: bool = False) -> Caller:
    """A client of a tenant at a node, with a session."""
    made = _caller_with(node, people.of(tenant, admin))
    made.register()
    return made


def known_at(node: NodeProcess, people: People, tenant: str) -> Credentials:
    """A client of a tenant, once the node has heard of its token."""
    shown = people.of(tenant)
    _caller_with(node, shown).close()
    return shown


def _caller_with(node: NodeProcess, shown: Credentials) -> Caller:
    def begun() -> Caller | None:
        try:
            return node.caller(credentials=shown)
        except grpc.RpcError:  # the node has not heard of the token yet
            return None

    made: Caller = eventually(begun)
    return made
