"""Real SGLang servers report to a real conductor, and a gateway's dispatcher sends them what it
plans: each answer is what the server itself gives, and a prompt goes to who has its prefix."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from kvstore.client import weights_digest
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.errors import Invalid, Unavailable
from kvstore.gateway.caller import Caller
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.engines import Engines
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.run import Place, Run
from kvstore.gateway.sampling import Sampling
from kvstore.gateway.spaces import Told
from kvstore.logprobs import Logprobs
from kvstore.naming import names_of
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.sglang.server import IN_TURN, Server, servers
from tests.nodes import CALL_SECONDS, eventually
from tests.nodes import Caller as NodeCaller
from tests.pools import ConductorProcess, pool

PAGE, SECONDS, NEW = 16, 120.0, 6


def prompt(seed: int, tokens: int) -> tuple[int, ...]:
    dice = random.Random(seed)
    return tuple(dice.randrange(3, 250) for _ in range(tokens))


@dataclass
class Fleet:
    conductor: ConductorProcess
    servers: Sequence[Server]
    dispatcher: Dispatcher
    caller: NodeCaller  # of the node that both share

    def run(self, name: str, tokens: Sequence[int], **more: object) -> Outcome:
        options = {"max_new_tokens": NEW, "ignore_eos": True, **more}
        return self.dispatcher.run(Request(name, tuple(tokens), **options))  # type: ignore[arg-type]

    def crews(self) -> Sequence[pb.CrewsReply.Crew]:
        return self.conductor.stub.Crews(pb.CrewsRequest(), timeout=CALL_SECONDS).crews

    def crew(self) -> pb.CrewsReply.Crew:
        (crew,) = self.crews()
        return crew

    def hashes(self, tokens: Sequence[int], salt: str = "") -> tuple[bytes, ...]:
        crew = self.crew()
        return names_of(crew.namespace, crew.group, crew.block_tokens, crew.naming).of(tokens, salt)

    def considered(self, tokens: Sequence[int]) -> dict[str, pb.ExplainReply.Considered]:
        """What the conductor thinks of each engine for a prompt, by its place."""
        asked = pb.ScheduleRequest(
            request_id="probe",
            namespace=self.crew().namespace,
            hashes=self.hashes(tokens),
            tokens=len(tokens),
        )
        try:
            explained = self.conductor.stub.Explain(
                pb.ExplainRequest(request=asked), timeout=CALL_SECONDS
            )
        except grpc.RpcError as error:
            print("explain:", error.details())
            return {}
        return {one.engine_id.removeprefix("sglang "): one for one in explained.considered}

    def own(self, server: Server, tokens: Sequence[int]) -> int:
        found = self.considered(tokens).get(server.place)
        return -1 if found is None else int(found.own_blocks)

    def wait_ms(self, server: Server, tokens: Sequence[int]) -> float:
        found = self.considered(tokens).get(server.place)
        return -1.0 if found is None else float(found.wait_ms)


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    with pool() as nodes:
        conductor = nodes.conductor()
        node = nodes.node("a", dram="64MiB", slab="1MiB")
        told = {"moonpool": node.address, "conductors": [conductor.address]}
        both = [
            Server(model, logs / f"{one}.log", *more, page=PAGE, tokens=4_096, pool=told)
            for one, more in (("a", [IN_TURN]), ("b", ["--incremental-streaming-output"]))
        ]
        with servers(*both), Conductors([conductor.address]) as conductors:
            revision = f"blake3:{weights_digest(model)}"
            eventually(
                lambda: (
                    [
                        one.engines
                        for one in conductor.stub.Crews(pb.CrewsRequest(revision=revision)).crews
                    ]
                    == [2]
                ),
                SECONDS,
            )
            dispatcher = Dispatcher(conductors, Told(conductors, revision), (), OPEN)
            yield Fleet(conductor, both, dispatcher, node.caller())
            dispatcher.close()


def test_an_answer_is_what_the_server_itself_gives(fleet: Fleet) -> None:
    for seed in range(4):
        tokens = prompt(seed, 50 + seed)
        outcome = fleet.run(f"whole-{seed}", tokens)
        (engine,) = outcome.engines
        assert engine in [f"sglang://{one.place}" for one in fleet.servers]
        answers = [one.complete(list(tokens), NEW)[0] for one in fleet.servers]
        assert [outcome.tokens] * 2 == answers and outcome.reason == "length"
        assert outcome.block_tokens == PAGE and len(outcome.blocks) == len(tokens) // PAGE


def test_answers_end_where_the_model_ends_them_and_are_drawn_as_it_is_wanted(fleet: Fleet) -> None:
    tokens = prompt(20, 40)
    first = fleet.run("long", tokens, max_new_tokens=40)
    drawn = [
        fleet.run(f"drawn-{seed}", tokens, max_new_tokens=40, sampling=Sampling(2.0, seed=seed))
        for seed in range(3)
    ]
    assert len({tuple(one.tokens) for one in (first, *drawn)}) > 1
    likely = fleet.run("likely", tokens, max_new_tokens=40, sampling=Sampling(1.0, top_p=1e-6))
    assert likely.tokens == first.tokens


@pytest.mark.parametrize("logprobs", [0, 3])
def test_each_token_comes_with_its_logprobs(fleet: Fleet, logprobs: int) -> None:
    # Of whoever says all anew in each event, and of whoever says what is new.
    for at, server in enumerate(fleet.servers):
        said: list[Logprobs | None] = []
        asked = Request(f"said-{logprobs}-{at}", prompt(at, 30), NEW, True, logprobs=logprobs)
        run = Run(asked, "", lambda _, one, said=said: said.append(one), Caller())
        with closing(Engines(OPEN)) as engines:
            engines.generate(Place(address=f"sglang://{server.place}"), run.generate(), run)
        for token, one in zip(run.outcome.tokens, said, strict=True):
            assert one is not None and len(one.top) == logprobs
            assert one.logprob < 0 and (not logprobs or one.top[0] == (token, one.logprob))


def test_a_prompt_goes_to_the_server_whose_own_cache_has_its_prefix(fleet: Fleet) -> None:
    # So long that it takes longer to compute than costs measured beside other tests are off by.
    pages = 24
    tokens, more = prompt(60, pages * PAGE + 4), prompt(61, 30)
    for server in fleet.servers:
        begun = tokens if server is fleet.servers[1] else prompt(62, pages * PAGE + 4)
        server.complete(list(begun), 1)
    first, second = fleet.servers
    eventually(lambda: fleet.own(second, tokens + more) == pages, SECONDS)
    assert fleet.own(first, tokens + more) == 0
    # What the node has would do as well, for both.
    fleet.caller.ask("Remove", namespace=fleet.crew().namespace, hashes=fleet.hashes(tokens))
    eventually(lambda: fleet.considered(tokens)[first.place].reused_blocks == 0, SECONDS)
    outcome = fleet.run("own", tokens + more)
    assert outcome.engines == [f"sglang://{second.place}"]
    assert min(outcome.pool_tokens, outcome.expected_tokens) >= pages * PAGE


def test_a_prompt_under_a_key_of_its_sender_s_is_not_the_plain_one(fleet: Fleet) -> None:
    tokens, server = prompt(65, 3 * PAGE), fleet.servers[0]
    server.complete(list(tokens), 1, extra_key="apart")
    server.complete(list(tokens[: 2 * PAGE]), 1)  # told behind it
    eventually(lambda: fleet.own(server, tokens) > 0, SECONDS)
    assert fleet.own(server, tokens) == 2


def test_pages_in_the_pool_are_found_by_what_a_prompt_is_called(fleet: Fleet) -> None:
    tokens = prompt(70, 4 * PAGE + 3)
    fleet.servers[0].complete(list(tokens), 1)
    asked = pb.PoolMatchRequest(namespace=fleet.crew().namespace, hashes=fleet.hashes(tokens))

    def held() -> list[int]:
        holders = fleet.conductor.stub.Match(asked, timeout=CALL_SECONDS).holders
        return [one.blocks for one in holders]

    eventually(lambda: held() == [4], SECONDS)
    # And so whoever has not computed it is planned to load it.
    found = fleet.considered(tokens)[fleet.servers[1].place]
    assert found.reused_blocks == 4 and found.own_blocks == 0


def test_what_a_server_has_to_do_is_known_until_it_is_over(fleet: Fleet) -> None:
    """And of how it ends: of those whose caller leaves, and of those that never began, too."""
    first, second = fleet.servers
    probe = prompt(80, 400)
    for one in fleet.servers:
        eventually(lambda one=one: fleet.wait_ms(one, probe) == 0, SECONDS)
    busy = threading.Event()

    def watch() -> None:
        while not busy.is_set():
            if fleet.wait_ms(first, probe) > 0:
                busy.set()

    with ThreadPoolExecutor(9) as clients:
        watching = clients.submit(watch)
        prompts = [list(prompt(81 + number, 400)) for number in range(8)]
        asked = [clients.submit(first.complete, one, 60) for one in prompts]
        for one in asked:
            one.result(SECONDS)
        busy.set()
        watching.result(SECONDS)
    eventually(lambda: fleet.wait_ms(first, probe) == 0, SECONDS)
    assert fleet.wait_ms(second, probe) == 0
    for number in range(4):
        leave(first, prompt(90 + number, 450))
    eventually(lambda: fleet.wait_ms(first, probe) == 0, SECONDS)
    eventually(lambda: first.counted("num_running_reqs") == 0, SECONDS)


def leave(server: Server, tokens: Sequence[int]) -> None:
    """Ask, and hang up at once."""
    greedy = {"max_new_tokens": 400, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"input_ids": list(tokens), "sampling_params": greedy, "stream": True})
    with closing(http.client.HTTPConnection(server.place, timeout=CALL_SECONDS)) as calling:
        calling.request("POST", "/generate", body, {"Content-Type": "application/json"})
        time.sleep(0.05)


def test_prompts_under_a_salt_share_no_page_with_others(fleet: Fleet) -> None:
    tokens = prompt(95, 4 * PAGE)
    fleet.run("plain", tokens)
    salted = [fleet.run(f"salted-{number}", tokens, salt="mine") for number in range(3)]
    assert salted[0].pool_tokens == 0 and salted[-1].pool_tokens >= 3 * PAGE
    assert len({tuple(one.tokens) for one in salted}) == 1
    asked = pb.PoolMatchRequest(
        namespace=fleet.crew().namespace, hashes=fleet.hashes(tokens, "mine")
    )
    eventually(
        lambda: [one.blocks for one in fleet.conductor.stub.Match(asked).holders] == [4], SECONDS
    )


def test_what_is_too_large_is_refused_and_as_many_as_fit_are_what_fits(fleet: Fleet) -> None:
    tokens = prompt(97, 100)
    with pytest.raises(Invalid, match="maximum context length"):
        fleet.run("large", tokens, max_new_tokens=600)
    outcome = fleet.run("fits", tokens, max_new_tokens=600, as_many_as_fit=True)
    assert outcome.reason == "length" and 300 < len(outcome.tokens) <= 512 - 100


def test_a_server_that_was_cleared_has_weights_that_nobody_can_name(fleet: Fleet) -> None:
    """The last test: it is sent nothing from then on, and reports still."""
    cleared, other = fleet.servers
    cleared.post("/hicache/storage-backend/clear")
    eventually(lambda: len(fleet.crews()) == 2, SECONDS)
    before, after = sorted(fleet.crews(), key=lambda one: "cleared" in one.revision)
    assert (before.engines, after.engines) == (1, 1) and after.namespace != before.namespace
    for number in range(6):
        outcome = fleet.run(f"left-{number}", prompt(98, 40))
        assert outcome.engines == [f"sglang://{other.place}"]
    other.post("/hicache/storage-backend/clear")

    def refused() -> bool:
        """Though it knows where both are, and both are well."""
        try:
            fleet.run("none", prompt(99, 40))
        except Unavailable as nobody:
            return "no engine is known" in str(nobody)
        return False

    eventually(refused, SECONDS)
    assert len(fleet.crews()) == 2
