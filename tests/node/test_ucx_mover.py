"""What the mover tells its node: of each move once, and only when nothing of it moves any more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from kvstore.errors import Unavailable
from kvstore.node.ucx_mover import Mover, _Move
from kvstore.node.ucx_words import ANSWER, WORDS_BYTES_MAX

THEIRS = b"an agent's name."


class Stuck:
    """A move that is never done. To call it off twice would be to call off another's."""

    def __init__(self) -> None:
        self.ended = 0

    def done(self) -> bool:
        return False

    def end(self) -> None:
        self.ended += 1


class Names:
    """Of an agent only that it knows others, each until it is told to drop it."""

    def __init__(self, *known: bytes) -> None:
        self.known = set(known)

    def drop(self, name: bytes) -> None:
        if name not in self.known:
            raise Unavailable("an agent cannot be dropped: it is not known")
        self.known.remove(name)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    node, mover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with node, mover:
        node.settimeout(20.0)
        yield node, mover


def test_moves_of_one_agent_that_take_too_long_together_are_each_answered_once(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    node, theirs = ends
    mover, moves = cast(Any, Mover.__new__(Mover)), [Stuck(), Stuck(), Stuck()]
    mover._node, mover._agent, mover._stirred = theirs, Names(THEIRS), 0.0
    mover._moves = [_Move(i, THEIRS, cast(Any, one), 0.0) for i, one in enumerate(moves)]
    assert mover._look(), "their time is over"
    theirs.close()
    answered = []
    while packet := node.recv(ANSWER.size + WORDS_BYTES_MAX):
        answered.append(ANSWER.unpack_from(packet))
    assert answered == [(0, 1), (1, 1), (2, 1)]
    assert [one.ended for one in moves] == [1, 1, 1]
    assert not mover._agent.known and not mover._moves
