"""What other nodes have this one do, beside following its directory: take blocks, and drop them.

They act for the tenant that they name, and reach that tenant's blocks alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeAlias

from kvstore.clock import Clock
from kvstore.errors import Invalid, Overloaded, Unavailable
from kvstore.limits import TAKE_SECONDS_MAX
from kvstore.node.directory import DirectoryService
from kvstore.node.forms import check_name, patience, stored_keys_of
from kvstore.node.namespaces import Namespaces, Place
from kvstore.node.store import Store
from kvstore.node.taking import Offer, Taking
from kvstore.node.tiers import Tiers
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import tenant_of
from kvstore.wire.v1 import directory_pb2 as pb

log = logging.getLogger(__name__)

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types

_RETRY_MS = 500


class PeerService(DirectoryService):
    """The Directory service with what other nodes have this one do."""

    def __init__(
        self,
        node_id: str,
        epoch: int,
        clock: Clock,
        store: Store,
        namespaces: Namespaces,
        taking: Taking,
        tiers: Tiers | None,
    ) -> None:
        blocks = store.blocks
        super().__init__(node_id, epoch, blocks.index.listing, blocks.carried, clock)
        self._store, self._namespaces = store, namespaces
        self._taking, self._tiers = taking, tiers

    async def _place(self, namespace: bytes, group: int) -> Place:
        """Raises no `Unavailable` where it is the metadata that cannot be asked: the other node
        would take this one, which is well, for one that is gone."""
        try:
            return await self._namespaces.place(namespace, group)
        except Unavailable as error:
            raise Overloaded(f"a namespace is not known here yet: {error}", _RETRY_MS) from error

    @typed
    async def Take(self, request: pb.TakeRequest, context: Context) -> pb.TakeReply:
        place = await self._place(request.namespace, request.group)
        keys = stored_keys_of(request.stored_keys)
        check_name("source", request.source)
        if request.worth and len(request.worth) != len(keys):
            raise Invalid(f"{len(request.worth)} worths for {len(keys)} stored_keys; one each")
        offer = Offer(
            *(tenant_of(context), place, request.source, keys, request.durable),
            worth=list(request.worth),
        )
        left = context.time_remaining()
        seconds = TAKE_SECONDS_MAX if left is None else min(TAKE_SECONDS_MAX, 0.8 * float(left))
        has = await self._taking.take(offer, seconds)
        return pb.TakeReply(has=bytes(has), free_bytes=self._taking.free_bytes)

    @typed
    async def Drop(self, request: pb.DropRequest, context: Context) -> pb.DropReply:
        place = await self._place(request.namespace, request.group)
        keys = stored_keys_of(request.stored_keys)
        tenant = tenant_of(context)
        await self._taking.forgo(tenant, keys)
        dropped = self._store.remove(owned := self._store.owned(tenant, place, keys))
        if dropped and self._tiers is not None:
            try:
                async with asyncio.timeout(patience(context)):
                    await self._tiers.flushed(owned)
            except (Unavailable, TimeoutError) as error:
                # It is this node's own trouble, and they are gone for now. Refused, or late, the
                # call would be taken for one that did nothing, and a node that is well for dead.
                why = str(error) or "a restart may bring them back: the disk is late"
                log.warning("blocks were removed by another node: %s", why)
        return pb.DropReply(dropped=bytes(key in dropped for key in keys))
