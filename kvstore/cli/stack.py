"""A pool of this host as child processes: started in order, watched, stopped together.

Children die with their parent whatever ends it (the kernel sees to that), so nothing is left behind
to be cleaned up, and what a killed stack left in its directory does not hinder the next one.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import BinaryIO, Self

from kvstore.cli.compiling import SAYS
from kvstore.cli.parent import environment
from kvstore.cli.parts import Plan
from kvstore.cli.patience import Patience, worked_seconds
from kvstore.config import CREDENTIALS
from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import KiB

READY_SECONDS = 120.0  # of one that only waits, as a large model does for its disk
LAST_WORDS_BYTES = 64 * KiB  # of a log, that are looked through for them
WRONG = 2  # the exit code of a command line that is
_NAMES = "moonpool: "  # so a command says why it failed, and we say it once more
LOOK_SECONDS = 0.2  # between two looks at whether to stop
STOP_SECONDS = 12.0  # node and engines drain in less
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = 0.5, 10.0


class Child:
    """One process, its log file, and the addresses it said it serves at."""

    def __init__(
        self, name: str, arguments: list[str], directory: Path, without: Collection[str] = ()
    ) -> None:
        self.name, self.arguments = name, arguments
        self._without = without  # of this process's environment
        self.log = directory / f"{name}.log"
        self._log_from = 0  # where what this process says begins, behind what those before it said
        self.address, self.metrics, self.board = "", "", ""
        self._process: subprocess.Popen[bytes] | None = None
        self.pause = RESTART_SECONDS_MIN

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvstore", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={k: v for k, v in environment().items() if k not in self._without},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which stops us in order
            )

    def wait_ready(self, nobody_waits: Callable[[], bool] = lambda: False) -> None:
        """Return once it serves, or nobody waits for that any more; raises what its log says if it
        ends instead."""
        assert self._process is not None and self._process.stdout is not None
        patience = Patience(time.monotonic(), READY_SECONDS)
        text = b""
        with self.log.open("rb") as log:
            log.seek(self._log_from)
            while b"\n" not in text:
                left = patience.left(time.monotonic(), worked_seconds(self.pid))
                if left <= 0:
                    raise Unavailable(f"{self.name} {patience.why}: {self.log}")
                output = self._process.stdout
                readable, _, _ = select.select([output], [], [], min(left, LOOK_SECONDS))
                _pass_on(log)
                if nobody_waits():
                    return
                if not readable:
                    continue
                piece = os.read(output.fileno(), 4096)
                if not piece:
                    code = self._process.wait()  # before that nobody knows how it ended
                    why = f"{self.name} did not start: {self._last_words()}"
                    raise ConfigError(why) if code == WRONG else Unavailable(why)
                text += piece
        said = json.loads(text.splitlines()[0])
        self.address, self.metrics = said["ready"], said.get("metrics", "")
        self.board = said.get("board", "")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exited(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def reap(self, deadline: float) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _last_words(self) -> str:
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_from, end - LAST_WORDS_BYTES))
            said = log.read().decode(errors="replace")
        lines = [line.removeprefix(_NAMES) for line in said.splitlines() if line.strip()]
        killed = -(self.exited or 0)
        if killed <= 0:
            return lines[-1] if lines else f"it left no word in {self.log}"
        how = f"it was ended by signal {killed}"
        if killed == signal.SIGKILL:
            how += ": perhaps there was no memory for it"  # as the kernel ends who has the most
        return f"{lines[-1]} ({how})" if lines else how


def _pass_on(log: BinaryIO) -> None:
    """What it says of compiling, which is what a first start is waited for."""
    for line in log:
        if line.startswith(SAYS):
            print(line.decode().rstrip(), file=sys.stderr, flush=True)


class Stack:
    """The processes of a plan. Use it as a context manager: leaving stops them."""

    def __init__(self, plan: Plan, *, restart: bool) -> None:
        plan.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        without = () if plan.tls else CREDENTIALS
        self._plan = plan
        self._stages = [
            [Child(name, [], plan.directory, without) for name in names] for names in plan.stages
        ]
        self.children = {one.name: one for stage in self._stages for one in stage}
        self._restart = restart
        # A handler may put while what it interrupts is in `get`: an Event would wait for itself.
        self._signals: SimpleQueue[int] = SimpleQueue()

    @property
    def addresses(self) -> dict[str, str]:
        return {name: child.address for name, child in self.children.items()}

    def start(self, serves: Callable[[Child], None] = lambda child: None) -> None:
        """Start all, each stage side by side, and tell of each that `serves`; returns when all
        do."""
        for stage in self._stages:
            for child in stage:
                self._begin(child)
            for child in stage:
                child.wait_ready()
                serves(child)

    def _begin(self, child: Child) -> None:
        at = {name: (one.address, one.metrics) for name, one in self.children.items()}
        child.arguments = self._plan.command(child.name, at)
        child.start()

    def watch(self) -> None:
        """Keep every child running until a signal: one that fails is started again, ever slower.
        One that ended well was told to, as a node is by `moonpool drain`, and stays so."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._signals.put(number))
        watched = list(self.children.values()) if self._restart else []
        while not self._told_within(LOOK_SECONDS):
            for child in list(watched):
                if child.exited == 0:
                    watched.remove(child)
                    print(f"{child.name} ended as it was told to", file=sys.stderr, flush=True)
                elif child.exited is not None:
                    self._start_again(child)

    def stop(self) -> None:
        """Stop all, those that started last first, each stage with time to drain."""
        for stage in reversed(self._stages):
            deadline = time.monotonic() + STOP_SECONDS
            for child in stage:
                child.stop()
            for child in stage:
                child.reap(deadline)

    def _told_within(self, seconds: float) -> bool:
        """Whether a signal came, at any time before or within so many seconds from now."""
        try:
            self._signals.put(self._signals.get(timeout=seconds))
        except Empty:
            return False
        return True

    def _start_again(self, child: Child) -> None:
        print(
            f"{child.name} ended with {child.exited}; starting it again in {child.pause:.1f} s "
            f"(see {child.log})",
            file=sys.stderr,
            flush=True,
        )
        if self._told_within(child.pause):
            return
        child.pause = min(2 * child.pause, RESTART_SECONDS_MAX)
        try:
            self._begin(child)
            child.wait_ready(lambda: self._told_within(0.0))
            if self._told_within(0.0):
                return
            child.pause = RESTART_SECONDS_MIN
            print(f"{child.name:<9} {child.address}", flush=True)
        except (ConfigError, Unavailable) as error:
            print(f"{child.name}: {error}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
