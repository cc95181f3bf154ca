"""Engines report to a real conductor, which sends requests to where their prefix is."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from kvstore.cli.parts import Plan
from kvstore.cli.stack import Child, Stack
from kvstore.client import Client, InDirectory
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.hooks import NoHooks
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Request
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.telling import Telling
from kvstore.engine.worker import Job, Worker
from kvstore.errors import ConfigError
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc, engine_pb2_grpc
from kvstore.wire.v1 import engine_pb2 as engine_pb
from tests.engine.runs import prompt
from tests.nodes import eventually

SECONDS, STOP_SECONDS = 60.0, 15.0


class House:
    """A node, a conductor, and engines that report to it."""

    def __init__(self, model: Path, directory: Path) -> None:
        self._model, self._directory, self._parts = model, directory, ExitStack()
        plan = Plan(directory / "node", dram="16MiB", slab="1MiB", model=None)
        self._stack = self._parts.enter_context(Stack(plan, restart=False))
        self._stack.start()
        metadata = ["--metadata", str(directory / "node" / "metadata.db")]
        self._conductor = self.child("conductor", ["conductor", *metadata])
        channel = self._parts.enter_context(open_channel(self._conductor.address))
        self.conductor = conductor_pb2_grpc.ConductorStub(channel)
        self.spec = spec_of(model)
        where = InDirectory(directory / "node")
        self.client = self._parts.enter_context(Client(where, self.spec, deadline_seconds=20.0))
        self.first = self.engine("first")

    def child(self, name: str, arguments: list[str]) -> Child:
        made = Child(name, arguments, self._directory)
        self._parts.callback(lambda: made.reap(time.monotonic() + STOP_SECONDS))
        self._parts.callback(made.stop)
        made.start()
        made.wait_ready()
        return made

    def engine(self, name: str, directory: Path | None = None) -> Child:
        where = ["--dir", str(directory or self._directory / "node"), "--model", str(self._model)]
        told = ["--conductor", self._conductor.address, "--threads", "1", "--pages", "96"]
        return self.child(name, ["engine", *where, *told])

    def schedule(self, tokens: list[int], request: str) -> pb.ScheduleReply:
        return self.conductor.Schedule(
            pb.ScheduleRequest(
                request_id=request,
                namespace=self.spec.digest,
                hashes=self.client.chain(tokens).hashes,
                tokens=len(tokens),
            ),
            timeout=SECONDS,
        )

    def known(self) -> list[str]:
        request = pb.ScheduleRequest(request_id="?", namespace=self.spec.digest, tokens=64)
        try:
            reply = self.conductor.Explain(pb.ExplainRequest(request=request), timeout=SECONDS)
        except grpc.RpcError:
            return []
        return [one.engine_id for one in reply.considered]

    def expected_ms(self, tokens: int) -> float:
        """To the first token of a prompt of which nothing is in the pool, were it sent now."""
        request = pb.ScheduleRequest(request_id="?", namespace=self.spec.digest, tokens=tokens)
        reply = self.conductor.Explain(pb.ExplainRequest(request=request), timeout=SECONDS)
        return reply.plan.ttft_ms

    def generate(self, address: str, tokens: list[int], request: str, new: int = 4) -> int:
        """Generated tokens of a request that is sent there."""
        with open_channel(address) as channel:
            asked = engine_pb.GenerateRequest(
                request_id=request, prompt=tokens, max_new_tokens=new, ignore_eos=True
            )
            replies = engine_pb2_grpc.EngineStub(channel).Generate(asked, timeout=SECONDS)
            return sum(one.HasField("token") for one in replies)

    def close(self) -> None:
        self._parts.close()


@pytest.fixture(scope="module")
def house(model_dir: Path) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        made = House(model_dir, Path(directory))
        try:
            yield made
        finally:
            made.close()


def test_requests_are_sent_to_engines_and_reuse_what_these_published(house: House) -> None:
    engine = house.first
    eventually(lambda: len(house.known()) == 1, 20.0)
    tokens = prompt(500, seed=3)
    plan = house.schedule(tokens, "cold")
    assert plan.prefill.address == plan.decode.address == engine.address
    assert plan.split.computed_tokens == 500
    assert house.generate(plan.prefill.address, tokens, "cold") == 4
    warm = eventually(
        lambda: (found := house.schedule(tokens, "warm")).split.computed_tokens < 100 and found
    )
    assert warm.ttft_ms < plan.ttft_ms
    house.generate(engine.address, tokens, "warm")


def test_an_engine_says_what_prompts_cost_and_what_it_measures_then_bends_that(
    house: House,
) -> None:
    rehearsed = house.expected_ms(700)
    assert 0 < house.expected_ms(200) < rehearsed
    for seed in range(10, 22):
        house.generate(house.first.address, prompt(700, seed), f"measured {seed}", new=8)
    eventually(lambda: house.expected_ms(700) not in (0.0, rehearsed))


def test_an_engine_that_ended_is_sent_nothing(house: House) -> None:
    before = set(eventually(house.known, 20.0))
    second = house.engine("second")
    eventually(lambda: len(house.known()) == len(before) + 1, 20.0)
    second.stop()
    second.reap(time.monotonic() + STOP_SECONDS)
    eventually(lambda: set(house.known()) == before, 20.0)


def test_an_engine_whose_node_never_ran_says_what_is_missing(house: House, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node has run in"):
        house.engine("homeless", tmp_path)


class Heard:
    """Whatever is told, in order; measures apart."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.comes: dict[str, list[bytes]] = {}  # what others may find, by the request
        self.loads: list[tuple[int, int]] = []
        self.outputs: list[int] = []
        self.prefills: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int]] = []

    def accepted(
        self, request: str, tokens: int, prefix_tokens: int = 0, hashes: Sequence[bytes] = ()
    ) -> None:
        self.said.append(("accepted", request))
        self.comes[request] = list(hashes)

    def began(self, request: str) -> None:
        self.said.append(("began", request))

    def ended(self, request: str) -> None:
        self.said.append(("ended", request))

    def decoding(self, request: str) -> None:
        self.said.append(("decoding", request))

    def given_up(self, request: str) -> None:
        self.said.append(("given_up", request))

    def load(self, batch: int, context_tokens: int) -> None:
        self.loads.append((batch, context_tokens))

    def over(self, output_tokens: int) -> None:
        self.outputs.append(output_tokens)

    def prefilled(self, new_tokens: int, prefix_tokens: int, seconds: float) -> None:
        assert seconds > 0
        self.prefills.append((new_tokens, prefix_tokens))

    def stepped(self, batch: int, context_tokens: int, seconds: float) -> None:
        assert seconds > 0
        self.steps.append((batch, context_tokens))


