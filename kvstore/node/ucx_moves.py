"""The node's side of its mover (`kvstore.node.ucx_mover`): asks it, starts it again if it dies.

Whoever asks for a move has its answer, or knows that the process that moved is gone: either way no
byte of it moves after. An agent's name, drawn at random, is known to those alone that it showed
its memory to. One that no connection speaks of any more is known for a while still: where UCX is
told to drop an agent that lives on, a descriptor stays open on either side until that one ends.
"""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.limits import (
    UCX_AGENTS_UNUSED_MAX,
    UCX_LOADS_MAX,
    UCX_MOVE_SECONDS,
    UCX_RUNS_MAX,
)
from kvstore.memory.arena import Arena
from kvstore.node.ucx_words import ANSWER, REQUEST, RUN, STARTED, WORDS_BYTES_MAX, What
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_agent import Run
from kvstore.transfer.ucx_memory import Registration

Runs = Iterator[Run]
log = logging.getLogger(__name__)

START_SECONDS = 60.0  # of a mover: it registers the whole arena
_GRACE_SECONDS = 5.0  # beyond its own deadline, after which it is taken for hung
_PAUSE_SECONDS = 1.0  # before another start
AHEAD = 8  # requests of one call that the mover has at once
_NONE = Registration(0, Segment.DRAM)  # of requests that move nothing


@dataclass(eq=False)
class _Process:
    """One mover, as long as it lives."""

    popen: subprocess.Popen[bytes]
    socket: socket.socket
    answers: dict[int, Future[None]] = field(default_factory=dict)
    agents: dict[bytes, _Known] = field(default_factory=dict)  # the longest unused first
    alive: bool = True


@dataclass(eq=False)
class _Known:
    """An agent that a mover knows."""

    uses: int = 0  # regions that connections have attached now
    loads: int = 0  # that they ever had: the mover knows them all


