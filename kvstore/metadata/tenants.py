"""Tenants and their tokens as whoever serves them knows them: read at its start, then watched.

While the metadata is away it serves on with what it knows. A token that is unknown, revoked
or over is refused; a tenant that was known stays known, since only its blocks need its secret.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable

from kvstore.clock import SystemClock
from kvstore.config import DEFAULT_TENANT
from kvstore.limits import HASH_BYTES, TENANT_NAME_BYTES_MAX, TENANTS_MAX, TOKENS_MAX
from kvstore.metadata.protocol import Metadata
from kvstore.metadata.records import TenantRecord, TokenRecord
from kvstore.metadata.roster import Roster
from kvstore.metadata.tokens import id_of, is_of

log = logging.getLogger(__name__)


class Tenants:
    """`secrets` is live: a tenant that is added is in it at once."""

    def __init__(self, metadata: Metadata, wall: Callable[[], float] = time.time) -> None:
        self._metadata, self._wall = metadata, wall
        nature = (SystemClock(), random.Random())
        self._tokens = Roster(metadata, TokenRecord, *nature, TOKENS_MAX)
        self._tenants = Roster(metadata, TenantRecord, *nature, TENANTS_MAX, self._learn)
        self.secrets: dict[str, bytes] = {}

    async def load(self) -> None:
        """Read all there are, the tenant `default` among them. Raises `Unavailable`."""
        made = new_tenant(DEFAULT_TENANT)  # whichever node asks first draws its secret
        await self._metadata.put_if(made.key(), made.encode(), expected_revision=0)
        await self._tenants.load()
        await self._tokens.load()

    async def keep(self) -> None:
        """Follow the metadata until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tenants.keep())
            group.create_task(self._tokens.keep())

    def knows(self, tenant: str) -> bool:
        return tenant in self.secrets

    def bearer(self, token: str) -> TokenRecord | None:
        """Whom the token stands for now; None if it is unknown, revoked or over."""
        name = id_of(token)
        record = None if name is None else self._tokens.get(name)
        if record is None or not is_of(token, record):
            return None
        # By the wall clock: it was set by another host. A clock that is wrong ends tokens early or
        # late by as much, and nothing else.
        if record.expires <= self._wall() or not self.knows(record.tenant):
            return None
        return record

    def _learn(self, record: TenantRecord) -> None:
        secret = bytes.fromhex(record.secret)
        if len(secret) == HASH_BYTES and len(record.name.encode()) <= TENANT_NAME_BYTES_MAX:
            self.secrets[record.name] = secret
        else:
            why = f"a name of at most {TENANT_NAME_BYTES_MAX} bytes, a secret of {HASH_BYTES}"
            log.warning("%s is passed over: a tenant has %s", record.key(), why)


def new_tenant(name: str) -> TenantRecord:
    """A tenant with a secret of its own."""
    return TenantRecord(name, secrets.token_hex(HASH_BYTES))
