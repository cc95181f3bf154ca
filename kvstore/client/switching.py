"""Has an engine that can switch between prefilling and decoding take the role that its conductors
want of it.

It asks all of them every few seconds. It switches where one of them names it and none of those that
answer holds it back: each names one engine at a time, and holds back all others until well after
that one has switched, so of two engines that two conductors name neither switches, and later one
does. Who does not answer is passed over; where nobody answers the role stays as it is.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from kvstore.client.reporter import Reporter
from kvstore.config import Credentials
from kvstore.errors import Unavailable
from kvstore.rpc.lasting import LastingStub
from kvstore.rpc.threads import threads_for
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

log = logging.getLogger(__name__)

ASK_SECONDS = (2.0, 4.0)  # between two rounds, by chance: engines are not to ask all at once
ANSWER_SECONDS = 1.0  # of a round: what was said longer ago may hold no more
REST_SECONDS = 30.0  # after it has switched, whatever conductors say
_CLOSE_SECONDS = 5.0


class Switching:
    """Until `close`. `took` is told of each new role, on a thread of its own."""

    def __init__(
        self,
        reporter: Reporter,
        engine: pb.ReportRequest.Engine,
        conductors: Sequence[str],
        took: Callable[[pb.Role], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._reporter, self._took = reporter, took
        self._role = engine.elastic
        self._asked = pb.BalanceRequest(
            namespace=engine.namespace, group=engine.group, engine_id=engine.engine_id
        )
        kind = conductor_pb2_grpc.ConductorStub
        self._conductors = [LastingStub(one, kind, credentials) for one in conductors]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="switching", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(_CLOSE_SECONDS)
        for one in self._conductors:
            one.close()

    def _run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause + random.uniform(*ASK_SECONDS)):
            pause = 0.0
            role = agreed(self._answers())
            if role in (pb.AS_IT_IS, self._role):
                continue
            log.info("this engine is to take another role: %s", pb.Role.Name(role))
            self._role, pause = role, REST_SECONDS
            self._reporter.take_role(role)
            self._took(role)

    def _answers(self) -> list[pb.BalanceReply.Crew]:
        calls = list[tuple[LastingStub, Any, Any]]()  # grpc has no types
        for one in self._conductors:
            stub = one.now
            try:
                with threads_for(one.address):
                    call = stub.Balance.future(self._asked, timeout=ANSWER_SECONDS)
            except Unavailable as error:
                log.debug("a conductor is not asked of roles: %s", error)
            else:
                calls.append((one, stub, call))
        found = list[pb.BalanceReply.Crew]()
        for one, stub, call in calls:
            try:
                found += call.result().crews[:1]
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                log.debug("a conductor says nothing of roles: %s", error)
                one.renewed(stub)
        return found


def agreed(answers: Iterable[pb.BalanceReply.Crew]) -> pb.Role:
    """What conductors want of an engine together: `AS_IT_IS` where one holds it back, where none
    names it, and where two want two things."""
    said = list(answers)
    wanted = {one.role for one in said} - {pb.AS_IT_IS}
    if len(wanted) != 1 or any(one.held for one in said):
        return pb.AS_IT_IS
    (role,) = wanted
    return role if role in (pb.PREFILLS, pb.DECODES) else pb.AS_IT_IS
