"""Real conductors send requests to engines that report to them, over gRPC."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from kvstore.limits import REPORT_SILENCE_SECONDS
from kvstore.metadata import Metadata
from kvstore.metadata.tenants import new_tenant
from kvstore.rpc.identity import TENANT_KEY
from kvstore.rpc.status import ERROR_KEY
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import Reporting, accepted, asked, decoded_by, engine, scheduled
from tests.faults.proxy import Proxy
from tests.nodes import CALL_SECONDS, eventually, prompt, refused
from tests.pools import BESIDE, ConductorProcess, Nodes, pool


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pool() as made:
        yield made


@pytest.fixture(scope="module")
def serving(nodes: Nodes) -> ConductorProcess:
    return nodes.conductor()


@pytest.fixture
def conductor(serving: ConductorProcess) -> ConductorProcess:
    """One that knows of no engine: those of the last test are gone."""
    eventually(lambda: not known(serving))
    return serving


def sends_to(conductor: ConductorProcess, request: str = "probe", **fields: object) -> str:
    """The engine that a request is sent to; empty if to nobody."""
    try:
        return scheduled(conductor.stub, request, **fields).prefill.engine_id
    except grpc.RpcError:
        return ""


def explained(conductor: ConductorProcess, **fields: Any) -> pb.ExplainReply:
    return conductor.stub.Explain(pb.ExplainRequest(**fields), timeout=CALL_SECONDS)


def considered(conductor: ConductorProcess) -> dict[str, float]:
    """How long a long prompt would wait at each engine, in milliseconds."""
    try:
        found = explained(conductor, request=asked("probe", tokens=6_000)).considered
    except grpc.RpcError:
        return {}
    return {one.engine_id: one.wait_ms for one in found}


def known(conductor: ConductorProcess) -> set[str]:
    return set(considered(conductor))


def fetched(conductor: ConductorProcess, **fields: object) -> dict[str, int]:
    """Blocks that each engine would fetch of such a prompt."""
    found = explained(conductor, request=asked("probe", **fields)).considered
    return {one.engine_id: one.fetched_blocks for one in found}


def waits(conductor: ConductorProcess, name: str) -> float:
    return considered(conductor).get(name, -1.0)


def reporting(conductor: ConductorProcess, name: str, **fields: object) -> Reporting:
    """An engine that has begun to report."""
    return Reporting(conductor.address, pb.ReportRequest(engine=engine(name, **fields)))


def test_a_request_is_sent_to_an_engine_that_reports_and_to_none_whose_stream_broke(
    conductor: ConductorProcess,
) -> None:
    said = refused(lambda: scheduled(conductor.stub, "r"))
    assert said.kind == "Unavailable" and "no engine of yours" in said.text
    with reporting(conductor, "one", address="127.0.0.1:7501"):
        eventually(lambda: sends_to(conductor) == "one")
        reply = scheduled(conductor.stub, "r", waited_ms=5)
        assert reply.prefill.address == "127.0.0.1:7501" and reply.decode.engine_id == "one"
        assert reply.split.computed_tokens == 100
        assert reply.ttft_ms >= 115, "the prefill takes 110 ms, and 5 were waited"
        with reporting(conductor, "two", prefill=pb.ReportRequest.Cost(a=0.001, b=1e-4)):
            eventually(lambda: sends_to(conductor) == "two")
        eventually(lambda: sends_to(conductor) == "one")
    eventually(lambda: sends_to(conductor) == "")


def test_a_request_goes_to_the_engine_whose_node_has_its_prefix() -> None:
    with pool() as nodes:
        conductor, node, blocks = nodes.conductor(), nodes.node("n"), prompt(1, blocks=50)
        caller = node.caller()
        caller.register()
        caller.put(blocks)
        eventually(lambda: conductor.holding(blocks) == {node.address: (50, 50)})
        near, other = caller.opened.node_id, nodes.node("m")
        far = other.caller().opened.node_id
        with (
            reporting(conductor, "far", node_id=far),
            reporting(conductor, "near", node_id=near),
        ):
            eventually(lambda: known(conductor) == {"far", "near"})
            eventually(lambda: fetched(conductor, hashes=blocks.hashes, tokens=210)["far"] == 50)
            eventually(lambda: not conductor.match(blocks).approximate)  # it knows the other too
            reply = scheduled(conductor.stub, "r", hashes=blocks.hashes, tokens=210)
            assert reply.prefill.engine_id == "near" and reply.split.there_blocks == 50
            assert reply.split.computed_tokens == 10 and not reply.approximate
            why = explained(conductor, request_id="r")
            assert "near gives the first token in" in why.sentence and why.plan == reply
            assert [one.engine_id for one in why.considered] == ["near", "far"]
            assert why.considered[1].fetched_blocks == 50, "to fetch them is worth it"
            other.kill()
            eventually(lambda: fetched(conductor, hashes=blocks.hashes, tokens=210)["far"] == 0)


def test_a_request_is_decoded_where_its_blocks_are() -> None:
    with pool() as nodes, ExitStack() as reports:
        conductor, node, blocks = nodes.conductor(), nodes.node("n"), prompt(1, blocks=50)
        caller = node.caller()
        caller.register()
        caller.put(blocks)
        eventually(lambda: conductor.holding(blocks) == {node.address: (50, 50)})
        near = caller.opened.node_id
        first, second = (nodes.node(name).caller().opened.node_id for name in ("p", "d"))
        decodes: dict[str, object] = {"prefill": None, "link_bytes_per_second": 1e4}
        reports.enter_context(reporting(conductor, "prefills", decode=None, node_id=first))
        reports.enter_context(reporting(conductor, "far", node_id=second, **decodes))
        reports.enter_context(reporting(conductor, "near", node_id=near, **decodes))
        eventually(lambda: known(conductor) == {"prefills"})
        eventually(
            lambda: {decoded_by(conductor.stub, f"probe {n}") for n in range(12)} == {"far", "near"}
        )
        request: dict[str, Any] = {"hashes": blocks.hashes, "tokens": 210}
        for number in range(4):
            scheduled(conductor.stub, f"r{number}", **request)
            reply = scheduled(conductor.stub, f"r{number}", phase=pb.DECODE, **request)
            assert reply.decode.engine_id == "near"


def test_what_links_carry_is_learned_from_what_nodes_fetch() -> None:
    with pool() as nodes:
        conductor, holder, other = nodes.conductor(), nodes.node("holder"), nodes.node("other")
        chains = (prompt(number, blocks=50) for number in itertools.count(1))
        there, here = holder.caller(), other.caller()
        there.register()
        asked_for = next(chains)
        there.put(asked_for)
        eventually(lambda: conductor.holding(asked_for) == {holder.address: (50, 50)})
        said = {"node_id": here.opened.node_id, "link_bytes_per_second": 5e4}
        with reporting(conductor, "here", **said):
            eventually(lambda: known(conductor) == {"here"})

            def fetched() -> int:
                request = asked("probe", hashes=asked_for.hashes, tokens=210)
                (found,) = explained(conductor, request=request).considered
                return int(found.fetched_blocks)

            assert fetched() == 0, "25,600 bytes would take 0.5 s, and to compute them 0.2 s"

            def fetch_others() -> bool:
                blocks = next(chains)
                there.put(blocks)
                # Known of one by one they would come one by one, and say nothing of what 50 take.
                eventually(lambda: here.match(blocks)[0] == 50)
                assert len(here.get(blocks)[1]) == 50
                there.get(asked_for)  # else it is evicted there for the others
                return fetched() == 50

            eventually(fetch_others, seconds=60.0)


def test_a_request_goes_to_the_engine_that_has_its_prefix_in_memory_of_its_own(
    conductor: ConductorProcess,
) -> None:
    blocks = prompt(1, blocks=50)
    with reporting(conductor, "one"), reporting(conductor, "two") as two:
        eventually(lambda: known(conductor) == {"one", "two"})
        two.say(held=blocks.hashes[:40])
        request = {"hashes": blocks.hashes, "tokens": 210}
        eventually(lambda: scheduled(conductor.stub, "r", **request).split.own_blocks == 40)
        reply = scheduled(conductor.stub, "r", **request)
        assert reply.prefill.engine_id == "two" and reply.split.computed_tokens == 50
        why = explained(conductor, request_id="r")
        assert {one.engine_id: one.own_blocks for one in why.considered} == {"two": 40, "one": 0}
        two.say(cleared=True)
        eventually(lambda: not scheduled(conductor.stub, "r", **request).split.own_blocks)


def test_one_that_is_only_asked_about_goes_nowhere(conductor: ConductorProcess) -> None:
    with reporting(conductor, "one"):
        eventually(lambda: known(conductor) == {"one"})
        before = explained(conductor, request=asked("r")).considered[0]
        assert explained(conductor, request=asked("r")).considered[0] == before
        scheduled(conductor.stub, "r")
        after = explained(conductor, request=asked("s")).considered[0]
        assert after.wait_ms > before.wait_ms == 0


def test_what_no_engine_would_finish_in_time_is_refused_with_a_time_to_come_again(
    conductor: ConductorProcess,
) -> None:
    with reporting(conductor, "one"):
        eventually(lambda: known(conductor) == {"one"})
        said = refused(lambda: scheduled(conductor.stub, "r", tokens=5_000, ttft_ms=1_000))
        assert said.kind == "Overloaded" and said.retry_after_ms > 0
        assert "1 s are wanted: one" in said.text
        assert explained(conductor, request_id="r").sentence == said.text


def test_an_engine_that_falls_silent_is_sent_nothing_though_its_stream_stands(
    conductor: ConductorProcess,
) -> None:
    with reporting(conductor, "one") as silent:
        eventually(lambda: known(conductor) == {"one"})
        silent.beating.clear()
        eventually(lambda: not known(conductor), REPORT_SILENCE_SECONDS + 30)
        error = silent.refused()
        assert dict(error.trailing_metadata())[ERROR_KEY] == "Unavailable"


def test_an_engine_whose_connection_is_cut_is_sent_nothing(conductor: ConductorProcess) -> None:
    port = int(conductor.address.rpartition(":")[2])
    with Proxy(conductor.address, listen=BESIDE, port=port, seed=1) as proxy:
        first = pb.ReportRequest(engine=engine("one"))

        def gone_before_it_seems_silent() -> bool:
            """Maybe the second time or the third, on a busy machine; for silence alone, never."""
            with Reporting(f"{BESIDE}:{port}", first):
                eventually(lambda: known(conductor) == {"one"})
                since = time.monotonic()
                proxy.reset()
                eventually(lambda: not known(conductor))
                return time.monotonic() - since < REPORT_SILENCE_SECONDS / 2

        eventually(gone_before_it_seems_silent)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (pb.ReportRequest(), "engine is absent"),
        (pb.ReportRequest(engine=engine("x", group=99)), "engine.group = 99"),
        (pb.ReportRequest(engine=engine("x"), began=[""]), "began[0] is 0 bytes"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_by_name(
    conductor: ConductorProcess, first: pb.ReportRequest, why: str
) -> None:
    with Reporting(conductor.address, first) as stream:
        error = stream.refused()
    assert dict(error.trailing_metadata())[ERROR_KEY] == "Invalid" and why in error.details()
    assert not known(conductor)


def test_questions_that_make_no_sense_are_refused_by_name(conductor: ConductorProcess) -> None:
    with reporting(conductor, "one"):
        eventually(lambda: known(conductor) == {"one"})
        for fields, why in (
            ({"request_id": ""}, "request_id is 0 bytes"),
            ({"namespace": b"short"}, "namespace is 5 bytes"),
            ({"group": 64}, "group 64"),
            ({"tokens": 0}, "tokens = 0"),
            ({"tokens": 1 << 30}, "tokens = 1073741824"),
            ({"hashes": [b"x"]}, "hashes[0] is 1 bytes"),
            ({"tokens": 4, "hashes": [bytes(32)] * 2}, "hashes: 2 blocks of 4 tokens are more"),
            ({"phase": 7}, "phase = 7"),
            ({"not_at": ["a:1"] * 65}, "65 addresses in not_at"),
            ({"not_at": ["a:1", ""]}, "not_at[1] is 0 bytes"),
        ):
            request = asked(**{"request_id": "r", **fields})
            for ask in (
                lambda request=request: conductor.stub.Schedule(request, timeout=CALL_SECONDS),
                lambda request=request: explained(conductor, request=request),
            ):
                said = refused(ask)
                assert said.kind == "Invalid" and why in said.text
        for fields in ({}, {"request_id": "never asked"}):
            said = refused(lambda fields=fields: explained(conductor, **fields))
            assert said.kind == "Invalid" and "request_id" in said.text


def test_a_tenant_is_never_sent_to_another_tenants_engines(
    nodes: Nodes, conductor: ConductorProcess
) -> None:
    async def add(store: Metadata) -> None:
        record = new_tenant("team-a")
        await store.put_if(record.key(), record.encode(), expected_revision=0)

    nodes.with_metadata(add)

    def of_team(request: str = "r") -> str:
        try:
            return scheduled(conductor.stub, request, "team-a").prefill.engine_id
        except grpc.RpcError as error:
            return dict(error.trailing_metadata() or ()).get(ERROR_KEY, "")

    eventually(lambda: of_team() == "Unavailable")  # Unauthenticated, until the tenant is known
    with reporting(conductor, "same name", address="127.0.0.1:7501"):
        eventually(lambda: known(conductor) == {"same name"})
        assert of_team() == "Unavailable", "the engine of the tenant `default` was named"
        first = pb.ReportRequest(engine=engine("same name", address="127.0.0.1:7502"))
        with Reporting(conductor.address, first, tenant="team-a"):
            eventually(lambda: of_team() == "same name")
            for tenant, port in (("team-a", 7502), ("default", 7501)):
                reply = scheduled(conductor.stub, "r", tenant)
                assert reply.prefill.address == f"127.0.0.1:{port}"
                named = [(TENANT_KEY, tenant)]
                told = conductor.stub.Crews(pb.CrewsRequest(), metadata=named, timeout=CALL_SECONDS)
                assert [one.engines for one in told.crews] == [1]
            request = pb.ExplainRequest(request_id="only mine")
            scheduled(conductor.stub, "only mine", "team-a")
            said = refused(lambda: conductor.stub.Explain(request, timeout=CALL_SECONDS))
            assert said.kind == "Invalid", "another tenant's request was explained"


def test_of_two_conductors_one_dies_and_the_other_goes_on_with_the_load_known() -> None:
    with pool() as nodes, ExitStack() as stack:
        both = first, second = nodes.conductor("first"), nodes.conductor("second")
        streams = {
            (name, one): stack.enter_context(reporting(one, name)) for name in "ab" for one in both
        }
        for one in both:
            eventually(lambda one=one: known(one) == {"a", "b"})
        sent_to = scheduled(first.stub, "long", tokens=5_000).prefill.engine_id
        other = {"a": "b", "b": "a"}[sent_to]
        assert waits(first, sent_to) == pytest.approx(5_010) and waits(second, sent_to) == 0
        for one in both:  # its engine tells everybody, and who sent it there counts it once
            streams[sent_to, one].say(accepted=[accepted("long", 5_000), accepted("short", 10)])
        for one in both:
            eventually(lambda one=one: waits(one, sent_to) == pytest.approx(5_030))
        first.kill()
        assert scheduled(second.stub, "next", tokens=6_000).prefill.engine_id == other
        streams[sent_to, second].say(began=["long"], given_up=["short"])
        eventually(lambda: 0 < waits(second, sent_to) < 5_010)
        streams[sent_to, second].say(ended=["long"])
        eventually(lambda: waits(second, sent_to) == 0)


def test_a_conductor_that_stops_answers_those_who_report(nodes: Nodes) -> None:
    one = nodes.conductor("stops")
    with reporting(one, "a") as stream:
        eventually(lambda: known(one) == {"a"})
        one.signal(signal.SIGTERM)
        assert stream.call.result(timeout=CALL_SECONDS) == pb.ReportReply()
        assert one.wait() == 0
