from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvstore.dashboard import scrape
from kvstore.dashboard.samples import SERIES_MAX, Sample
from kvstore.errors import ConfigError, Invalid, Unavailable


@contextmanager
def saying(*parts: bytes, status: int = 200, pause: float = 0.0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            for part in parts:
                with suppress(OSError):  # nobody listens any more
                    self.wfile.write(part)
                time.sleep(pause)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_answer_that_comes_by_drops_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "ANSWER_SECONDS", 0.2)
    drops = [b"#"] * 50
    with saying(*drops, pause=0.05) as address, pytest.raises(Unavailable, match="no answer"):
        scrape.read(address)


def test_totals_and_what_is_looked_up_are_told_apart() -> None:
    text = b"""# TYPE moonpool_x_total counter
moonpool_x_total{why="old"} 3
# TYPE moonpool_x_created gauge
moonpool_x_created{why="old"} 1e9
# TYPE moonpool_g gauge
moonpool_g 2.5
moonpool_g{bad="yes"} NaN
# TYPE vllm:others_total counter
vllm:others_total 5
# TYPE moonpool:h histogram
moonpool:h_bucket{le="1.0"} 1
moonpool:h_bucket{le="+Inf"} 2
moonpool:h_count 2
moonpool:h_sum 7
"""
    with saying(text) as address:
        found = scrape.read(address)
    assert found == [
        Sample("moonpool_x_total", frozenset({("why", "old")}), 3.0, True),
        Sample("moonpool_g", frozenset(), 2.5, False),
        Sample("moonpool:h_bucket", frozenset({("le", "1.0")}), 1.0, True),
        Sample("moonpool:h_bucket", frozenset({("le", "+Inf")}), 2.0, True),
        Sample("moonpool:h_count", frozenset(), 2.0, True),
        Sample("moonpool:h_sum", frozenset(), 7.0, True),
    ]


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        (b"<html>", 200, "no metrics"),
        (b'# TYPE moonpool_h histogram\nmoonpool_h_bucket{le="long"} 1\n', 200, "no metrics"),
        (b'moonpool{a="b} 1\n', 200, "no metrics"),
        (b"\xff\xfe", 200, "no metrics"),
        (b"x 1\n", 503, "answers 503"),
        (b"{}", 404, "answers 404 .*: perhaps it answers clients there; give its --metrics"),
        (b"x" * (scrape.ANSWER_BYTES_MAX + 1), 200, "more than"),
        (b"".join(b"moonpool%d 1\n" % i for i in range(SERIES_MAX + 1)), 200, "series"),
        (b'moonpool{a="' + b"b" * 257 + b'"} 1\n', 200, "labels"),
    ],
)
def test_what_are_no_metrics_or_too_many_is_refused(text: bytes, status: int, why: str) -> None:
    with saying(text, status=status) as address, pytest.raises(Invalid, match=why):
        scrape.read(address)


def test_nobody_there_is_unavailable() -> None:
    with saying(b"") as address:
        pass
    with pytest.raises(Unavailable, match="Connection refused"):
        scrape.read(address)


def test_a_name_that_no_host_can_have_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"10\.0\.0\.\.1:9401: no host can have such a name"):
        scrape.read("10.0.0..1:9401")


@pytest.mark.parametrize("address", ["here", "http://a:1", "a:b", "a:0", ":1", "a:70000"])
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT, as a process's --metrics"):
        scrape.checked(address)