class UcxMoves:
    """What is moved over UCX, for all connections. Safe to use from several threads."""

    def __init__(self, arena: Arena) -> None:
        """Starts a mover. Raises `ConfigError` where there is no UCX to be had."""
        self._arena = arena
        self._lock = threading.RLock()  # of what is asked, in the order in which it is
        self._starting = threading.Lock()
        self._next = STARTED
        self._tried_at = 0.0  # when the last start began; or ended, where it was in vain
        self._closed = False
        self._start()

    @property
    def pid(self) -> int:
        """Of the mover that is running, or ran last."""
        return self._process.popen.pid

    @contextmanager
    def knowing(self, agent: bytes, blob: bytes) -> Iterator[Attached]:
        """Inside this, the mover knows an agent and the memory that its blob tells of.

        Raises `Unavailable` where it cannot be.
        """
        process = self._running()
        with self._lock:
            known = process.agents.pop(agent, None) or _Known()
            process.agents[agent] = known
            known.uses, known.loads = known.uses + 1, known.loads + 1
        try:
            self._wait(process, [self._ask(process, What.LOAD, agent, blob)])
            yield Attached(self, process, agent)
        finally:
            with suppress(KVStoreError):  # then it is gone already, or the mover is
                with self._lock:
                    known.uses -= 1
                    dropped = [
                        self._ask(process, What.DROP, one, b"") for one in _tired(process.agents)
                    ]
                self._wait(process, dropped)

    def close(self) -> None:
        self._closed = True
        self._end(self._process)
        with self._starting:  # whichever is being started ends too, and none is after it
            self._process.popen.wait()

    def move(
        self,
        process: _Process,
        what: What,
        agent: bytes,
        theirs: Registration,
        pieces: Iterator[Runs],
    ) -> Generator[None, None, None]:
        """Move these pieces, and say of each when it is done, in their order. When this is closed,
        returns or raises, nothing of them is moving."""
        asked: deque[list[Future[None]]] = deque()
        try:
            for runs in pieces:
                asked.append([])
                for one in _packed(runs):
                    asked[-1].append(self._ask(process, what, agent, one, theirs))
                if len(asked) == AHEAD:
                    self._wait(process, asked.popleft())
                    yield
            while asked:
                self._wait(process, asked.popleft())
                yield
        finally:
            self._wait(process, [one for some in asked for one in some])

    def _ask(
        self,
        process: _Process,
        what: What,
        agent: bytes,
        rest: bytes,
        theirs: Registration = _NONE,
    ) -> Future[None]:
        answer: Future[None] = Future()
        with self._lock:
            if not process.alive:
                raise Unavailable("what moved blocks over ucx has ended: connect again")
            self._next = self._next % 0xFFFFFFFF + 1
            process.answers[number := self._next] = answer
        packet = REQUEST.pack(number, what, UCX_MOVE_SECONDS, agent, *theirs) + rest
        try:
            process.socket.send(packet)
        except OSError:  # it is gone; or it hung, and the time to take a packet is over
            self._end(process)
        return answer

    def _wait(self, process: _Process, asked: list[Future[None]]) -> None:
        """Until each is answered; raises the first failure."""
        failed: Exception | None = None
        for one in asked:
            try:
                one.result(UCX_MOVE_SECONDS + _GRACE_SECONDS)
            except TimeoutError:
                self._end(process)
                one.exception()  # set once the process is gone: until then it may move
                failed = failed or Unavailable("what moves blocks over ucx hung: it was ended")
            except Unavailable as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _running(self) -> _Process:
        asked_at = time.monotonic()
        with self._starting:
            if self._process.alive:
                return self._process
            # Whoever waited here for a start that was in vain makes none of its own.
            if self._closed or asked_at < self._tried_at + _PAUSE_SECONDS:
                raise Unavailable("what moves blocks over ucx has ended: try again in a second")
            try:
                return self._start()
            except ConfigError as error:
                raise Unavailable(f"what moves blocks over ucx does not start: {error}") from error

    def _start(self) -> _Process:
        self._tried_at = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        patience = divmod(int(1e6 * (UCX_MOVE_SECONDS + _GRACE_SECONDS)), 1_000_000)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *patience))
        descriptors = (theirs.fileno(), self._arena.descriptor)
        arguments = [str(one) for one in (*descriptors, self._arena.size, self._arena.hbm_bytes)]
        with theirs:
            popen = subprocess.Popen(
                [sys.executable, "-m", "kvstore.node.ucx_mover", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C reaches the node alone, which ends it
            )
        process = _Process(popen, ours)
        started = process.answers[STARTED] = Future[None]()
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        self._process = process
        if self._closed:  # meanwhile, of another process
            self._end(process)
        try:
            started.result(START_SECONDS)
        except (Unavailable, TimeoutError) as error:
            self._end(process)
            self._tried_at = time.monotonic()
            raise ConfigError(str(error) or "transport ucx: it did not start in time") from error
        return process

    def _listen(self, process: _Process) -> None:
        """Hand out answers until there will be none."""
        try:
            while packet := process.socket.recv(ANSWER.size + WORDS_BYTES_MAX):
                number, failed = ANSWER.unpack_from(packet)
                answer = process.answers.pop(number)
                if failed:
                    words = packet[ANSWER.size :].decode(errors="replace")
                    answer.set_exception(Unavailable(words))
                else:
                    answer.set_result(None)
        except OSError as error:
            log.info("the mover: %s", error)
        self._end(process)
        process.popen.wait()  # its memory, and what it moved, went with it
        with self._lock:
            left, process.answers = list(process.answers.values()), {}
        for answer in left:
            answer.set_exception(Unavailable("what moved blocks over ucx ended meanwhile"))
        process.socket.close()
        if not self._closed:
            log.warning("the mover ended with %s", process.popen.returncode)

    def _end(self, process: _Process) -> None:
        """Have it end, at once; `_listen` sees to the rest."""
        process.alive = False
        process.popen.kill()
        with suppress(OSError):
            process.socket.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class Attached:
    """An agent that the mover knows."""

    moves: UcxMoves
    process: _Process
    agent: bytes

    def write(self, theirs: Registration, pieces: Iterator[Runs]) -> Generator[None, None, None]:
        """Arena -> the agent's memory: offset here, address there, bytes. See `UcxMoves.move`."""
        return self.moves.move(self.process, What.WRITE, self.agent, theirs, pieces)

    def read(self, theirs: Registration, pieces: Iterator[Runs]) -> Generator[None, None, None]:
        """The other way."""
        return self.moves.move(self.process, What.READ, self.agent, theirs, pieces)


def _tired(agents: dict[bytes, _Known]) -> list[bytes]:
    """Take out those that are to be dropped: unused, and many loads old or too many."""
    unused = [name for name, one in agents.items() if not one.uses]
    over = unused[: max(0, len(unused) - UCX_AGENTS_UNUSED_MAX)]
    tired = [name for name in unused if name in over or agents[name].loads >= UCX_LOADS_MAX]
    for name in tired:
        del agents[name]
    return tired


def _packed(runs: Runs) -> Iterator[bytes]:
    """As requests have them, so many at a time."""
    while some := list(islice(runs, UCX_RUNS_MAX)):
        yield np.array(some, dtype=RUN).tobytes()
