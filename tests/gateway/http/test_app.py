"""The app over a runner that does as it is told: what callers hear when things go wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvstore.config import GatewayConfig
from kvstore.errors import Overloaded, Unauthenticated, Unavailable
from kvstore.gateway.caller import Caller as Asker
from kvstore.gateway.http import completions
from kvstore.gateway.http.app import app_of
from kvstore.gateway.http.keys import Anybody, KeyFile, Keys
from kvstore.gateway.http.ready import Readiness
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.work import Work
from kvstore.gateway.request import Outcome, Request, Told
from kvstore.limits import SERVE_BODY_BYTES_MAX
from kvstore.telemetry import GATEWAY, Telemetry

SECONDS = 20.0


@dataclass
class Scripted:
    """Goes on with `tokens`, waits for `gate` behind them, and then fails, or is done."""

    tokens: tuple[int, ...] = (20, 21, 22)
    error: Exception | None = None
    gate: threading.Event | None = None
    more: int = 0  # tokens behind the gate
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, request: Request, told: Told, caller: Asker | None, _: Outcome) -> Outcome:
        self.requests.append(request)
        try:
            for token in self.tokens:
                told(token, None)
            if self.gate is not None:
                assert self.gate.wait(SECONDS)
            for _ in range(self.more):
                told(23, None)
        except BaseException:
            self.stopped.set()
            raise
        if self.error is not None:
            raise self.error
        return Outcome(tokens=[*self.tokens, *[23] * self.more], pool_tokens=1)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]

    @property
    def events(self) -> list[str]:
        return [one.removeprefix("data: ") for one in self.body.decode().split("\n\n") if one]


class Caller:
    """Calls an app as a server would."""

    def __init__(
        self, served: Served, runner: Scripted, places: int = 4, keys: Keys | None = None
    ) -> None:
        self.work = Work(runner, places, Telemetry(GATEWAY))
        self._app = app_of(self.work, served, Readiness(served, [], []), keys or Anybody())
        self.hung_up = asyncio.Event()

    async def call(
        self, method: str, path: str, body: bytes = b"", key: str = "", stalls: bool = False
    ) -> Reply:
        said: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": body, "more_body": stalls}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            await self.hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
        }
        await asyncio.wait_for(self._app(scope, receive, send), SECONDS)
        start, *rest = said
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], found, b"".join(one.get("body", b"") for one in rest))

    async def ask(self, key: str = "", **fields: Any) -> Reply:
        body = json.dumps({"model": "tiny", "prompt": "w5 w6", **fields}).encode()
        return await self.call("POST", "/v1/completions", body, key)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def served(model_dir: Path) -> Served:
    return Served.of(GatewayConfig(model_dir, engines=("127.0.0.1:1",)))


def asked(served: Served, runner: Scripted, **fields: Any) -> Reply:
    async def run() -> Reply:
        return await Caller(served, runner).ask(**fields)

    return asyncio.run(run())


def test_a_stream_that_fails_ends_with_the_error_and_not_as_if_it_were_whole(
    served: Served,
) -> None:
    reply = asked(served, Scripted(error=Unavailable("all engines are gone")), stream=True)
    *told, last = reply.events
    assert reply.status == 200 and len(told) == 3
    assert json.loads(last)["error"]["message"] == "all engines are gone"
    assert "[DONE]" not in reply.body.decode()
    assert asked(served, Scripted(), stream=True).events[-1] == "[DONE]"


def test_one_that_fails_before_its_first_token_has_a_status_of_its_own(served: Served) -> None:
    for stream in (False, True):
        full = Scripted((), Overloaded("too many", 2_500))
        reply = asked(served, full, stream=stream)
        assert reply.status == 429 and reply.error["message"] == "too many"
        assert reply.headers["retry-after"] == "3" and reply.headers["retry-after-ms"] == "2500"
        gone = asked(served, Scripted((), Unavailable("nobody")), stream=stream)
        assert gone.status == 503 and gone.headers["retry-after"] == "1"


@pytest.mark.parametrize("error", [Unauthenticated("the secret"), ZeroDivisionError("the secret")])
def test_of_what_is_wrong_with_us_callers_are_told_only_that_it_is(
    served: Served, error: Exception
) -> None:
    reply = asked(served, Scripted((), error))
    assert reply.status == 500 and reply.error["type"] == "server_error"
    assert b"secret" not in reply.body


def test_more_than_there_are_places_for_is_refused(served: Served) -> None:
    async def run() -> None:
        runner = Scripted(gate=threading.Event())
        caller = Caller(served, runner, places=2)
        first = asyncio.create_task(caller.ask(prompt=["w1", "w2"]))
        await until(lambda: len(runner.requests) == 2)
        refused = await caller.ask()
        assert refused.status == 429 and "2 prompts in it are yours" in refused.error["message"]
        assert runner.gate is not None
        runner.gate.set()
        assert (await first).status == 200
        await asyncio.wait_for(caller.work.idle(), SECONDS)
        assert (await caller.ask()).status == 200
        assert (await caller.ask(prompt=["w1"] * 3)).status == 429

    asyncio.run(run())


def test_no_client_gets_all_places(served: Served) -> None:
    async def run() -> None:
        gate = threading.Event()
        caller = Caller(served, runner := Scripted(gate=gate), places=8)
        mine = asyncio.create_task(caller.ask(prompt=["w1"] * 6, key="mine"))
        await until(lambda: len(runner.requests) == 6)
        assert (await caller.ask(key="mine")).status == 429
        other = asyncio.create_task(caller.ask(key="other"))
        await until(lambda: len(runner.requests) == 7)
        gate.set()
        assert [(await one).status for one in (mine, other)] == [200, 200]

    asyncio.run(run())


def test_who_hangs_up_ends_its_request_and_keeps_the_place_until_then(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        runner = Scripted(gate=threading.Event(), more=1)
        caller = Caller(served, runner, places=1)
        leaving = asyncio.create_task(caller.ask(stream=True))
        await until(lambda: runner.requests)
        caller.hung_up.set()
        await leaving
        assert (await caller.ask()).status == 429
        assert runner.gate is not None
        runner.gate.set()
        await asyncio.wait_for(caller.work.idle(), SECONDS)
        assert runner.stopped.is_set()

    asyncio.run(run())
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_who_hangs_up_before_the_first_token_ends_the_calls_that_are_made_for_it(
    served: Served,
) -> None:
    class Waits(Scripted):
        def run(self, request: Request, told: Told, caller: Asker | None, _: Outcome) -> Outcome:
            assert caller is not None
            self.requests.append(request)
            ended = threading.Event()
            with caller.waits_for(Ends(ended)):
                assert ended.wait(SECONDS)
            caller.check()
            raise AssertionError("nobody left")

    async def run() -> None:
        caller = Caller(served, runner := Waits(), places=2)
        leaving = asyncio.create_task(caller.ask(stream=True, prompt=["w1", "w2"]))
        await until(lambda: len(runner.requests) == 2)
        caller.hung_up.set()
        await leaving
        await asyncio.wait_for(caller.work.idle(), SECONDS)

    asyncio.run(run())


@dataclass
class Ends:
    """A call: it can be cancelled."""

    ended: threading.Event

    def cancel(self) -> None:
        self.ended.set()


def test_one_that_fails_of_several_ends_the_call(served: Served) -> None:
    reply = asked(served, Scripted(error=Unavailable("gone")), prompt=["w1", "w2"])
    assert reply.status == 503


def test_a_body_that_is_too_large_or_does_not_come_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        caller = Caller(served, Scripted())
        large = b" " * (SERVE_BODY_BYTES_MAX + 1)
        assert (await caller.call("POST", "/v1/completions", large)).status == 413
        monkeypatch.setattr(completions, "SERVE_BODY_SECONDS", 0.1)
        assert (await caller.call("POST", "/v1/completions", b"{", stalls=True)).status == 408
        await asyncio.wait_for(caller.work.idle(), SECONDS)

    asyncio.run(run())


def test_what_there_is_not_is_told_as_openai_does(served: Served) -> None:
    async def run() -> None:
        caller = Caller(served, Scripted())
        for path in ("/v1/chat", "/v1/models/"):  # which is not sent on to a host that it names
            nowhere = await caller.call("GET", path)
            assert nowhere.status == 404 and "/v1/completions" in nowhere.error["message"]
        wrong = await caller.call("GET", "/v1/completions")
        assert wrong.status == 405 and "POST" in wrong.error["message"]

    asyncio.run(run())


def test_a_field_whose_name_is_no_unicode_is_refused_as_any_other(served: Served) -> None:
    name = "\ud83c"
    refused = asked(served, Scripted(), **{name: 1})
    assert refused.status == 400 and refused.error["param"] == name


def test_clients_are_told_apart_by_their_keys_which_go_no_further(served: Served) -> None:
    runner = Scripted()
    for key in ("sk-1", "sk-1", "sk-2", ""):
        asked(served, runner, key=key)
    one, same, other, none = [request.client for request in runner.requests]
    assert one == same != other and none == "" and len(one) == 16 and "sk" not in one


def test_an_end_token_is_counted_and_is_why_it_ends(served: Served) -> None:
    (end,) = served.eos
    body = json.loads(asked(served, Scripted((20, end))).body)
    assert body["choices"][0] == {
        "index": 0,
        "text": f" {served.text.decode([20])}",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_no_word_of_a_prompt_or_an_answer_is_logged(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked(served, Scripted(error=Unavailable("gone")), prompt="w77 w78", stream=True)
    asked(served, Scripted((), ZeroDivisionError("x")), prompt="w77 w78")
    assert caplog.records and not {"w77", "w78", "w5"} & set(caplog.text.split())


KEYS = f"""
secret = "{"5e" * 32}"

