"""Crews of the Conductor service: what a caller's engines serve."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.address import speaks_http
from kvstore.conductor.engines import Engine
from kvstore.conductor.reports import check_text
from kvstore.conductor.scheduler import Scheduler
from kvstore.limits import CREW_ADAPTERS_MAX, NAME_BYTES_MAX
from kvstore.wire.v1 import conductor_pb2 as pb


def crews(scheduler: Scheduler, tenant: str, request: pb.CrewsRequest, now: float) -> pb.CrewsReply:
    """Raises `Invalid` naming the field."""
    if request.revision:
        check_text("revision", request.revision, NAME_BYTES_MAX)
    reply, here = pb.CrewsReply(), set[str]()
    left, room = scheduler.left(tenant, now), CREW_ADAPTERS_MAX
    for whose in scheduler.crews_of(tenant):
        crew, _ = scheduler.crew(whose)
        addresses = {one.facts.address for one in crew.by_id.values()}
        if request.revision not in ("", crew.revision):
            left |= addresses
            continue
        here |= addresses
        _, namespace, group = whose
        reply.crews.add(
            namespace=namespace,
            group=group,
            block_tokens=crew.block_tokens,
            revision=crew.revision,
            engines=len(crew.by_id),
            naming=crew.naming,
            addresses=addresses,
            over_http=sum(speaks_http(one.facts.address) for one in crew.by_id.values()),
            adapters=_adapters(crew.by_id.values(), room) if request.revision else (),
        )
        room -= len(reply.crews[-1].adapters)
    reply.left.extend(left - here)
    return reply


def _adapters(engines: Iterable[Engine], room: int) -> list[pb.Adapter]:
    """That some of these have loaded, and no more than so many."""
    found: dict[str, bytes] = {}
    for engine in engines:
        if engine.adapters.items() <= found.items():
            continue  # as where all have the same: many engines have many
        for name, weights in reversed(engine.adapters.items()):
            if name in found or len(found) < room:
                alike = found.setdefault(name, weights) == weights
                found[name] = weights if alike else b""
    return [pb.Adapter(name=name, weights=weights) for name, weights in found.items()]
