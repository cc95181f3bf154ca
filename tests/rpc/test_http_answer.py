from __future__ import annotations

import pytest

from kvstore.rpc.http_answer import answer_of
from tests.rpc.drops import saying


def test_an_answer_is_its_status_and_what_it_says() -> None:
    with saying(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes and no") as calling:
        assert answer_of(calling, "/", 10.0, 3) == (200, b"yes")
    with saying(b"HTTP/1.0 200 OK\r\n\r\nno end is said") as calling:
        assert answer_of(calling, "/", 10.0, 100) == (200, b"no end is said")


def test_of_too_long_an_answer_one_byte_too_many_is_taken() -> None:
    with saying(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1_000) as calling:
        assert answer_of(calling, "/", 10.0, 10) == (200, b"x" * 11)


def test_what_a_server_that_refuses_says_beside_is_not_waited_for() -> None:
    with saying(b"HTTP/1.0 503 No\r\n\r\n", b"x", 20) as calling:
        assert answer_of(calling, "/", 10.0, 100) == (503, b"")


@pytest.mark.parametrize(
    ("begin", "drop"),
    [
        (b"HTTP/1.0 200 ", b"O"),
        (b"HTTP/1.0 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.0 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x"),
    ],
)
def test_whatever_comes_by_drops_is_given_up(begin: bytes, drop: bytes) -> None:
    with saying(begin, drop, 40) as calling, pytest.raises(TimeoutError):
        answer_of(calling, "/", 0.3, 1_000)
