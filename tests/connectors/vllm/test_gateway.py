"""`moonpool serve` before two vLLM servers, with a node each and a conductor: what OpenAI's client
is answered, beside what vLLM says when it is asked itself."""

from __future__ import annotations

import hashlib
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from blake3 import blake3

from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.gateway.caller import Caller
from kvstore.gateway.engines import Engines
from kvstore.gateway.request import Request
from kvstore.gateway.run import Place, Run, nobody
from kvstore.gateway.spaces import Space
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.connectors.vllm.server import LENGTH, Server, servers
from tests.nodes import eventually
from tests.pools import ConductorProcess, pool

NEW = 8
SECONDS = 60.0
ON = {"ignore_eos": True}  # a random model ends at random
SECRET = "5e" * 32
RUNNING, MADE = "vllm:num_requests_running", "vllm:generation_tokens_total"


@dataclass
class Fleet:
    conductor: ConductorProcess
    servers: list[Server]
    kept: Pool
    model: Path
    directory: Path

    @contextmanager
    def serving(self, *more: str) -> Iterator[str]:
        """A gateway, for as long as the block lasts; its address."""
        options = ["serve", "--model", os.fspath(self.model), "--listen", "127.0.0.1:0"]
        child = Child("serve", [*options, "--name", "tiny", *more], self.directory)
        child.start()
        try:
            child.wait_ready()
            yield child.address
        finally:
            child.stop()
            child.reap(time.monotonic() + STOP_SECONDS)

    def counted(self, name: str) -> list[float]:
        """What each server says of a figure."""
        return [one.metrics().get(name, 0.0) for one in self.servers]


def client_of(address: str, key: str = "k") -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://{address}/v1", api_key=key, max_retries=0, timeout=SECONDS
    )


