"""A small server of OpenAI's completions on a real socket, that streams what a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.nodes import CALL_SECONDS

DONE = "[DONE]"
BREAK = object()  # the connection ends here
WAIT = object()  # until the caller hangs up
LARGER = {"error": {"message": "that is larger than max_model_len"}}
DRIP = object()  # likewise, and meanwhile bytes come that make nothing whole


def told(tokens: Sequence[int], reason: str | None = None) -> dict[str, Any]:
    """An event as vLLM makes them."""
    return {"choices": [{"index": 0, "token_ids": list(tokens), "finish_reason": reason}]}


def used(cached: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Double:
    """Answers `events` behind `status`, each after a pause; what is no event is sent as it is."""

    events: Sequence[Any] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    asked: list[Asked] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # its caller hung up
    begun: threading.Event = field(default_factory=threading.Event)
    pause_seconds: float = 0.0
    well: bool = True
    looked: list[str] = field(default_factory=list)  # paths of what was asked beside
    model_len: int | None = None  # as vLLM's --max-model-len; None: it takes all, and does not say
    address: str = ""

    def too_large(self, body: dict[str, Any]) -> bool:
        """As versions of vLLM that are strictest have it."""
        told = body.get("sampling_params", {})  # of SGLang's API
        prompt = body.get("prompt") or body.get("input_ids", ())
        whole = len(prompt) + body.get("max_tokens", told.get("max_new_tokens", 0))
        return self.model_len is not None and whole > self.model_len


def _handler(double: Double) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            double.looked.append(self.path)
            said = {"id": "m"} if double.model_len is None else {"max_model_len": double.model_len}
            body = json.dumps({"data": [said]}).encode() if self.path == "/v1/models" else b""
            self.send_response(double.status if double.well else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            double.asked.append(Asked(self.path, dict(self.headers), body))
            self.close_connection = True
            status = 400 if double.too_large(body) else double.status
            self.send_response(status)
            for name, value in double.headers.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            double.begun.set()
            for one in (LARGER,) if status != double.status else double.events:
                time.sleep(double.pause_seconds)
                if one is BREAK:
                    return
                if one is WAIT:
                    self.connection.settimeout(CALL_SECONDS)
                    if not self.connection.recv(1):
                        double.left.set()
                    return
                if one is DRIP:
                    self._drip()
                    return
                self._send(_bytes(one, status))
            self._send(b"")

        def _drip(self) -> None:
            until = time.monotonic() + CALL_SECONDS
            with suppress(OSError):
                while time.monotonic() < until:
                    self._send(b"x")
                    time.sleep(0.05)
                return
            double.left.set()

        def _send(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _bytes(one: Any, status: int) -> bytes:
    if isinstance(one, bytes):
        return one
    text = one if isinstance(one, str) else json.dumps(one)
    return text.encode() if status != 200 else b"data: %s\n\n" % text.encode()


@contextmanager
def serving(*doubles: Double) -> Iterator[None]:
    with ExitStack() as stack:
        for one in doubles:
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(one))
            server.daemon_threads = True
            one.address = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield
