"""The Conductor service: who in the pool holds how much of a chain, and which node has a block.
What engines report and where requests run is in scheduling.py.

Its answers are hints: the owner decides, by whole keys, so a stale one costs a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from kvstore.conductor.balancing import balance
from kvstore.conductor.giving_up import give_up
from kvstore.conductor.listing import crews
from kvstore.conductor.scheduling import SchedulingService
from kvstore.conductor.stored import stored_prints
from kvstore.core.fingerprints import IN_MEMORY
from kvstore.errors import Invalid
from kvstore.limits import GROUPS_MAX, HASH_BYTES, HOLDERS_MAX, RPC_KEYS_MAX
from kvstore.rpc.handler import typed
from kvstore.rpc.identity import tenant_of
from kvstore.wire.prints import asked
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import directory_pb2

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


class ConductorService(SchedulingService):
    """Each method is documented in proto/moonpool/v1/conductor.proto."""

    @typed
    async def Match(self, request: pb.PoolMatchRequest, context: Context) -> pb.PoolMatchReply:
        _check(request.namespace, request.group, request.hashes)
        secret = self._tenants.secrets.get(tenant_of(context))
        reply = pb.PoolMatchReply(approximate=self._pool.approximate)
        if secret is None:
            return reply
        namespace, group = request.namespace, request.group
        prints = stored_prints(secret, namespace, group, request.hashes)
        table = self._pool.table
        named = {member.record.node_id: member for member in self._pool.named()}
        found = table.longest(prints, named)
        most = sorted(found, key=lambda node: (-found[node], node))[:HOLDERS_MAX]
        for node in most:
            in_memory = table.tiers(node, prints[: found[node]]) & IN_MEMORY
            reply.holders.add(
                node_id=node,
                address=named[node].record.address,
                blocks=found[node],
                dram_blocks=int(np.count_nonzero(in_memory)),
            )
        # What each lists is closed towards the start, so what all list is what the longest does.
        reply.blocks = max(found.values(), default=0)
        return reply

    @typed
    async def Holders(
        self, request: directory_pb2.HoldersRequest, context: Context
    ) -> directory_pb2.HoldersReply:
        prints, table = asked(request.fingerprints), self._pool.table
        reply = directory_pb2.HoldersReply(approximate=self._pool.approximate)
        counts = table.holding(prints)
        named = [one for one in self._pool.named() if one.record.node_id in counts]
        named.sort(key=lambda one: (-counts[one.record.node_id], one.record.node_id))
        for member in named[:HOLDERS_MAX]:
            tiers = table.tiers(member.record.node_id, prints)
            reply.holders.add(
                node_id=member.record.node_id, epoch=member.tracked.epoch, tiers=tiers.tobytes()
            )
        return reply

    @typed
    async def GiveUp(self, request: pb.GiveUpRequest, context: Context) -> pb.GiveUpReply:
        return give_up(self._scheduler, tenant_of(context), request, self._clock.now())

    @typed
    async def Balance(self, request: pb.BalanceRequest, context: Context) -> pb.BalanceReply:
        return balance(self._scheduler, tenant_of(context), request, self._clock.now())

    @typed
    async def Crews(self, request: pb.CrewsRequest, context: Context) -> pb.CrewsReply:
        return crews(self._scheduler, tenant_of(context), request, self._clock.now())


def _check(namespace: bytes, group: int, hashes: Sequence[bytes]) -> None:
    if len(namespace) != HASH_BYTES:
        raise Invalid(f"namespace is {len(namespace)} bytes; a digest has {HASH_BYTES}")
    if group >= GROUPS_MAX:
        raise Invalid(f"group {group}: a namespace has at most {GROUPS_MAX}")
    if not 0 < len(hashes) <= RPC_KEYS_MAX:
        raise Invalid(f"{len(hashes)} hashes in one call; send 1 to {RPC_KEYS_MAX}")
    for i, one in enumerate(hashes):
        if len(one) != HASH_BYTES:
            raise Invalid(f"hashes[{i}] is {len(one)} bytes; a block hash has {HASH_BYTES}")