[client.web]
tenant = "acme"
keys = ["{hashlib.sha256(b"first").hexdigest()}", "{hashlib.sha256(b"second").hexdigest()}"]
requests = 1

[client.batch]
keys = ["{hashlib.sha256(b"third").hexdigest()}"]
"""


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return KeyFile(path)


def test_without_a_key_that_somebody_has_nothing_is_served(
    served: Served, keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        runner = Scripted()
        caller = Caller(served, runner, keys=keys)
        for key in ("", "fourth"):
            for method, path in (
                ("POST", "/v1/completions"),
                ("POST", "/v1/chat/completions"),
                ("GET", "/v1/models"),
            ):
                reply = await caller.call(method, path, b"{}", key)
                assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
                assert reply.error["type"] == "invalid_request_error"
        assert (await caller.call("GET", "/health")).status == 200
        assert not runner.requests
        assert not [one for one in caplog.records if one.name.startswith("kvstore")]

    asyncio.run(run())


def test_a_call_is_the_client_s_and_the_tenant_s_that_its_key_says(
    served: Served, keys: KeyFile
) -> None:
    async def run() -> None:
        runner = Scripted()
        caller = Caller(served, runner, keys=keys)
        for key in ("first", "second", "third"):
            assert (await caller.ask(key, user="somebody else")).status == 200
        assert (await caller.call("GET", "/v1/models", key="third")).status == 200
        first, second, third = runner.requests
        assert [one.client for one in runner.requests] == ["web", "web", "batch"]
        assert first.salt == second.salt != third.salt
        assert "acme" not in first.salt and len(third.salt) == 64
        assert (await caller.ask("third", cache_salt=first.salt)).error["param"] == "cache_salt"

    asyncio.run(run())


def test_a_client_has_so_many_prompts_at_once_as_it_may(served: Served, keys: KeyFile) -> None:
    async def run() -> None:
        gate = threading.Event()
        caller = Caller(served, Scripted(gate=gate), keys=keys)
        wrong = (await caller.ask("first", prompt=["one", "two"])).error  # however long it waits
        assert wrong["param"] == "prompt" and "2 in one call, and 1 of yours" in wrong["message"]
        first = asyncio.create_task(caller.ask("first"))
        await until(lambda: caller.work._places.held("web"))
        refused = await caller.ask("second")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "1 prompts of yours" in refused.error["message"]
        other = asyncio.create_task(caller.ask("third"))
        await asyncio.sleep(0.05)
        gate.set()
        assert [(await one).status for one in (first, other)] == [200, 200]

    asyncio.run(run())
