"""What a caller hears of the engines that report: those of its own tenant, by their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from kvstore.limits import CREW_ADAPTERS_MAX, ENGINE_ADAPTERS_MAX
from kvstore.rpc.identity import TENANT_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, engine
from tests.nodes import CALL_SECONDS, SPEC, eventually
from tests.pools import ConductorProcess, pool


@pytest.fixture(scope="module")
def conductor() -> Iterator[ConductorProcess]:
    with pool() as nodes:
        yield nodes.conductor()


def crews(
    conductor: ConductorProcess, revision: str = "", tenant: str = "default"
) -> list[pb.CrewsReply.Crew]:
    request = pb.CrewsRequest(revision=revision)
    named = [(TENANT_KEY, tenant)]
    return list(conductor.stub.Crews(request, timeout=CALL_SECONDS, metadata=named).crews)


def left(conductor: ConductorProcess, revision: str) -> set[str]:
    request, named = pb.CrewsRequest(revision=revision), [(TENANT_KEY, "default")]
    return set(conductor.stub.Crews(request, timeout=CALL_SECONDS, metadata=named).left)


def reports(
    conductor: ConductorProcess, name: str, tenant: str = "default", **said: Any
) -> Reporting:
    return Reporting(conductor.address, pb.ReportRequest(engine=engine(name, **said)), tenant)


def test_a_crew_is_what_its_engines_say(conductor: ConductorProcess) -> None:
    with reports(conductor, "mute") as mute:
        eventually(lambda: len(crews(conductor)) == 1)
        assert not crews(conductor, "w")
        with (
            reports(conductor, "a", revision="w", address="http://127.0.0.1:8000"),
            reports(conductor, "b", revision="w"),
        ):
            eventually(lambda: [one.engines for one in crews(conductor, "w")] == [3])
            (crew,) = crews(conductor)
            assert (crew.namespace, crew.group, crew.block_tokens) == (SPEC.digest, 0, 4)
            assert (crew.revision, crew.over_http) == ("w", 1)
            assert set(crew.addresses) == {"127.0.0.1:7500", "http://127.0.0.1:8000"}
            assert not crews(conductor, "v")
        mute.end()
    eventually(lambda: not crews(conductor))


def test_adapters_are_those_of_all_its_engines_and_weights_those_that_are_the_same_at_all(
    conductor: ConductorProcess,
) -> None:
    def said(**weights: bytes) -> list[pb.Adapter]:
        return [pb.Adapter(name=name, weights=one * 32) for name, one in weights.items()]

    def heard(revision: str) -> dict[str, bytes]:
        found = crews(conductor, revision)
        return {one.name: one.weights[:1] for crew in found for one in crew.adapters}

    with (
        reports(conductor, "a", revision="w") as one,
        reports(conductor, "b", revision="w") as other,
    ):
        one.say(adapters=said(both=b"1", mixed=b"2", mine=b"3", nameless=b""))
        other.say(adapters=said(both=b"1", mixed=b"9", nameless=b"4"))
        known = {"both": b"1", "mixed": b"", "mine": b"3", "nameless": b""}
        eventually(lambda: heard("w") == known)
        assert heard("") == {}, "of all that are served they would be too many"
        one.say(adapters=said(mixed=b"9"))
        eventually(lambda: heard("w") == {**known, "mixed": b"9"})


def test_one_answer_tells_of_so_many_adapters(
    conductor: ConductorProcess,
) -> None:
    def said(first: int) -> list[pb.Adapter]:
        return [pb.Adapter(name=f"{first + one}") for one in range(ENGINE_ADAPTERS_MAX)]

    with ExitStack() as engines:
        for number in range(5):
            told = reports(conductor, f"{number}", revision="w", namespace=bytes([number % 2]) * 32)
            engines.enter_context(told).say(adapters=said(1_000 * number))

        def heard() -> int:
            return sum(len(one.adapters) for one in crews(conductor, "w"))

        eventually(lambda: heard() == CREW_ADAPTERS_MAX)


def test_engines_of_one_namespace_call_their_blocks_alike(conductor: ConductorProcess) -> None:
    """Else what one of them is sent for it would not have."""
    pages = {"naming": "sglang 0/1", "address": "sglang://127.0.0.1:30000"}
    with reports(conductor, "a", **pages):
        eventually(lambda: [one.naming for one in crews(conductor)] == ["sglang 0/1"])
        with reports(conductor, "b", naming="sglang 0/2") as refused:
            error = refused.refused()
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "engine.naming = 'sglang 0/2'" in error.details()
        assert "'sglang 0/1'" in error.details()
    eventually(lambda: not crews(conductor))


def test_engines_have_left_that_say_so_and_not_those_of_which_nothing_is_heard(
    conductor: ConductorProcess,
) -> None:
    with (
        reports(conductor, "leaves", revision="w", address="h:1") as leaves,
        reports(conductor, "breaks off", revision="w", address="h:2") as breaks,
    ):
        eventually(lambda: [one.engines for one in crews(conductor, "w")] == [2])
        breaks.end()
        leaves.say(leaves=True)
        eventually(lambda: left(conductor, "w") == {"h:1"} and not crews(conductor))
    with reports(conductor, "is back", revision="w", address="h:1"):
        eventually(lambda: not left(conductor, "w"))
    assert not left(conductor, "w"), "it has broken off since"


def test_an_engine_with_other_weights_has_left_these_unless_one_at_its_address_has_them(
    conductor: ConductorProcess,
) -> None:
    with reports(conductor, "a", revision="v", namespace=b"v" * 32, address="h:1"):
        eventually(lambda: left(conductor, "w") == {"h:1"})
        assert not left(conductor, "v") and not left(conductor, "")
        with reports(conductor, "b", revision="w", address="h:1"):
            eventually(lambda: not left(conductor, "w"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("revision", "x" * 1_025),
        ("revision", "a\nb"),
        ("address", "https://h:1"),
        ("naming", "a\nb"),
    ],
)
def test_what_cannot_be_ends_a_report_by_its_name(
    conductor: ConductorProcess, field: str, value: str
) -> None:
    with reports(conductor, "e", **{field: value}) as refused:
        error = refused.refused()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"engine.{field}" in error.details()


def test_a_revision_that_cannot_be_is_refused(conductor: ConductorProcess) -> None:
    with pytest.raises(grpc.RpcError, match="revision is 1025 bytes"):
        crews(conductor, "x" * 1_025)
