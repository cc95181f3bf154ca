"""A socket for calls at another host's data port: had in the caller's time, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from kvstore.client import call_sockets
from kvstore.client.call_sockets import at_data_port

SESSION, TOKEN = bytes(16), bytes(16)
STEP_SECONDS = 4.0


def shown_to_nobody(_: socket.socket) -> None:
    pass


def test_a_name_that_nobody_resolves_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def silent(*_: Any, **__: Any) -> Any:
        over.wait(20.0)
        raise socket.gaierror("nobody knows it")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    connect = at_data_port("node.example:1", SESSION, TOKEN)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        connect(0.1, shown_to_nobody)
    assert time.monotonic() - began < 10.0
    over.set()


class Slow:
    """A socket each of whose steps takes a while, by a clock of its own; and its TLS."""

    def __init__(self) -> None:
        self.now, self.seconds, self.steps, self.closed = 0.0, 0.0, list[str](), False

    def reached(self, where: tuple[str, int], seconds: float) -> Slow:
        self.seconds = seconds
        self._step("reached")
        return self

    def settimeout(self, seconds: float) -> None:
        self.seconds = seconds

    def setsockopt(self, *_: object) -> None:
        pass

    def wrap_socket(self, *_: object, **__: object) -> Slow:
        return self

    def do_handshake(self) -> None:
        self._step("handshake")

    def sendall(self, _: bytes) -> None:
        self._step("sent")

    def recv(self, _: int) -> bytes:
        self._step("received")
        return b""

    def close(self) -> None:
        self.closed = True

    def _step(self, name: str) -> None:
        self.now += min(STEP_SECONDS, self.seconds)
        if self.seconds < STEP_SECONDS:
            raise TimeoutError
        self.steps.append(name)


@pytest.mark.parametrize("whole_steps", range(1, 5))
def test_no_step_of_being_let_in_has_the_callers_time_anew(
    monkeypatch: pytest.MonkeyPatch, whole_steps: int
) -> None:
    made: Any = Slow()
    monkeypatch.setattr(call_sockets, "reached", made.reached)
    monkeypatch.setattr(call_sockets.time, "monotonic", lambda: made.now)
    seconds = STEP_SECONDS * whole_steps + 1.0
    with pytest.raises(TimeoutError):
        at_data_port("a:1", SESSION, TOKEN, lambda: made)(seconds, shown_to_nobody)
    assert made.closed and made.now == seconds
    assert made.steps == ["reached", "sent", "handshake", "sent"][:whole_steps]
