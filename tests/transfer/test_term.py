"""A call that nobody wants any more ends at once, in whatever thread it stands."""

from __future__ import annotations

import socket
import threading

import pytest

from kvstore.errors import Unavailable
from kvstore.transfer.stream import DataStream
from kvstore.transfer.term import Term

LONG_SECONDS = 60.0


def test_a_call_that_waits_for_bytes_ends_when_its_term_does() -> None:
    ours, theirs = socket.socketpair()
    stream, term, failures = DataStream(ours, LONG_SECONDS), Term(), list[Exception]()
    inside = threading.Event()

    def receive() -> None:
        try:
            with term.of(stream):
                inside.set()
                stream.receive(10)
        except Unavailable as error:
            failures.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    assert inside.wait(20)
    theirs.send(b"some")
    term.end()
    thread.join(20)
    assert not thread.is_alive() and len(failures) == 1
    stream.close()
    theirs.close()


def test_a_term_that_has_ended_begins_nothing_and_leaves_other_calls_alone() -> None:
    ours, theirs = socket.socketpair()
    stream, over = DataStream(ours, LONG_SECONDS), Term()
    with over.of(stream):
        pass
    over.end()
    with pytest.raises(Unavailable), over.of(stream):
        raise AssertionError("nobody wants it")
    with Term().of(stream):
        theirs.send(b"0123456789")
        assert stream.receive(10) == b"0123456789", "it is whole: the call was over before"
    stream.close()
    theirs.close()


def test_a_call_that_came_to_its_end_as_its_term_did_is_not_well() -> None:
    """All has come, and its connection has been hung up."""
    ours, theirs = socket.socketpair()
    stream, term = DataStream(ours, LONG_SECONDS), Term()
    theirs.send(b"0123456789")
    with pytest.raises(Unavailable, match="nobody wants it"), term.of(stream):
        assert stream.receive(10) == b"0123456789"
        term.end()
    stream.close()
    theirs.close()
