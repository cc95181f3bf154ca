"""`moonpool engine --tp N`: the processes of ranks 1 on, each started and ended by rank 0's.

They die with rank 0 whatever ends it, and rank 0 ends when it has lost one. Each says on its output
when it has loaded its part of the model, and waits for a word on its input before it joins, so that
nobody waits in a rendezvous for one that will not come.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kvstore.cli.parent import environment
from kvstore.errors import ConfigError, Unavailable

LOAD_SECONDS = 600.0  # a large model takes its time to load
END_SECONDS = 5.0  # between the engine's end and a rank's
GONE_SECONDS = 0.5  # that those which brought about an engine's end have to be gone


class Ranks:
    """Ranks 1 to `ranks` - 1 of an engine. A context manager: leaving ends them."""

    def __init__(self, arguments: Sequence[str], ranks: int) -> None:
        """`arguments` are those of a rank's command, less its number and the meeting."""
        self._arguments, self._ranks = list(arguments), ranks
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for rank in range(1, self._ranks):
            at = ["--rank", str(rank), "--meeting", os.fspath(self.meeting)]
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "kvstore", *self._arguments, *at],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment(),
                    start_new_session=True,  # Ctrl-C reaches rank 0 alone, which ends all in order
                )
            )

    def meet(self) -> None:
        deadline = time.monotonic() + LOAD_SECONDS
        for rank, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            left = max(0.0, deadline - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise Unavailable(f"rank {rank} was not ready in {LOAD_SECONDS:.0f} s")
            if not process.stdout.readline():
                raise ConfigError(f"rank {rank} did not start: what it said stands above")
        for rank, process in enumerate(self._processes, 1):
            assert process.stdin is not None
            try:
                process.stdin.write(b"join\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise Unavailable(f"rank {rank} ended before all had loaded") from None

    def __enter__(self) -> Self:
        self.meeting = Path(tempfile.mkdtemp(prefix="moonpool-ranks-"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._say_who_ended()
        deadline = time.monotonic() + (END_SECONDS if error is None else 0.0)
        for process in self._processes:
            _reap(process, deadline)
        shutil.rmtree(self.meeting, ignore_errors=True)

    def _say_who_ended(self) -> None:
        """One that is killed is lost to the others a moment before it has ended."""
        until = time.monotonic() + GONE_SECONDS
        for rank, process in enumerate(self._processes, 1):
            try:
                ended = process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            print(f"moonpool: rank {rank} ended with {ended}", file=sys.stderr)


def _reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):  # the word that it did not live to read
                pipe.close()


def join() -> None:
    """At a rank: say that it has loaded, and wait for rank 0's word that all have."""
    print(json.dumps({"ready": "rank"}), flush=True)
    if not sys.stdin.readline():
        raise Unavailable("rank 0 ended before the ranks could meet")
