"""Crews of the Conductor service: what a caller's engines serve."""

from __future__ import annotations

from kvstore.address import speaks_http
from kvstore.conductor.reports import check_text
from kvstore.conductor.scheduler import Scheduler
from kvstore.limits import NAME_BYTES_MAX
from kvstore.wire.v1 import conductor_pb2 as pb


def crews(
    scheduler: Scheduler, tenant: str, request: pb.CrewsRequest, gathers: bool
) -> pb.CrewsReply:
    """`gathers`: some engines may not have reported yet. Raises `Invalid` naming the field."""
    if request.revision:
        check_text("revision", request.revision, NAME_BYTES_MAX)
    reply = pb.CrewsReply(gathers=gathers)
    for whose in scheduler.crews_of(tenant):
        crew, _ = scheduler.crew(whose)
        if request.revision in ("", crew.revision):
            _, namespace, group = whose
            reply.crews.add(
                namespace=namespace,
                group=group,
                block_tokens=crew.block_tokens,
                revision=crew.revision,
                engines=len(crew.by_id),
                naming=crew.naming,
                addresses={one.facts.address for one in crew.by_id.values()},
                over_http=sum(speaks_http(one.facts.address) for one in crew.by_id.values()),
            )
    return reply
