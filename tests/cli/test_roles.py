"""`moonpool roles` on the command line: what it prints, and its codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kvstore.cli.main import main
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.doubles import Double, serving
from tests.conductor.reporting import Reporting, engine
from tests.nodes import SPEC, eventually
from tests.pools import ConductorProcess, pool

Run = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def conductor() -> Iterator[ConductorProcess]:
    with pool() as nodes:
        yield nodes.conductor()


def test_it_says_how_engines_are_split_and_why_nobody_is_to_switch(
    conductor: ConductorProcess, capsys: Run
) -> None:
    asked = ["roles", "--conductor", conductor.address]
    assert main(asked) == 1
    assert f"no engine of yours reports to {conductor.address}" in capsys.readouterr().err
    with ExitStack() as stack:
        for name, role in (("p", pb.PREFILLS), ("a", pb.DECODES), ("b", pb.DECODES)):
            first = pb.ReportRequest(engine=engine(name, elastic=role))
            stack.enter_context(Reporting(conductor.address, first))

        def all_known() -> bool:
            known, said = main(asked) == 0, capsys.readouterr().out
            return known and "1 prefill" in said and "2 decode" in said

        eventually(all_known)
        assert main(asked) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"namespace {SPEC.digest.hex()[:12]}, as it was asked in the last m")
        assert "  now   1 prefill, 0% of what" in said
        assert "nobody is to switch: too little was asked for here yet" in said
        assert main([*asked, "--namespace", SPEC.digest.hex()[:4], "--json"]) == 0
        (crew,) = json.loads(capsys.readouterr().out)["crews"]
        assert crew["now"] == crew["best"] == {"prefill": 1, "decode": 2}
        assert crew["namespace"] == SPEC.digest.hex() and crew["engine_id"] == ""
        assert main([*asked, "--namespace", "zz"]) == 1
        assert "of namespace zz reports" in capsys.readouterr().err


def test_a_phase_that_nobody_does_and_one_who_is_to_switch_are_told(capsys: Run) -> None:
    double = Double()
    double.crew = pb.BalanceReply.Crew(
        namespace=bytes(32), prefill_load=float("inf"), decode_load=0.5, sentence="e is to prefill"
    )
    double.crew.now.decode = 2
    with serving(double):
        assert main(["roles", "--conductor", double.address]) == 0
        said = capsys.readouterr().out
        assert "0 prefill, far more of what they can do" in said and "e is to prefill" in said
        assert "2 decode, 50% of what they can do" in said
        assert main(["roles", "--conductor", double.address, "--json"]) == 0
        (crew,) = json.loads(capsys.readouterr().out)["crews"]
        assert crew["prefill_load"] is None and crew["decode_load"] == 0.5


def test_a_conductor_that_is_not_there_is_named(capsys: Run) -> None:
    assert main(["roles", "--conductor", "127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_its_help_teaches(capsys: Run) -> None:
    with pytest.raises(SystemExit):
        main(["roles", "--help"])
    said = capsys.readouterr().out
    assert "--role elastic" in said and "MOONPOOL_TOKEN" in said and "exit code 1" in said
