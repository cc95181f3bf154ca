"""A caller of a node's data port that says whatever it likes, byte for byte."""

from __future__ import annotations

import errno
import socket
from typing import Self

from kvstore.layout import Fragment
from kvstore.transfer.frames import CALL, HELLO, HELLO_MAGIC, LOOKED, WELCOME, Op, Status
from tests.nodes import LAYOUT, Caller

SECONDS = 20.0
WHOLE = LAYOUT.whole


class Raw:
    """One data connection of a session, or of nobody's."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SECONDS)
        self.number = 0  # by which the node knows it, once it has been welcomed

    @classmethod
    def of(cls, caller: Caller) -> Self:
        made = cls(caller.opened.data_address)
        assert made.greet(caller.session, caller.opened.data_token) == 0
        return made

    def greet(self, session: bytes, token: bytes, magic: bytes = HELLO_MAGIC) -> int:
        """What the node answers to a greeting."""
        self.socket.sendall(HELLO.pack(magic, session, token))
        _, answer, self.number = WELCOME.unpack(self.receive(WELCOME.size))
        return int(answer)

    def call(
        self,
        op: int,
        handles: list[bytes],
        part: Fragment = WHOLE,
        *,
        handle_bytes: int | None = None,
        count: int | None = None,
        size: int = 0,
    ) -> None:
        """A call as it should be, save what is said otherwise."""
        each = len(handles[0]) if handles and handle_bytes is None else handle_bytes or 0
        fragment = (part.layer_first, part.layers, part.head_first, part.heads)
        number = len(handles) if count is None else count
        call = CALL.pack(op, each, number, *fragment, 0, size)
        self.socket.sendall(call + b"".join(handles))

    def statuses(self, op: int, handles: list[bytes], part: Fragment = WHOLE) -> list[int]:
        """What may be moved; of a WRITE of which nothing may, that nothing has come too."""
        self.call(op, handles, part)
        said = list(self.receive(len(handles)))
        if op == Op.WRITE and Status.MOVED not in said:
            assert list(self.receive(len(handles))) == said
        return said

    def look(self, handles: list[bytes], part: Fragment = WHOLE) -> list[tuple[int, int]]:
        self.call(Op.LOOK, handles, part)
        return list(LOOKED.iter_unpack(self.receive(LOOKED.size * len(handles))))

    def receive(self, count: int) -> bytes:
        """So many bytes; fewer mean that the node has hung up."""
        got = b""
        while len(got) < count:
            try:
                more = self.socket.recv(count - len(got))
            except ConnectionResetError:
                break
            if not more:
                break
            got += more
        assert len(got) == count, f"{len(got)} of {count} bytes came"
        return got

    def blurt(self, data: bytes) -> None:
        """Say something and hang up; return once the node has, too."""
        try:
            self.socket.sendall(data)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(65_536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        except OSError as error:
            assert error.errno == errno.ENOTCONN, error

    def ended(self, seconds: float = SECONDS) -> bool:
        """Whether the node hangs up, having said nothing more."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
