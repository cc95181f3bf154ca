"""An engine that only publishes KV events, and may lose some on the way."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from tests.nodes import eventually

NUMBER_BYTES = 8
END = -1  # the number that ends an answer


class Publisher:
    """Binds where it is told to, else at ports that are free. `named` is whether what is asked for
    again comes with its topic, as in newer engines."""

    def __init__(self, endpoint: str = "", replay: str = "", named: bool = True) -> None:
        self._context, self._named = zmq.Context(), named
        self._pub, self._router = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
        self.endpoint, self.replay = _bound(self._pub, endpoint), _bound(self._router, replay)
        self.kept: dict[int, bytes] = {}
        self.number = 0
        self.asked: list[int] = []  # from which number on batches were asked for again
        self.no_room: set[int] = set()  # numbers that ZeroMQ drops of an answer, once each
        self.pause_seconds = 0.0  # between what is sent again

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | TracebackType | BaseException | None) -> None:
        self.close()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def hang_up(self) -> None:
        """On whoever listens, who may connect anew."""
        self._pub.close(linger=0)
        self._pub = self._context.socket(zmq.XPUB)

        def free() -> bool:  # the socket before is closed by a thread of ZeroMQ's
            try:
                _bound(self._pub, self.endpoint)
            except zmq.ZMQError:
                return False
            return True

        eventually(free)

    def wait_heard(self) -> None:
        """Until somebody listens: nothing that is published before reaches anybody."""
        assert self._pub.poll(10_000) and self._pub.recv() == b"\x01"

    def publish(self, *events: Any, lost: bool = False) -> None:
        self.send(msgspec.msgpack.encode([time.time(), list(events), 0]), lost=lost)

    def send(self, payload: bytes, *, lost: bool = False) -> None:
        number = self.number.to_bytes(NUMBER_BYTES, "big")
        self.kept[self.number] = payload
        self.number += 1
        if not lost:
            self._pub.send_multipart([b"", number, payload])

    def answer(self, seconds: float = 0.0) -> None:
        """Send again what was asked for, if anybody asks in this time."""
        topic = [b""] if self._named else []
        while self._router.poll(1e3 * seconds):
            who, _, first = self._router.recv_multipart()
            self.asked.append(int.from_bytes(first, "big"))
            again = [one for one in self.kept.items() if one[0] >= self.asked[-1]]
            for number, payload in [*again, (END, b"")]:
                if number in self.no_room:
                    self.no_room.remove(number)
                    continue
                name = number.to_bytes(NUMBER_BYTES, "big", signed=True)
                self._router.send_multipart([who, b"", *topic, name, payload])
                time.sleep(self.pause_seconds)
            seconds = 0.0


def _bound(socket: Any, endpoint: str) -> str:
    socket.bind(endpoint or "tcp://127.0.0.1:*")
    return str(socket.get(zmq.LAST_ENDPOINT).decode())
