"""A server's /metrics that says what a test wants, over real sockets."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from kvstore.attach.kinds import VLLM, Kind


def page(kind: Kind = VLLM, **counters: float) -> str:
    """As such a server has it: counters by the names of `Asked`, in two ranks that are to be added.
    Beside those of a sample that a label picks out there is another, which is not to be."""
    lines = []
    for one in kind.running[:1]:
        lines += [f"# TYPE {one.name} gauge", f'{one.name}{{engine="0"}} 2.0']
    for name, value in counters.items():
        sample = kind.counters[name]
        family = sample.name.removesuffix("_total")
        lines.append(f"# TYPE {family} {'histogram' if family == sample.name else 'counter'}")
        for rank in range(2):
            labels = f'engine="{rank}",model_name="m"'
            if sample.label:
                lines.append(f'{sample.name}{{{labels},{sample.label}="another"}} 1000')
                labels += f',{sample.label}="{sample.values[rank % len(sample.values)]}"'
            lines.append(f"{sample.name}{{{labels}}} {value / 2}")
    return "\n".join([*lines, ""])


class Pages:
    """Answers with `status` and `body`; `hold` keeps it from ending what it says."""

    def __init__(self, body: str = "") -> None:
        self.body, self.status = body, 200
        self.hold = threading.Event()
        self.hold.set()
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path == "/metrics"
                self.send_response(pages.status)
                self.end_headers()
                self.wfile.write(pages.body.encode())
                pages.hold.wait(20.0)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | TracebackType | BaseException | None) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)
