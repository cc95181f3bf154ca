"""Real engines that can switch: one that is told to does so under load, no request fails, and every
token is that of one process."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.chats import Coming
from bench.drive import drive
from bench.fleet import Fleet, Plan, running
from kvstore.client import conductors as conductors_module
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.engine.daemon import EngineConfig, run
from kvstore.engine.reference import Reference
from kvstore.errors import ConfigError
from kvstore.gateway.request import Request
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc, engine_pb2, engine_pb2_grpc
from tests.conductor.doubles import Double, serving
from tests.engine.runs import prompt
from tests.nodes import CALL_SECONDS, eventually

NEW, REQUESTS = 6, 60
TOGETHER, APART_SECONDS = 6, 2.0  # so many at once: one engine alone does not prefill them
ROUNDS = 3  # of all prompts at once: more than two engines have room for
PLAN = Plan(dram=("8MiB",), slab="1MiB", pages=96, elastic=True)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conductor's answer is waited for on a machine that does other things, too."""
    monkeypatch.setattr(conductors_module, "ANSWER_SECONDS", 60.0)


@pytest.fixture
def double() -> Iterator[Double]:
    made = Double()
    with serving(made):
        yield made


@pytest.fixture
def fleet(model_dir: Path, double: Double) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory(prefix="mp") as directory,
        running(Path(directory), model_dir, PLAN, [double.address]) as made,
    ):
        yield made


def told(fleet: Fleet, conductor: str) -> pb.BalanceReply.Crew:
    with closing(open_channel(conductor, OPEN)) as channel:
        stub = conductor_pb2_grpc.ConductorStub(channel)
        request = pb.BalanceRequest(namespace=fleet.spec.digest)
        (crew,) = stub.Balance(request, timeout=CALL_SECONDS).crews
    return crew


def role(engine: str) -> str:
    with closing(open_channel(engine, OPEN)) as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        info = stub.EngineInfo(engine_pb2.EngineInfoRequest(), timeout=CALL_SECONDS)
    return str(info.role)


def test_an_engine_switches_under_load_and_every_request_is_answered_as_by_one_process(
    fleet: Fleet, double: Double, reference: Reference
) -> None:
    first, other = fleet.addresses["prefill"]
    coming = []
    for number in range(REQUESTS):
        tokens = tuple(prompt(200 + 40 * (number % 5), seed=number % 20))
        asked = Request(f"{number}", tokens, NEW, ignore_eos=True)
        coming.append(Coming(APART_SECONDS * (number // TOGETHER), asked))
    answers = {one.request.id: reference.tokens(list(one.request.prompt), NEW) for one in coming}
    for conductor in fleet.told:
        crew = told(fleet, conductor)
        assert crew.now == pb.BalanceReply.Split(prefill=2, decode=2), "as it was configured"
        assert not crew.engine_id and "too little was asked for" in crew.sentence

    why: dict[str, list[str]] = {one: [] for one in fleet.told}  # as conductors say it meanwhile

    def sent(number: int) -> None:
        if number == 2 * TOGETHER:
            double.crew = pb.BalanceReply.Crew(engine_id=f"elastic {first}", role=pb.DECODES)
        if number > 2 * TOGETHER and number % TOGETHER == 0:
            for conductor, sentences in why.items():
                sentences.append(told(fleet, conductor).sentence)

    with Conductors(fleet.told, OPEN) as conductors:
        ran = drive(fleet, conductors, coming, sent)
        at_once = [Coming(0.0, one.request) for one in coming]
        after = [drive(fleet, conductors, at_once) for _ in range(ROUNDS)]
    assert all(not one.failed and not one.wrong(answers) for one in (ran, *after))
    assert role(first) == "decode" and role(other) == "prefill"
    for conductor in fleet.told:
        crew = told(fleet, conductor)
        assert crew.now == pb.BalanceReply.Split(prefill=1, decode=3)
        assert any("did so less than 30 s ago" in one for one in why[conductor])
    assert any(what.engines[0] == first for _, what in ran.done), "it prefilled first"
    late = [what for one in after for _, what in one.done]
    assert not any(what.engines[0] == first and len(what.engines) > 1 for what in late)
    assert any(what.engines[-1] == first for what in late), "and decoded then"


def test_where_conductors_die_engines_keep_their_roles_and_serve(
    fleet: Fleet, double: Double, reference: Reference
) -> None:
    for one in fleet.conductors:
        fleet.kill(one)
    since = len(double.asked)
    eventually(lambda: len(double.asked) > since + 4, 20.0)
    tokens = tuple(prompt(300, seed=99))
    with Conductors(fleet.told, OPEN) as conductors:
        ran = drive(fleet, conductors, [Coming(0.0, Request("alone", tokens, NEW, True))])
    assert not ran.failed and ran.done[0][1].tokens == reference.tokens(list(tokens), NEW)
    for kind, addresses in fleet.addresses.items():
        assert [role(one) for one in addresses] == [kind] * 2


@pytest.mark.parametrize(
    ("said", "why"), [("elastic=decode", "give --conductor"), ("elastic=both", "is one of")]
)
def test_a_role_that_cannot_be_is_refused_by_name(
    said: str, why: str, model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        asyncio.run(run(EngineConfig(model_dir, tmp_path, role=said), print))
