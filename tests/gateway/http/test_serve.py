"""`moonpool serve` as OpenAI's own client meets it, before real engines."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.config import OPEN
from kvstore.engine.reference import Reference
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import engine_pb2, engine_pb2_grpc
from tests.engine.runs import prompt
from tests.gateway.http.conftest import House, client_of
from tests.gateway.http.test_counting import counted
from tests.nodes import eventually

NEW = 12
ON = {"ignore_eos": True}  # a random model ends at random
SECONDS = 60.0
CLIENTS, REQUESTS = 16, 200


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def words(count: int, seed: int) -> str:
    return " ".join(f"w{number}" for number in prompt(count, seed=seed, vocab=400))


def behind(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    """An answer's text as its prompt's goes on with it."""
    return str(tokenizer.decode([*prompt, *answer]).removeprefix(tokenizer.decode(prompt)))


def ask(ai: openai.OpenAI, text: Any, new: int = NEW, **options: Any) -> Any:
    return ai.completions.create(
        model="tiny", prompt=text, max_tokens=new, extra_body=ON, **options
    )


def engines_run(house: House) -> int:
    """Requests that are at engines now."""
    running = 0
    for engine in house.engines:
        with open_channel(engine.address, OPEN) as channel:
            stub = engine_pb2_grpc.EngineStub(channel)
            info = stub.EngineInfo(engine_pb2.EngineInfoRequest(), timeout=SECONDS)
            running += info.requests
    return running


def tokens_made(house: House) -> float:
    """By all engines, ever."""
    return sum(counted(engine.metrics).get("output_tokens", 0.0) for engine in house.engines)


def test_a_completion_is_the_engines_own_answer(
    ai: openai.OpenAI, reference: Reference, tokenizer: Tokenizer
) -> None:
    text = words(100, seed=1)
    tokens = tokenizer.encode(text).ids
    expected = reference.tokens(tokens, NEW)
    for asked in (text, tokens):
        answer = ask(ai, asked)
        (choice,) = answer.choices
        assert choice.text == behind(tokenizer, tokens, expected)
        assert choice.finish_reason == "length"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, NEW)
        assert answer.usage.total_tokens == 100 + NEW


def test_a_stream_says_what_one_answer_would_and_what_it_took(
    ai: openai.OpenAI, reference: Reference, tokenizer: Tokenizer
) -> None:
    text = words(90, seed=2)
    tokens = tokenizer.encode(text).ids
    expected = behind(tokenizer, tokens, reference.tokens(tokens, NEW))
    chunks = list(ask(ai, text, stream=True, stream_options={"include_usage": True}))
    *told, last = chunks
    assert "".join(one.choices[0].text for one in told) == expected
    reasons = [one.choices[0].finish_reason for one in told]
    assert reasons == [None] * (len(told) - 1) + ["length"] and len(told) > NEW // 2
    assert not last.choices and last.usage.completion_tokens == NEW
    assert ask(ai, text).choices[0].text == expected


def test_the_prefix_that_an_earlier_request_left_is_counted_as_cached(ai: openai.OpenAI) -> None:
    text = words(300, seed=3)
    assert ask(ai, text).usage.prompt_tokens_details.cached_tokens == 0
    again = ask(ai, f"{text} w1 w2").usage
    assert again.prompt_tokens_details.cached_tokens >= 256 and again.prompt_tokens == 302


def test_an_answer_ends_where_it_is_asked_to_and_its_decode_with_it(
    ai: openai.OpenAI, house: House
) -> None:
    text = words(80, seed=5)
    whole = ask(ai, text).choices[0].text
    middle = whole.split()[5]
    cut = whole[: whole.index(middle)]
    for stop in (middle, ["not there", middle, whole[-1] * 50]):
        answer = ask(ai, text, new=500, stop=stop)
        assert answer.choices[0].text == cut and answer.choices[0].finish_reason == "stop"
        assert len(cut.split()) < answer.usage.completion_tokens <= NEW
    eventually(lambda: engines_run(house) == 0)
    *told, last = ask(ai, text, new=500, stop=middle, stream=True)
    assert "".join(one.choices[0].text for one in (*told, last)) == cut
    assert last.choices[0].finish_reason == "stop"
    assert ask(ai, text, stop=["not there"]).choices[0].text == whole


def test_several_answers_to_a_prompt_are_the_same_as_greedy_ones_are(ai: openai.OpenAI) -> None:
    texts = [words(40, seed=20 + number) for number in range(2)]
    alone = [ask(ai, one).choices[0].text for one in texts]
    answer = ask(ai, texts, n=2)
    assert [(one.index, one.text) for one in answer.choices] == [
        (number, alone[number // 2]) for number in range(4)
    ]
    assert answer.usage.completion_tokens == 4 * NEW and answer.usage.prompt_tokens == 80
    streamed = [""] * 4
    for chunk in ask(ai, texts, n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [alone[0], alone[0], alone[1], alone[1]]


def test_several_prompts_of_one_call_are_answered_in_their_order(ai: openai.OpenAI) -> None:
    texts = [words(40, seed=10 + number) for number in range(3)]
    alone = [ask(ai, one).choices[0].text for one in texts]
    answer = ask(ai, texts)
    assert [one.text for one in answer.choices] == alone
    assert answer.usage.prompt_tokens == 120 and answer.usage.completion_tokens == 3 * NEW
    streamed = ["", "", ""]
    for chunk in ask(ai, texts, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == alone


def test_the_model_is_listed(ai: openai.OpenAI) -> None:
    assert [one.id for one in ai.models.list()] == ["tiny"]


def test_what_is_wrong_is_refused_by_its_field(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'tiny' is") as unknown:
        ai.completions.create(model="other", prompt="w1")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="write 0") as warm:
        ask(ai, "w1", temperature=0.7)
    assert warm.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="positions for 1024") as long:
        ask(ai, words(1100, seed=4))
    assert (long.value.param, long.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match="0 to 511"):
        ask(ai, [5, 512])


def get(gateway: Child, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{gateway.address}{path}", timeout=SECONDS) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_it_says_that_it_is_alive_and_ready(gateway: Child) -> None:
    assert get(gateway, "/health") == (200, {"status": "alive"})
    eventually(lambda: get(gateway, "/ready")[0] == 200)


def test_it_is_not_ready_while_no_engine_is_known(house: House) -> None:
    with house.serving("lonely", "--conductor=127.0.0.1:1") as lonely:
        status, body = get(lonely, "/ready")
        assert status == 503 and "127.0.0.1:1" in body["error"]["message"]
        assert get(lonely, "/health")[0] == 200
        with client_of(lonely) as ai, pytest.raises(openai.InternalServerError) as none:
            ask(ai, "w1")
        eventually(lambda: "not ready yet: 127.0.0.1:1: " in lonely.log.read_text())
    assert none.value.status_code == 503 and none.value.response.headers["retry-after"] == "1"
    assert "no engine is known for it: 127.0.0.1:1 cannot be reached" in str(none.value)


def test_a_conductor_alone_tells_it_where_engines_are(house: House) -> None:
    with house.serving("told", f"--conductor={house.conductor.address}") as told:
        eventually(lambda: get(told, "/ready")[0] == 200)
        # A conductor that is late on a busy machine is told of by 503, and when to ask again.
        with client_of(told).with_options(max_retries=5) as ai:
            assert ask(ai, "w1").usage.completion_tokens == NEW


def test_engines_of_other_weights_do_not_make_it_ready(house: House) -> None:
    engine = f"--engine={house.engines[0].address}"
    with house.serving("other", "--revision=another", engine) as other:
        status, body = get(other, "/ready")
    assert status == 503 and "it has other weights: blake3:" in body["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_stops_its_decode(gateway: Child, house: House, stream: bool) -> None:
    # On a busy machine nearly all of them may be made before it is seen that it runs.
    made = (made_for_one_that_leaves(gateway, house, stream) for _ in range(5))
    assert any(one < 900 for one in made), "the rest of a thousand is not made for nobody"


def made_for_one_that_leaves(gateway: Child, house: House, stream: bool) -> float:
    """Tokens of the thousand that it asks for."""
    eventually(lambda: engines_run(house) == 0)
    before = tokens_made(house)
    left = counted(gateway.metrics).get("requests left", 0.0)
    body = {"model": "tiny", "prompt": "w1 w2", "max_tokens": 1000, "stream": stream, **ON}
    host, port = gateway.address.split(":")
    with socket.create_connection((host, int(port))) as caller:
        text = json.dumps(body)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        caller.sendall((head + text).encode())
        eventually(lambda: engines_run(house) == 1)
        with engines_held(house):  # so that they have not made all of it when it is noticed
            caller.close()
            with suppress(AssertionError):  # where it was answered before
                eventually(lambda: counted(gateway.metrics).get("requests left", 0.0) > left, 5)
    eventually(lambda: engines_run(house) == 0)
    return tokens_made(house) - before


def test_200_requests_of_16_clients_are_all_answered_rightly(
    gateway: Child, reference: Reference, tokenizer: Tokenizer
) -> None:
    texts = [words(30 + number, seed=100 + number) for number in range(10)]
    prompts = [tokenizer.encode(text).ids for text in texts]
    expected = [behind(tokenizer, one, reference.tokens(one, 4)) for one in prompts]

    def client(number: int) -> list[bool]:
        mine = range(number, REQUESTS, CLIENTS)
        with client_of(gateway, key=f"key {number}") as ai:
            return [ask(ai, texts[n % 10], 4).choices[0].text == expected[n % 10] for n in mine]

    with ThreadPoolExecutor(CLIENTS) as pool:
        right = [one for some in pool.map(client, range(CLIENTS)) for one in some]
    assert len(right) == REQUESTS and all(right)


def test_an_engine_that_is_killed_under_its_streams_costs_none(
    ai: openai.OpenAI, house: House
) -> None:
    texts = [words(20 + number, seed=200 + number) for number in range(3)]
    expected = [ask(ai, one, 500).choices[0].text for one in texts]
    begun = threading.Barrier(len(texts) + 1, timeout=SECONDS)

    def stream(through: openai.OpenAI, text: str) -> str:
        chunks = iter(ask(through, text, 500, stream=True))
        said = next(chunks).choices[0].text
        begun.wait()
        return said + "".join(one.choices[0].text for one in chunks)

    with house.engine("dying") as dying:
        # With no conductor requests go to one engine and the other in turn.
        knows = (f"--engine={dying.address}", f"--engine={house.engines[0].address}")
        with (
            house.serving("bereft", *knows) as gateway,
            client_of(gateway) as through,
            ThreadPoolExecutor(len(texts)) as pool,
        ):
            answers = [pool.submit(stream, through, text) for text in texts]
            begun.wait()
            os.kill(dying.pid, signal.SIGKILL)
            assert not any(one.done() for one in answers), "all were under way"
            said = [one.result(SECONDS) for one in answers]
    assert said == expected


def in_thread(what: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    said: list[Any] = []

    def run() -> None:
        try:
            said.append(what())
        except openai.APIError as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, said


def keys_of(path: Path, *clients: str) -> Path:
    """A file with a key for each client, which is its name."""
    tables = "".join(
        f'[client.{one}]\nkeys = ["{hashlib.sha256(one.encode()).hexdigest()}"]\n'
        for one in clients
    )
    path.write_text(f'secret = "{"5e" * 32}"\n{tables}')
    return path


def test_tenants_share_no_kv_and_keys_are_read_again(house: House, tmp_path: Path) -> None:
    text, path = words(300, seed=31), keys_of(tmp_path / "keys.toml", "acme", "other")

    def cached(gateway: Child, key: str) -> int | None:
        """None for one that is not let in."""
        with client_of(gateway, key) as ai:
            try:
                return int(ask(ai, text).usage.prompt_tokens_details.cached_tokens)
            except openai.AuthenticationError:
                return None

    with house.serving("keyed", *house.knows, f"--keys={path}") as gateway:
        assert [cached(gateway, key) for key in ("acme", "other")] == [0, 0]
        assert (cached(gateway, "acme") or 0) >= 256
        assert cached(gateway, "third") is None
        keys_of(path, "acme", "third")
        os.kill(gateway.pid, signal.SIGHUP)
        eventually(lambda: cached(gateway, "other") is None)
        assert cached(gateway, "third") == 0


def test_told_to_stop_it_lets_answers_end_and_nobody_in(house: House) -> None:
    with house.serving("drained", *house.knows) as gateway, client_of(gateway) as ai:
        assert ask(ai, "w3").usage.completion_tokens == NEW  # a connection is kept
        with client_of(gateway) as other:
            thread, said = in_thread(lambda: ask(other, "w1 w2", 1000))
            eventually(lambda: engines_run(house) == 1)
            with engines_held(house):  # so that its answer is under way all the time
                os.kill(gateway.pid, signal.SIGTERM)
                eventually(lambda: get(gateway, "/ready")[0] == 503)
                assert "shutting down" in refusal(ai)
                assert not said
            thread.join(SECONDS)
        assert said[0].usage.completion_tokens == 1000
        gateway.reap(time.monotonic() + STOP_SECONDS)
        assert gateway.exited == 0


@contextmanager
def engines_held(house: House) -> Iterator[None]:
    """None of them computes meanwhile."""
    for one in house.engines:
        os.kill(one.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in house.engines:
            os.kill(one.pid, signal.SIGCONT)


def refusal(ai: openai.OpenAI) -> str:
    try:
        ask(ai, "w3", 1)
    except openai.InternalServerError as error:
        assert error.status_code == 503
        return str(error)
    return ""


def test_told_twice_it_says_that_the_rest_does_not_come(house: House) -> None:
    with house.serving("hurried", *house.knows) as gateway, client_of(gateway) as ai:
        stream = ask(ai, "w1 w2", 1000, stream=True)
        next(iter(stream))
        with engines_held(house):  # the rest cannot come before it is told
            os.kill(gateway.pid, signal.SIGINT)
            eventually(lambda: get(gateway, "/ready")[0] == 503)
            os.kill(gateway.pid, signal.SIGTERM)
            with pytest.raises(openai.APIError, match="stopped before"):
                list(stream)
            gateway.reap(time.monotonic() + STOP_SECONDS)
            assert gateway.exited == 0
    eventually(lambda: engines_run(house) == 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--engine=127.0.0.1:1", "--listen=0.0.0.0:8000"], "serves loopback alone"),
        (["--engine=127.0.0.1:1", "--listen=8000"], "write HOST:PORT"),
        (["--engine=127.0.0.1"], "--engine = '127.0.0.1': write HOST:PORT"),
        ([], "--conductor, or one with --engine"),
    ],
)
def test_wrong_options_are_told_in_a_line(model_dir: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "kvstore", "serve", "--model", str(model_dir), *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 2 and says in ran.stderr and ran.stderr.count("\n") == 1
