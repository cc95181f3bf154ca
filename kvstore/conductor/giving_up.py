"""GiveUp of the Conductor service: what its caller sends nowhere counts no more.

A caller's word and an engine's overtake each other, and the engine's counts: what it has said to
have is taken out when it says what came of it, and what it says to have after its caller gave it up
is counted anew, until then. That a caller left says nothing of a crowd.
"""

from __future__ import annotations

from kvstore.conductor.in_flight import InFlight
from kvstore.conductor.prompts import Stage
from kvstore.conductor.reports import check_ids
from kvstore.conductor.scheduler import Scheduler
from kvstore.errors import Invalid
from kvstore.limits import GROUPS_MAX, HASH_BYTES
from kvstore.wire.v1 import conductor_pb2 as pb


def give_up(
    scheduler: Scheduler, tenant: str, request: pb.GiveUpRequest, now: float
) -> pb.GiveUpReply:
    """Raises `Invalid` naming the field."""
    if len(request.namespace) != HASH_BYTES:
        size = len(request.namespace)
        raise Invalid(f"namespace is {size} bytes; a digest has {HASH_BYTES}")
    if request.group >= GROUPS_MAX:
        raise Invalid(f"group {request.group}: a namespace has at most {GROUPS_MAX}")
    check_ids("request_ids", request.request_ids)
    whose = (tenant, request.namespace, request.group)
    if whose in scheduler.crews_of(tenant):
        _, in_flight = scheduler.crew(whose)
        for one in request.request_ids:
            _take_out(in_flight, one, now)
    return pb.GiveUpReply()


def _take_out(in_flight: InFlight, request: str, now: float) -> None:
    in_flight.forgive(request)
    prompt = in_flight.prompts.get(request)
    if prompt is None or prompt.stage is Stage.SENT:
        in_flight.drop(request, now)
    else:
        in_flight.room.forget(request)
