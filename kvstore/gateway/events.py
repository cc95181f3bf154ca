"""One answer of a server over HTTP, event by event as it is made: what OpenAI's API calls a stream.

It ends where the server says [DONE]. Whatever else ends it is an error, and what is received is
bounded: a server may be anybody who took its port.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, cast

from kvstore.address import host_and_port
from kvstore.errors import Denied, Invalid, KVStoreError, Overloaded, Unavailable
from kvstore.limits import SERVE_EVENT_BYTES_MAX, SERVE_REFUSAL_BYTES_MAX
from kvstore.rpc.http_answer import Until, answer_of

CONNECT_SECONDS = 2.0  # an engine that is there takes a connection at once
FIRST_SECONDS = 600.0  # until its first event, where it is well: OpenAI's clients wait no longer
_HEALTH_SECONDS = 25.0  # SGLang says after 20 that it is not
_RETRY_MS = 1_000  # where the server does not say when
_WORDS_MAX = 400  # of a server's own, in an error
_MODELS_BYTES_MAX = 1 << 20  # of what it says of its models
_DATA, _DONE = b"data:", b"[DONE]"


class Call:
    """A POST whose answer is on its way. `cancel` hangs up, at once and from any thread: then the
    server stops what it does for it."""

    def __init__(self, address: str, seconds: float) -> None:
        """Connects. Raises `Unavailable`. Each event is whole within so long, or never;
        the first may take longer where the server is well."""
        self._address, self._seconds = address, seconds
        self._source: _Patient | None = None
        self._reply: HTTPResponse | None = None  # once it begins to come
        self._http = HTTPConnection(*host_and_port(address), timeout=CONNECT_SECONDS)
        with self._typed():
            self._http.connect()
        self._socket: socket.socket = self._http.sock  # the connection has it no more once closed
        self._socket.settimeout(seconds)

    def cancel(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cancel()
        if self._reply is not None:
            self._reply.close()
        self._http.close()
        self._socket.close()

    def ask(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Returns once the server has begun to answer. Raises what it refused by its type."""
        with self._typed():
            said = {"Content-Type": "application/json", **headers}
            self._http.request("POST", path, json.dumps(body).encode(), said)
        self._source = source = _Patient(self._socket, self._address, self._seconds)
        self._reply = reply = HTTPResponse(cast(Any, source), method="POST")
        with self._typed():
            reply.begin()
        if reply.status != 200:
            source.begun = True
            raise self._refused(reply)
        kind = reply.headers.get_content_type()
        if kind != "text/event-stream":
            raise self._bad(f"it answered with {kind[:64]} and not with a stream")

    def events(self) -> Iterator[dict[str, Any]]:
        """Of what was asked. Raises `Unavailable` where the answer breaks off."""
        assert self._reply is not None and self._source is not None, "nothing is asked yet"
        for event in self._stream(self._reply):
            yield event
            self._source.again()

    def _stream(self, reply: HTTPResponse) -> Iterator[dict[str, Any]]:
        while True:
            with self._typed():
                line = reply.readline(SERVE_EVENT_BYTES_MAX + 1)
            if not line:
                raise self._bad("its stream broke off")
            if len(line) > SERVE_EVENT_BYTES_MAX:
                raise self._bad(f"an event has more than {SERVE_EVENT_BYTES_MAX} bytes")
            if not line.startswith(_DATA):
                continue  # a blank line between two events, or a comment
            data = line.removeprefix(_DATA).strip()
            if data == _DONE:
                return
            event = _object(data)
            if event is None:
                raise self._bad("an event is no JSON object")
            yield event

    def _refused(self, reply: HTTPResponse) -> KVStoreError:
        with self._typed():
            body = reply.read(SERVE_REFUSAL_BYTES_MAX)
        words, found = reply.reason, _object(body) or {}
        error = found.get("error", found)
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            words = error["message"]
        return refusal_of(self._address, reply.status, words, _retry_ms(reply))

    def _bad(self, what: str) -> Unavailable:
        return Unavailable(f"{self._address}: {what}", _RETRY_MS)

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (OSError, HTTPException, ValueError) as error:
            raise self._bad(str(error) or type(error).__name__) from error


class _Patient(Until):
    """What a server says, until nothing is heard of it for so long. Before its first event one that
    says that it is well is waited for longer: others are before this, or its prompt is long."""

    def __init__(self, sock: Any, address: str, seconds: float) -> None:
        self._address, self._seconds = address, seconds
        now = time.monotonic()
        self._patience = now + FIRST_SECONDS
        self.begun = False
        super().__init__(sock, now + seconds)

    def again(self) -> None:
        """An event was heard."""
        self.begun = True
        self.deadline = time.monotonic() + self._seconds

    def readinto(self, buffer: Any) -> int:
        while True:
            try:
                return super().readinto(buffer)
            except TimeoutError:
                silent = f"nothing was heard of it for {self._seconds:.0f} s"
                if self.begun:
                    raise TimeoutError(silent) from None
            if time.monotonic() >= self._patience:
                raise TimeoutError(f"it said no first token in {FIRST_SECONDS:.0f} s")
            try:
                check_health(self._address, _HEALTH_SECONDS)
            except Unavailable as error:
                raise TimeoutError(f"{silent}, and {error}") from error
            self.deadline = min(time.monotonic() + self._seconds, self._patience)


class Refused(Unavailable):
    """A server says by a status of its own that it does not do it; another may."""

    def __init__(self, status: int, message: str, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms)
        self.status = status


def check_health(address: str, seconds: float) -> None:
    """Raises `Unavailable` unless the server there says that it is well."""
    http = HTTPConnection(*host_and_port(address), timeout=seconds)
    try:
        status, _ = answer_of(http, "/health", seconds, 0)
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{address}: {error}", _RETRY_MS) from error
    if status != 200:
        raise Unavailable(f"{address}: /health says {status}", _RETRY_MS)


def model_len(address: str, seconds: float) -> int:
    """Tokens of a prompt and its answer that the server there takes, as vLLM says it beside the
    names of its model; 0 where nothing is said."""
    http = HTTPConnection(*host_and_port(address), timeout=seconds)
    try:
        _, body = answer_of(http, "/v1/models", seconds, _MODELS_BYTES_MAX)
    except (OSError, HTTPException):
        return 0
    each = (_object(body) or {}).get("data")
    models = [one for one in each if isinstance(one, dict)] if isinstance(each, list) else []
    said = [one.get("max_model_len") for one in models]
    return min((one for one in said if type(one) is int), default=0)


def refusal_of(address: str, status: int, words: str, retry_ms: int = _RETRY_MS) -> KVStoreError:
    """What a server's status says, by its type. A call that it would refuse again is wrong for all
    servers alike; where the server itself is what is wrong, another may do."""
    text = f"{address}: {words[:_WORDS_MAX]} ({status})"
    if status in (401, 403):
        return Denied(f"{text}: the gateway shows it no key")
    if status == 429:
        return Overloaded(text, retry_ms)
    if status in (400, 413, 422):
        return Invalid(text)
    return Refused(status, text, retry_ms)


def failure_of(address: str, error: Any) -> KVStoreError:
    """What a server says amid its answer, by its type."""
    said = error if isinstance(error, dict) else {}
    code, words = said.get("code"), said.get("message")
    status = code if type(code) is int else 500
    return refusal_of(address, status, words if isinstance(words, str) else "it failed")


def _retry_ms(reply: HTTPResponse) -> int:
    said = reply.headers.get("retry-after", "")
    return 1_000 * int(said) if said.isdecimal() and len(said) < 6 else _RETRY_MS


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
