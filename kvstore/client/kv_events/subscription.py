"""Receives one engine's KV events over ZeroMQ: all of them in order, or word that some are lost.

Batches are numbered. Those that did not come are asked of the engine again, as long as it keeps
them; where it does not, or does not say, `lost` is called: whoever listens had better forget all
that it believes. So it is where the connection broke: who answers next may be another process, and
is asked for all that it has. All happens on a thread of its own, so nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.client.kv_events.messages import Event, Messages, Unreadable
from kvstore.errors import ConfigError

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 16 << 20  # ZeroMQ hangs up on who sends more
BATCHES_WAITING_MAX = 1_000  # beyond, ZeroMQ drops some, and they are asked for again
POLL_SECONDS = 0.1
REPLAY_SECONDS = 2.0  # until an answer begins
PAUSE_SECONDS = 0.5  # between two batches of it; an engine sends them one after another
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 0.1, 2.0  # until it connects anew, where that broke
REPLAY_SECONDS_MAX = 60.0  # for all that is asked for again
_NUMBER_BYTES = 8
_END = b"\xff" * _NUMBER_BYTES  # the number -1 ends what was asked for
_CLOSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Source:
    """Where an engine publishes, as ZeroMQ names it: `tcp://127.0.0.1:5557`."""

    endpoint: str
    replay_endpoint: str = ""  # that batches are asked for again at; empty: nowhere
    topic: str = ""


class Subscription:
    """To one engine, until `close`. Raises `ConfigError` where ZeroMQ is not installed.

    `caught_up` is set once what was published before has been asked for, and taken if it came,
    or it has ended by an `error`: within `REPLAY_SECONDS_MAX`.
    """

    def __init__(
        self,
        source: Source,
        messages: Messages,
        take: Callable[[list[Event]], None],
        lost: Callable[[], None],
    ) -> None:
        self._zmq = _zmq()
        self._source, self._messages, self._take, self._lost = source, messages, take, lost
        self._next = 0  # number of the batch that is taken next
        self._newest = -1  # of what was published, not asked for
        self.caught_up = threading.Event()
        self.error: Exception | None = None  # by which it is read no more
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        context = self._zmq.Context()
        try:
            pause = AGAIN_SECONDS_MIN
            self._listen(context)
            while not self._over.is_set():
                if self._next:  # what came over the connection that broke may be so no more
                    self._lost()
                    pause = AGAIN_SECONDS_MIN
                self._next, self._newest = 0, -1
                self._over.wait(pause)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)
                self._listen(context)
        except Exception as error:
            log.exception("KV events of %s are read no more", self._source.endpoint)
            self.error = error
            self._lost()
            self.caught_up.set()
        finally:
            context.destroy(linger=0)

    def _listen(self, context: Any) -> None:
        """For as long as one connection lasts. The next has a socket of its own: ZeroMQ tries none
        again that it hung up itself."""
        published = self._socket(context, self._zmq.SUB, self._source.endpoint)
        broken = published.get_monitor_socket(self._zmq.EVENT_DISCONNECTED)
        either = self._zmq.Poller()
        for one in (broken, published):
            either.register(one, self._zmq.POLLIN)
        try:
            published.subscribe(self._source.topic.encode())
            self._replay(context)  # what was published before anybody listened
            self.caught_up.set()
            while not self._over.is_set():
                ready = dict(either.poll(1e3 * POLL_SECONDS))
                if broken in ready:
                    return
                if published in ready:
                    self._came(published.recv_multipart(), context)
        finally:
            published.disable_monitor()
            published.close(linger=0)

    def _came(self, frames: list[bytes], context: Any) -> None:
        if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES:
            log.warning("%s sends what is no KV events", self._source.endpoint)
            return
        number = int.from_bytes(frames[-2], "big")
        if number <= self._newest:  # it has begun to count anew
            self._lost()
            self._next = 0
        self._newest = number
        if number > self._next:
            self._replay(context)
        if number >= self._next:
            self._read(number, frames[-1])

    def _read(self, number: int, payload: bytes) -> None:
        """Take a batch; those before it that were not taken are lost."""
        if number != self._next:
            self._lost()
        self._next = number + 1
        try:
            events = self._messages.read(payload)
        except Unreadable as error:
            log.warning("%s sends what is no KV events: %s", self._source.endpoint, error)
            self._lost()
            return
        self._take(events)

    def _replay(self, context: Any) -> None:
        """Take what the engine has of what was not taken.

        ZeroMQ drops of a long answer, its end too, what it has no room for: what is missing then is
        asked for once more, as long as that brings any.
        """
        if not self._source.replay_endpoint:
            return
        end = time.monotonic() + REPLAY_SECONDS_MAX
        begun = -1
        while begun < self._next and time.monotonic() < end and not self._over.is_set():
            begun = self._next
            if self._answered(context, end):
                return

    def _answered(self, context: Any, end: float) -> bool:
        """Ask for all from the next on, and take it up to what is missing; whether nothing was.

        On a socket of its own: the queue to it begins empty, so an answer's first batch is the
        first that the engine has, and those before it are lost.
        """
        whole = first = True
        until = time.monotonic() + REPLAY_SECONDS
        socket = self._socket(context, self._zmq.DEALER, self._source.replay_endpoint)
        try:
            socket.send_multipart([b"", self._next.to_bytes(_NUMBER_BYTES, "big")])
            while not self._over.is_set() and (left := min(until, end) - time.monotonic()) > 0:
                if not socket.poll(1e3 * min(left, POLL_SECONDS)):
                    continue
                frames = socket.recv_multipart()
                if len(frames) < 2 or len(frames[-2]) != _NUMBER_BYTES or frames[-2] == _END:
                    return whole
                number = int.from_bytes(frames[-2], "big")
                if number == self._next or (first and number > self._next):
                    self._read(number, frames[-1])
                elif number > self._next:
                    whole = False
                first, until = False, time.monotonic() + PAUSE_SECONDS
            return False
        finally:
            socket.close(linger=0)

    def _socket(self, context: Any, kind: Any, endpoint: str) -> Any:
        socket = context.socket(kind)
        socket.set(self._zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        socket.set(self._zmq.RCVHWM, BATCHES_WAITING_MAX)
        socket.set(self._zmq.LINGER, 0)
        socket.connect(endpoint)
        return socket


def _zmq() -> Any:
    try:
        import zmq
    except ImportError as error:
        text = f"KV events come over ZeroMQ, which is not installed ({error})"
        raise ConfigError(f"{text}: `pip install 'moonpool[events]'`") from error
    return zmq
