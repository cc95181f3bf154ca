"""One request is one trace, from whoever asks to the node that fetches: seen by a collector that
real processes send their spans to."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvstore import traces
from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.engine.make_model import make_model
from kvstore.errors import ConfigError
from tests.gateway.http.conftest import client_of
from tests.nodes import eventually

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry's packages are not installed")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

SECONDS = 60.0
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ASKER = f"00-{TRACE}-{SPAN}-01"


@dataclass(frozen=True)
class Seen:
    service: str
    name: str
    trace: str
    span: str
    parent: str
    begins: int
    ends: int
    said: dict[str, int]


class Collector:
    """What OTLP over HTTP is sent to."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        found = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                found.extend(_spans(ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _spans(sent: ExportTraceServiceRequest) -> Iterator[Seen]:
    for resource in sent.resource_spans:
        service = next(
            one.value.string_value
            for one in resource.resource.attributes
            if one.key == "service.name"
        )
        for scope in resource.scope_spans:
            for one in scope.spans:
                said = {each.key: int(each.value.int_value) for each in one.attributes}
                yield Seen(
                    *(service.removeprefix("moonpool-"), one.name, one.trace_id.hex()),
                    *(one.span_id.hex(), one.parent_span_id.hex()),
                    *(one.start_time_unix_nano, one.end_time_unix_nano, said),
                )


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(traces.ENDPOINT, made.address)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        yield made
    made.close()


class House:
    """Two engines, each of a node of its own, and a conductor: all of them processes."""

    def __init__(self, model: Path, directory: Path) -> None:
        self._model, self._directory, self._parts = model, directory, ExitStack()
        metadata = ["--metadata", os.fspath(directory / "pool.db")]
        homes = [["--dir", os.fspath(directory / name)] for name in "ab"]
        for number, home in enumerate(homes):
            memory = ["--dram", "16MiB", "--slab", "1MiB", *metadata]
            self._start(f"node {number}", ["node", *home, *memory])
        self.conductor = self._start("conductor", ["conductor", *metadata])
        told = ["--conductor", self.conductor.address, "--threads", "1"]
        self.engines = [
            self._start(f"engine {number}", ["engine", *home, "--model", os.fspath(model), *told])
            for number, home in enumerate(homes)
        ]

    def serving(self, *knows: str) -> AbstractContextManager[Child]:
        """A gateway that knows these."""
        serve = ["serve", "--model", os.fspath(self._model), "--listen", "127.0.0.1:0", *knows]
        return self._running("serve", serve)

    def close(self) -> None:
        self._parts.close()

    def _start(self, name: str, arguments: list[str]) -> Child:
        return self._parts.enter_context(self._running(name, arguments))

    @contextmanager
    def _running(self, name: str, arguments: list[str]) -> Iterator[Child]:
        child = Child(name, arguments, self._directory)
        child.start()
        try:
            child.wait_ready()
            yield child
        finally:
            child.stop()
            child.reap(time.monotonic() + STOP_SECONDS)


@pytest.fixture(scope="module")
def house(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 128}
    model = make_model(tmp_path_factory.mktemp("m") / "tiny", seed=1, vocab=512, **sizes)
    with tempfile.TemporaryDirectory(prefix="mp") as place:
        made = House(model, Path(place))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def gateway(house: House) -> Iterator[Child]:
    engines = [f"--engine={one.address}" for one in house.engines]
    with house.serving(f"--conductor={house.conductor.address}", *engines) as child:
        yield child


def ask(gateway: Child, tokens: list[int], parent: str = "") -> None:
    with client_of(gateway) as ai:
        headers = {traces.KEY: parent} if parent else {}
        ai.completions.create(
            model="tiny", prompt=tokens, max_tokens=4, extra_headers=headers, temperature=0
        )


def of_trace(collector: Collector, trace: str) -> list[Seen]:
    return [one for one in collector.spans if one.trace == trace]


def whole(collector: Collector, trace: str) -> set[tuple[str, str]]:
    """What came of a trace, by service and name; nothing while a span is there whose parent, which
    ends later or is another process's, is still to be sent."""
    came = of_trace(collector, trace)
    known = {one.span for one in came} | {SPAN}
    if any(one.parent not in known for one in came):
        return set()
    return {(one.service, one.name) for one in came}


def test_a_request_is_one_trace_through_gateway_conductor_engine_and_node(
    collector: Collector, gateway: Child
) -> None:
    ask(gateway, [(5 * number) % 500 for number in range(200)], ASKER)
    wanted = {
        ("gateway", "request"),
        ("conductor", "Schedule"),
        ("engine", "wait"),
        ("engine", "prefill"),
        ("node", "Match"),
    }
    eventually(lambda: wanted <= whole(collector, TRACE), SECONDS)
    spans = {one.span: one for one in of_trace(collector, TRACE)}
    (begun,) = (one for one in spans.values() if one.name == "request")
    assert begun.parent == SPAN, "it goes on with the trace of whoever asked"
    assert begun.said == {"prompt_tokens": 200, "cached_tokens": 0, "output_tokens": 4}
    for one in spans.values():
        assert one is begun or one.parent in spans, f"{one.name} hangs nowhere"
        assert one.begins <= one.ends
        if one is not begun:
            assert one.begins >= begun.begins - 1_000_000, f"{one.name} began before it was asked"


def test_what_another_node_has_is_fetched_within_the_trace(
    collector: Collector, house: House
) -> None:
    alone = [house.serving(f"--engine={engine.address}") for engine in house.engines]
    prompts = itertools.count(3)
    with alone[0] as stores, alone[1] as fetches:

        def fetched() -> Seen | None:
            """Asked anew: where a node is late its answer is not waited for."""
            begins = next(prompts)
            tokens = [(7 * token + begins) % 500 for token in range(200)]
            for one in (stores, fetches):
                ask(one, tokens)
            spans = (one for one in collector.spans if one.name == "fetch")
            return next((one for one in spans if one.said["blocks"] > 0), None)

        fetch = eventually(fetched, 2 * SECONDS)
    eventually(lambda: any(one.span == fetch.parent for one in collector.spans), SECONDS)
    assert fetch.service == "node"
    eventually(
        lambda: (
            {one.service for one in of_trace(collector, fetch.trace)}
            == {"gateway", "engine", "node"}
        ),
        SECONDS,
    )


def test_nobody_begins_a_trace_but_the_gateway(collector: Collector, gateway: Child) -> None:
    ask(gateway, [3] * 70)
    time.sleep(1.0)

    def all_are_its() -> bool:  # a request is told of once it is over, and maybe late
        begun = {one.trace for one in collector.spans if one.name == "request"}
        return {one.trace for one in collector.spans} == begun

    eventually(all_are_its, SECONDS)


def test_what_is_no_traceparent_begins_a_new_trace(collector: Collector, gateway: Child) -> None:
    before = {one.trace for one in collector.spans}
    ask(gateway, [4] * 70, "what is this" * 100)
    eventually(
        lambda: any(one.trace not in before for one in collector.spans if one.name == "request"),
        SECONDS,
    )


def test_nothing_is_made_where_nobody_collects() -> None:
    assert not traces.on() and traces.traceparent() == ""
    with traces.root("request", ASKER, prompt_tokens=3) as span, traces.span("a part"):
        traces.tell(span, cached_tokens=1)
        assert span is None and traces.traceparent() == ""
    traces.told("over", ASKER, 0.0, 1.0)


def test_spans_that_cannot_be_sent_are_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(traces.ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigError, match=r"moonpool\[traces\]"):
        traces.begin("node")
