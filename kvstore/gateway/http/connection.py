"""One connection of HTTP, as uvicorn speaks it, with an end to how long it may stand still.

Uvicorn itself waits for as long as a caller likes to say what it asks, and to read what it is
answered; connections are bounded in number, so callers that stand still would keep others out. What
it refuses by itself it would refuse in words that OpenAI's clients do not read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvstore.errors import Unavailable
from kvstore.gateway.http.refusal import Refusal, refusal_of
from kvstore.limits import (
    SERVE_AHEAD_BYTES_MAX,
    SERVE_CONNECTIONS_MAX,
    SERVE_HEAD_BYTES_MAX,
    SERVE_HEAD_SECONDS,
    SERVE_STALL_SECONDS,
)

log = logging.getLogger(__name__)

_LINE_ENDS = b"\r\n"
_QUOTED = re.compile(r":? (bytearray\()?b['\"]")
_PLAIN = "HTTP/1.1 is spoken here, without TLS: call http://HOST:PORT"


class _Requests(h11.Connection):
    """Of one caller. Lines' ends before a request are none of it: some say one behind a body."""

    wrong = h11.RemoteProtocolError("")  # what it said last, once that is no HTTP

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            waits, _ = self.trailing_data
            self._receive_buffer.maybe_extract_at_most(len(waits) - len(waits.lstrip(_LINE_ENDS)))
        try:
            return super().next_event()
        except h11.RemoteProtocolError as wrong:
            self.wrong = wrong
            raise


def _told(wrong: h11.RemoteProtocolError) -> str:
    """In words for its caller and for the log, so without what it said: that may be a key."""
    words = _QUOTED.split(str(wrong), 1)[0]
    text = f"this is no HTTP/1.1: {words}"
    return f"{text}; {_PLAIN}" if "request line" in words else text


class Connection(H11Protocol):
    """Hangs up on a caller whose request's head does not come, or who reads no byte, for too long.
    Between two requests uvicorn's own, longer time counts; in a body, that of whoever reads it. And
    on one who says too much behind a request whose answer is on its way."""

    _head: asyncio.TimerHandle | None = None  # until it is there
    _stall: asyncio.TimerHandle | None = None  # until more was read
    _unread = 0  # bytes, when that was looked at last

    def __init__(self, *of: Any, **more: Any) -> None:
        super().__init__(*of, **more)
        self.conn: _Requests = _Requests(h11.SERVER, SERVE_HEAD_BYTES_MAX)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Else what it holds by itself would be waited for without end. Who reads is no slower for
        # it: there is something to wait for only where the kernel takes no more.
        transport.set_write_buffer_limits(0)
        self._await_head()
        if (most := SERVE_CONNECTIONS_MAX) < len(self.connections):
            refused = refusal_of(Unavailable(f"{most} connections are open, all that may be"))
            self.app = refused.response
            self.app.headers["connection"] = "close"

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._says_nothing(data):
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_head()
            if self.conn.their_state is h11.DONE:
                self._read_on()
        elif self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._await_head()  # of which this is a part, or of a body that nobody reads any more
        else:  # that body is over, and uvicorn took it for the beginning of a request
            self._end_head()
            if not self.transport.is_closing():
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and self.conn.trailing_data[0]:
            self._await_head()  # of which a part came behind the request that is answered now

    def send_400_response(self, msg: str) -> None:
        text = _told(self.conn.wrong)
        log.warning("%s:%s: %s", *(self.client or ("a caller", "")), text)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else it has an answer, or some
            status = self.conn.wrong.error_status_hint
            said = Refusal(status, "invalid_request_error", text).response
            said.headers["connection"] = "close"
            head = h11.Response(status_code=said.status_code, headers=said.raw_headers)
            for event in (head, h11.Data(data=bytes(said.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(SERVE_STALL_SECONDS, self._look)

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def _says_nothing(self, data: bytes) -> bool:
        """Behind the last request that it may say here, or by lines' ends where a request could
        begin: no answer is cut off for that, and nobody is waited for the longer."""
        state = self.conn.their_state
        if state in (h11.MUST_CLOSE, h11.CLOSED):
            return True
        between = state in (h11.IDLE, h11.DONE) and not self.conn.trailing_data[0]
        return between and not data.strip(_LINE_ENDS)

    def _read_on(self) -> None:
        """What is said behind a request waits until that has its answer, and uvicorn would read no
        more until then: nor hear that its caller leaves."""
        waits, _ = self.conn.trailing_data
        if len(waits) > SERVE_AHEAD_BYTES_MAX:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _await_head(self) -> None:
        if self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(SERVE_HEAD_SECONDS, self.transport.abort)

    def _end_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _look(self) -> None:
        """Nothing is written meanwhile, so what is left here tells how much was read."""
        unread = self.transport.get_write_buffer_size()
        if unread >= self._unread:
            self.transport.abort()
            return
        self._unread = unread
        self._stall = self.loop.call_later(SERVE_STALL_SECONDS, self._look)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
