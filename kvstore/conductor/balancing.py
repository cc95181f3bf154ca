"""Balance of the Conductor service: how a caller's engines are best split, and who is to switch."""

from __future__ import annotations

from kvstore.conductor.crews import Whose
from kvstore.conductor.facts import Role
from kvstore.conductor.scheduler import Scheduler
from kvstore.errors import Invalid
from kvstore.limits import GROUPS_MAX, HASH_BYTES
from kvstore.wire.v1 import conductor_pb2 as pb


def balance(
    scheduler: Scheduler, tenant: str, request: pb.BalanceRequest, now: float
) -> pb.BalanceReply:
    """Raises `Invalid` naming the field, and `Unavailable` where none of the engines is there."""
    if request.group >= GROUPS_MAX:
        raise Invalid(f"group {request.group}: a namespace has at most {GROUPS_MAX}")
    reply = pb.BalanceReply()
    if not request.namespace:
        if request.engine_id:
            raise Invalid("engine_id: say of which namespace it is")
        for whose in scheduler.crews_of(tenant):
            _tell(reply.crews.add(), scheduler, whose, "", now)
        return reply
    if len(request.namespace) != HASH_BYTES:
        size = len(request.namespace)
        raise Invalid(f"namespace is {size} bytes; a digest has {HASH_BYTES}, or it is left out")
    whose = (tenant, request.namespace, request.group)
    _tell(reply.crews.add(), scheduler, whose, request.engine_id, now)
    return reply


def _tell(
    said: pb.BalanceReply.Crew, scheduler: Scheduler, whose: Whose, engine_id: str, now: float
) -> None:
    advice = scheduler.balance(whose, now)
    _, said.namespace, said.group = whose
    said.now.prefill, said.now.decode = advice.prefills, advice.decodes
    said.best.prefill, said.best.decode = advice.best_prefills, advice.best_decodes
    said.prefill_load, said.decode_load = advice.prefill_load, advice.decode_load
    said.best_load, said.sentence = advice.best_load, advice.sentence
    said.engine_id = advice.engine
    if engine_id:
        role = advice.role if advice.engine == engine_id else Role.AS_IT_IS
        said.role = pb.Role.Value(role.name)
        said.held = advice.held(engine_id)
