"""A gateway whose conductors are cut off from engines that it reaches itself."""

from __future__ import annotations

from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Told
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, engine
from tests.gateway.engine_doubles import PROMPT, Double, serving
from tests.nodes import eventually
from tests.pools import pool


def test_engines_of_which_conductors_hear_no_more_are_gone_on_to() -> None:
    double = Double(revision="w")
    with pool() as nodes, serving(double):
        conductor = nodes.conductor()
        said = pb.ReportRequest(engine=engine("a", revision="w", address=double.address))
        with (
            Reporting(conductor.address, said) as reporting,
            Conductors([conductor.address]) as conductors,
        ):
            told = Told(conductors, "w")
            dispatcher = Dispatcher(conductors, told, (), OPEN)
            eventually(told.now)
            assert dispatcher.run(Request("1", PROMPT, 2)).engines == [double.address]
            reporting.beating.clear()
            eventually(lambda: not told.now())
            for number in range(3):
                outcome = dispatcher.run(Request(f"cut {number}", PROMPT, 2))
                assert outcome.engines == [double.address]
            dispatcher.close()