def test_a_request_is_told_of_from_its_first_chunk_to_its_last_token(model: Model) -> None:
    core, heard = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64)), Heard()
    core.hooks = Telling(NoHooks(), heard)
    core.add(Request("a", tuple(prompt(150, seed=1)), 3))
    while not core.idle:
        core.step()
    assert heard.said == [("began", "a"), ("ended", "a"), ("decoding", "a")]
    assert heard.prefills == [(150, 0)], "in three steps, of which the last has a token"
    assert heard.steps == [(1, 151), (1, 152)]
    assert heard.loads[-2:] == [(1, 153), (0, 0)] and heard.outputs == [3]


def test_a_prefill_that_another_joins_before_its_token_is_no_measure(model: Model) -> None:
    core, heard = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64)), Heard()
    core.hooks = Telling(NoHooks(), heard)
    core.add(Request("a", tuple(prompt(100, seed=1)), 2))
    core.step()
    core.add(Request("b", tuple(prompt(90, seed=2)), 1))  # 28 in the step of a's last 36
    while not core.idle:
        core.step()
    assert heard.prefills == [] and heard.steps == [], "every token came of two prompts' steps"


def test_a_prompt_behind_tokens_that_are_there_is_measured_with_them_as_its_prefix(
    model: Model,
) -> None:
    class Has(NoHooks):
        def admitted(self, sequence: Running) -> int:
            return 64

    core, heard = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64)), Heard()
    core.hooks = Telling(Has(), heard)
    core.add(Request("a", tuple(prompt(150, seed=1)), 1))
    while not core.idle:
        core.step()
    assert heard.prefills == [(86, 64)]


class NoPool(NoHooks):
    """What a worker asks of its pool, where there is none."""

    def expect(self, request_id: str, use: PoolUse) -> None: ...

    def forget(self, request_id: str) -> None: ...

    def landed(self) -> bool:
        return False

    def hashes(self, tokens: Sequence[int]) -> list[bytes]:
        return [b"first"]


def test_what_comes_to_the_pool_is_told_of_a_request_and_nothing_of_one_without_it(
    model: Model,
) -> None:
    core, heard = EngineCore(model, EngineSettings(pages=48)), Heard()
    worker, over = Worker(core, NoPool()), queue.SimpleQueue[object]()  # type: ignore[arg-type]
    worker.tell(heard)
    for name, enabled in (("with", True), ("without", False)):
        worker.submit(Job(Request(name, (1, 2, 3), 1), PoolUse(enabled=enabled), over.put))
    worker.start()
    while set(heard.comes) != {"with", "without"}:
        over.get(timeout=SECONDS)
    worker.stop(SECONDS)
    assert heard.comes == {"with": [b"first"], "without": []}


def test_what_a_failed_step_ends_is_told_as_given_up(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, heard = EngineCore(model, EngineSettings(pages=48)), Heard()
    worker = Worker(core, NoPool())  # type: ignore[arg-type]
    worker.tell(heard)
    monkeypatch.setattr(core, "step", lambda: 1 / 0)
    failed = threading.Event()
    worker.submit(Job(Request("a", (1, 2, 3), 4), PoolUse(), lambda event: failed.set()))
    worker.start()
    assert failed.wait(SECONDS)
    worker.stop(SECONDS)
    assert heard.said == [("accepted", "a"), ("given_up", "a")]


def test_steps_of_several_kinds_are_no_measure_of_either(model: Model) -> None:
    core, heard = EngineCore(model, EngineSettings(pages=48, max_batch_tokens=64)), Heard()
    core.hooks = Telling(NoHooks(), heard)
    core.add(Request("a", tuple(prompt(40, seed=1)), 8))
    core.step()
    core.add(Request("b", tuple(prompt(100, seed=2)), 1))
    while not core.idle:
        core.step()
    assert heard.prefills == [(40, 0)], "b was prefilled beside a"
    assert {batch for batch, _ in heard.steps} == {1}
    assert ("ended", "b") in heard.said and ("decoding", "b") not in heard.said
    assert heard.loads[-1] == (0, 0)
