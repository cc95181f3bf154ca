"""`moonpool attach` as people run it, beside servers of a test's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tests import tree

END_SECONDS = 60.0


class Server(Protocol):
    """What publishes and counts."""

    events: tuple[int, int]  # ports of this host where it publishes, and says so again

    @property
    def address(self) -> str: ...


class Attached:
    """The command as people run it; `report` ends it as they do."""

    def __init__(self, some: Sequence[Server], *options: str) -> None:
        engines = []
        for one in some:
            events, replay = (f"tcp://127.0.0.1:{port}" for port in one.events)
            engines += ["--engine", f"{one.address},kv={events},replay={replay}"]
        command = [sys.executable, "-m", "kvstore", "-v", "attach", *engines, *options]
        self._process = subprocess.Popen(
            [*command, "--json", "--minutes", "30"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tree.ROOT,
            env={**os.environ, "PYTHONPATH": str(tree.ROOT)},
            # Of tests that run in the background the shell had it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "counting" in line:
                return
        raise AssertionError(f"it ended with {self._process.wait()}")

    def report(self) -> Any:
        self._process.send_signal(signal.SIGINT)
        said, _ = self._process.communicate(timeout=END_SECONDS)
        assert self._process.returncode == 130
        return json.loads(said)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def attached(some: Sequence[Server], *options: str) -> Iterator[Attached]:
    made = Attached(some, *options)
    try:
        yield made
    finally:
        made.close()