@pytest.fixture(scope="module")
def fleet(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder, logs = model("llama"), tmp_path_factory.mktemp("fleet")
    with pool() as nodes:
        conductor = nodes.conductor()
        made = [nodes.node(name, dram="64MiB", slab="8MiB") for name in "ab"]
        both = [
            Server(folder, logs / f"{at}.log", node=node.address, conductors=[conductor.address])
            for at, node in enumerate(made)
        ]
        with servers(*both):
            eventually(lambda: crews(conductor) == [2], SECONDS)
            yield Fleet(conductor, both, Pool(made[0]), folder, logs)


def crews(conductor: ConductorProcess) -> list[int]:
    """How many engines there are of each kind."""
    return [one.engines for one in conductor.stub.Crews(pb.CrewsRequest(), timeout=5).crews]


@pytest.fixture(scope="module")
def ai(fleet: Fleet) -> Iterator[openai.OpenAI]:
    told = f"--conductor={fleet.conductor.address}"
    with fleet.serving(told) as address, client_of(address) as client:
        yield client


def ask(ai: openai.OpenAI, text: Any, new: int = NEW, **options: Any) -> Any:
    extra = {**ON, **options.pop("extra_body", {})}
    return ai.completions.create(
        model="tiny", prompt=text, max_tokens=new, temperature=0, extra_body=extra, **options
    )


def directly(server: Server, text: Any, new: int = NEW) -> str:
    """What vLLM itself says."""
    with client_of(server.place) as client:
        return str(ask(client, text, new).choices[0].text)


def plan_of(fleet: Fleet, answer: Any) -> pb.ScheduleReply:
    """What the conductor said of the request that this is the answer to."""
    asked = pb.ExplainRequest(request_id=f"{answer.id}-0")
    return fleet.conductor.stub.Explain(asked, timeout=5).plan


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def foreseen(plan: pb.ScheduleReply, tokens: int) -> int:
    """Tokens that it said would not be computed."""
    return tokens - plan.split.computed_tokens


def settled(fleet: Fleet, tokens: list[int], salt: str = "") -> None:
    """Returns once the pool has all whole blocks of a prompt, and conductors know of it."""
    hashes = fleet.kept.chain(tokens, salt=salt).hashes
    asked = pb.PoolMatchRequest(namespace=fleet.kept.spec.digest, hashes=hashes)

    def known() -> bool:
        return fleet.conductor.stub.Match(asked, timeout=5).blocks == len(hashes)

    eventually(known, SECONDS)


def test_an_answer_is_vllm_s_own_whole_or_as_a_stream(fleet: Fleet, ai: openai.OpenAI) -> None:
    tokens = prompt(1, 300)
    expected = directly(fleet.servers[0], tokens)
    answer = ask(ai, tokens)
    assert answer.choices[0].text == expected and answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (300, NEW)
    chunks = list(ask(ai, tokens, stream=True))
    assert "".join(one.choices[0].text for one in chunks) == expected
    place = plan_of(fleet, answer).prefill.address
    assert place in [one.address for one in fleet.servers]


def test_tokens_are_drawn_as_vllm_draws_them(fleet: Fleet, ai: openai.OpenAI) -> None:
    tokens = prompt(8, 60)
    warm = {"temperature": 1.5, "top_p": 0.9, "seed": 11, "extra_body": ON}
    said = ai.completions.create(model="tiny", prompt=tokens, max_tokens=NEW, **warm)
    with client_of(fleet.servers[0].place) as itself:
        same = itself.completions.create(model="tiny", prompt=tokens, max_tokens=NEW, **warm)
    assert said.choices[0].text == same.choices[0].text != directly(fleet.servers[0], tokens)


def test_logprobs_are_vllm_s_own(fleet: Fleet, ai: openai.OpenAI) -> None:
    tokens = prompt(10, 60)
    for wanted in ({"logprobs": 0}, {"logprobs": 5}):
        with client_of(fleet.servers[0].place) as itself:
            theirs = ask(itself, tokens, **wanted).choices[0].logprobs
        ours = ask(ai, tokens, **wanted).choices[0].logprobs
        alike(ours, theirs)
        streamed = [one.choices[0].logprobs for one in ask(ai, tokens, stream=True, **wanted)]
        whole = [value for one in streamed if one for value in one.token_logprobs]
        assert whole == pytest.approx(theirs.token_logprobs, abs=1e-4)


def test_logprobs_of_tokens_that_are_drawn_are_the_model_s_own_before_it(
    fleet: Fleet, ai: openai.OpenAI
) -> None:
    tokens = prompt(11, 60)
    # So warm that a token is hardly ever the likeliest, and so is one more than those.
    warm = {"temperature": 2.0, "top_p": 0.99, "seed": 5, "logprobs": 2, "extra_body": ON}
    said = ai.completions.create(model="tiny", prompt=tokens, max_tokens=NEW, **warm)
    with client_of(fleet.servers[0].place) as itself:
        same = itself.completions.create(model="tiny", prompt=tokens, max_tokens=NEW, **warm)
    alike(said.choices[0].logprobs, same.choices[0].logprobs)
    assert 3 in map(len, said.choices[0].logprobs.top_logprobs)


def alike(ours: Any, theirs: Any) -> None:
    """vLLM writes a token without the space before it, which is in the text of both."""
    assert [one.strip() for one in ours.tokens] == [one.strip() for one in theirs.tokens]
    assert ours.token_logprobs == pytest.approx(theirs.token_logprobs, abs=1e-4)
    for one, other in zip(ours.top_logprobs, theirs.top_logprobs, strict=True):
        found = {token.strip(): value for token, value in one.items()}
        assert found == pytest.approx(
            {token.strip(): value for token, value in other.items()}, abs=1e-4
        )


def test_what_a_plan_foresees_is_what_vllm_need_not_compute(
    fleet: Fleet, ai: openai.OpenAI
) -> None:
    tokens = prompt(2, 300)
    for number in range(3):
        more = prompt(20 + number, 40)
        answer = ask(ai, [*tokens, *more])
        plan = plan_of(fleet, answer)
        # Its own cache has smaller blocks: what it holds of another one of ours is not foreseen.
        assert cached(answer) // 64 * 64 == foreseen(plan, 340) == (256 if number else 0)
        settled(fleet, tokens)


def test_what_one_server_computed_the_other_loads(fleet: Fleet, ai: openai.OpenAI) -> None:
    tokens = prompt(3, 300)
    first = plan_of(fleet, ask(ai, tokens)).prefill
    settled(fleet, tokens)
    (other,) = (one for one in fleet.servers if one.address != first.address)
    space = Space(fleet.kept.spec.digest, 0, 64)
    asked = space.asked(Request("r", (*tokens[:290], *prompt(30, 50)), NEW))
    asked.request_id = "r"
    explained = fleet.conductor.stub.Explain(pb.ExplainRequest(request=asked), timeout=5)
    (there,) = (one for one in explained.considered if one.engine_id != first.engine_id)
    assert (there.reused_blocks, there.own_blocks) == (4, 0)
    before = other.metrics()["moonpool:loaded_tokens_total"]
    with fleet.serving(f"--engine={other.address}") as address, client_of(address) as alone:
        again = ask(alone, [*tokens[:290], *prompt(30, 50)])
        assert ready(address) == 200
    assert cached(again) == 256
    assert other.metrics()["moonpool:loaded_tokens_total"] - before == 256


def ready(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/ready", timeout=SECONDS) as reply:
        return int(reply.status)


def test_tenants_share_no_kv_and_each_finds_its_own_again(fleet: Fleet, tmp_path: Path) -> None:
    tokens, path = prompt(4, 300), tmp_path / "keys.toml"
    clients = "".join(
        f'[client.{name}]\nkeys = ["{hashlib.sha256(name.encode()).hexdigest()}"]\n'
        for name in ("acme", "other")
    )
    path.write_text(f'secret = "{SECRET}"\n{clients}')
    told = (f"--conductor={fleet.conductor.address}", f"--keys={path}")
    with fleet.serving(*told) as address:
        with client_of(address, "nobody") as nobody, pytest.raises(openai.AuthenticationError):
            ask(nobody, tokens)
        answers = []
        for name in ("acme", "other", "acme"):
            with client_of(address, name) as ai:
                answers.append(ask(ai, tokens))
            settled(fleet, tokens, salt_of(name))
    hits = [cached(one) // 64 * 64 for one in answers]
    assert hits == [0, 0, 256]
    assert hits == [foreseen(plan_of(fleet, one), 300) for one in answers]
    assert len({one.choices[0].text for one in answers}) == 1


def salt_of(tenant: str) -> str:
    return str(blake3(tenant.encode(), key=bytes.fromhex(SECRET)).hexdigest())


def test_a_caller_that_hangs_up_ends_what_vllm_decodes_for_it(
    fleet: Fleet, ai: openai.OpenAI
) -> None:
    made = sum(fleet.counted(MADE))
    stream = ask(ai, prompt(5, 100), 900, stream=True)
    next(iter(stream))
    assert sum(fleet.counted(RUNNING)) == 1
    stream.close()
    eventually(lambda: sum(fleet.counted(RUNNING)) == 0, SECONDS)
    assert sum(fleet.counted(MADE)) - made < 900


def test_the_dashboard_shows_what_the_connector_adds_to_vllm_s_metrics(fleet: Fleet) -> None:
    tokens = prompt(9, 300)
    told = [f"--conductor={fleet.conductor.address}"]
    told += [f"--watch={one.place}" for one in fleet.servers]
    with fleet.serving(*told) as address, client_of(address) as ai:
        eventually(lambda: all(one == "vllm" for one in watched(address)), SECONDS)
        ask(ai, tokens)
        settled(fleet, tokens)
        for server in fleet.servers:  # one of them has it of its own, the other loads it
            directly(server, [*tokens[:290], *prompt(31, 50)])
        eventually(lambda: "vllm_hit_rate" in shown(address), SECONDS)
        charts = shown(address)
    assert charts["vllm_hit_rate"]["loaded"] == charts["vllm_hit_rate"]["found"] > 0
    assert sum(charts["vllm_misses"].values()) > 0
    assert charts["vllm_checks"]["wrong"] == 0


def board(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/board/charts", timeout=SECONDS) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def watched(address: str) -> list[str]:
    """What the gateway's dashboard takes the others for."""
    return [one["process"] for one in board(address)["processes"] if one["process"] != "gateway"]


def shown(address: str) -> dict[str, dict[str, float]]:
    """Charts whose lines all have a value, as they are last."""
    return {
        chart["key"]: {line["name"]: line["values"][-1] for line in chart["lines"]}
        for chart in board(address)["charts"]
        if chart["lines"] and all(line["values"][-1] is not None for line in chart["lines"])
    }


def test_what_vllm_refuses_is_refused_in_its_words(fleet: Fleet, ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="1024"):
        ask(ai, prompt(6, 1_100))


@pytest.mark.parametrize("beyond", [0, 4_000])  # below its --max-model-len vLLM itself gives less
def test_of_as_many_tokens_as_fit_a_server_gives_what_its_context_leaves(
    fleet: Fleet, beyond: int
) -> None:
    text = tuple(prompt(41, LENGTH - 5))
    wanted = Request("fits", text, 20 + beyond, ignore_eos=True, as_many_as_fit=True)
    with closing(Engines()) as engines:
        run = Run(wanted, "", nobody, Caller())
        engines.generate(Place(address=fleet.servers[0].address), run.generate(), run)
    assert len(run.outcome.tokens) == 5 and run.outcome.reason == "length"


def test_a_server_that_is_killed_loses_no_answer_that_it_was_making(
    fleet: Fleet, ai: openai.OpenAI
) -> None:
    tokens = prompt(7, 200)
    stream = ask(ai, tokens, 300, stream=True)
    pieces = [next(stream).choices[0].text]
    (dead,) = (one for one in fleet.servers if one.metrics()[RUNNING])
    (left,) = (one for one in fleet.servers if one is not dead)
    dead.kill()
    for chunk in stream:
        pieces.append(chunk.choices[0].text)
    assert chunk.choices[0].finish_reason == "length"
    assert "".join(pieces) == directly(left, tokens, 300)
    assert ask(ai, tokens).choices[0].text == directly(left, tokens)
