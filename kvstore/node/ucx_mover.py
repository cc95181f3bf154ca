"""The process that moves a node's bytes over UCX: it maps the arena, and does as the node says.

UCX aborts on some of what a damaged or forged agent may say of itself, and hangs on to memory that
it moves. So it has a process of its own: what ends it costs the moves under way and nothing else,
and a move that cannot be called off ends it. It decides nothing, and ends with its node.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvstore.errors import ConfigError, KVStoreError, Unavailable
from kvstore.memory.arena import Arena
from kvstore.node.ucx_words import (
    ANSWER,
    PACKET_BYTES_MAX,
    REQUEST,
    RUN,
    STARTED,
    WORDS_BYTES_MAX,
    What,
)
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_agent import MoversAgent, Moving
from kvstore.transfer.ucx_memory import Registration

_MOVING_MAX = 64  # at once; more wait in the socket
_SPIN_SECONDS = 0.02  # a move is looked at without a pause, unless it stands still for so long
_PAUSE_SECONDS = 5e-5


@dataclass(frozen=True, slots=True)
class _Move:
    number: int
    agent: bytes
    moving: Moving
    ends_at: float


class Mover:
    """Serves one node until it hangs up."""

    def __init__(self, node: socket.socket, arena: Arena) -> None:
        self._node, self._agent = node, MoversAgent()
        self._arena = self._agent.register(arena.bytes[: arena.size])
        self._moves: list[_Move] = []
        self._stirred = 0.0

    def serve(self) -> None:
        self._answer(STARTED)
        while True:
            full = len(self._moves) >= _MOVING_MAX
            packet = None if full else self._asked()
            if packet == b"":
                return
            if packet:
                self._take(packet)
                self._stirred = time.monotonic()
            still = self._moves and not self._look()
            if still and time.monotonic() > self._stirred + _SPIN_SECONDS:
                time.sleep(_PAUSE_SECONDS)

    def _asked(self) -> bytes | None:
        """What the node asks for, empty once it has hung up; None where that would be waited for
        while something moves."""
        try:
            return self._node.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT if self._moves else 0)
        except BlockingIOError:
            return None

    def _take(self, packet: bytes) -> None:
        number, what, seconds, agent, device, kind = REQUEST.unpack_from(packet)
        rest = packet[REQUEST.size :]
        try:
            if what == What.LOAD:
                self._load(number, agent, rest)
                return
            if what == What.DROP:
                self._agent.drop(agent)
            else:
                theirs = Registration(device, Segment(kind))
                move = self._move(What(what), agent, theirs, rest)
                self._begin(_Move(number, agent, move, time.monotonic() + seconds))
                return
        except KVStoreError as error:
            self._answer(number, error)
        else:
            self._answer(number)

    def _load(self, number: int, agent: bytes, blob: bytes) -> None:
        try:
            self._agent.load(agent, blob)
        except Unavailable as error:
            self._answer(number, error)
            # It keeps what it took of the agent's words, and would hold later ones against them.
            raise SystemExit(f"{error}: starting anew") from error
        self._answer(number)

    def _move(self, what: What, agent: bytes, theirs: Registration, rest: bytes) -> Moving:
        runs = np.frombuffer(rest, dtype=RUN).reshape(-1, 3).copy()
        runs[:, 0] += self._arena.address
        return self._agent.begin(what.name, self._arena.registration, agent, theirs, runs)

    def _begin(self, move: _Move) -> None:
        try:
            done = move.moving.post()
        except Unavailable as error:
            self._failed(move, error)
            return
        if done:
            self._done(move)
        else:
            self._moves.append(move)

    def _look(self) -> bool:
        """See what has become of the moves; whether anything has."""
        left: list[_Move] = []
        late = set[bytes]()
        for move in self._moves:
            try:
                if move.moving.done():
                    self._done(move)
                elif time.monotonic() > move.ends_at:
                    late.add(move.agent)
                    raise Unavailable("a move took too long")
                else:
                    left.append(move)
            except Unavailable as error:
                self._failed(move, error)
        for agent in late:  # whoever holds one move up holds up others with it
            with suppress(Unavailable):  # the node may have dropped it before
                self._agent.drop(agent)
        changed = len(left) < len(self._moves)
        self._moves = left
        if changed:
            self._stirred = time.monotonic()
        return changed

    def _done(self, move: _Move) -> None:
        """Whoever waits for it is told first: more may depend on that than what is tidied up."""
        self._answer(move.number)
        self._release(move)

    def _failed(self, move: _Move, error: Unavailable) -> None:
        """Nothing of it moves any more once the node is answered."""
        self._release(move)
        self._answer(move.number, error)

    def _release(self, move: _Move) -> None:
        try:
            move.moving.end()
        except Unavailable as stuck:  # it may move still: only with this process does it end
            raise SystemExit(f"{stuck}: starting anew") from stuck

    def _answer(self, number: int, error: Exception | None = None) -> None:
        words = str(error or "").encode()[:WORDS_BYTES_MAX]
        self._node.send(ANSWER.pack(number, int(error is not None)) + words)


def main() -> None:
    descriptor, memory, size, hbm = map(int, sys.argv[1:])
    os.dup2(2, 1)  # what libraries print is no word of the node's
    with socket.socket(fileno=descriptor) as node:
        try:
            arena = Arena.map(memory, size, mmap.PROT_READ | mmap.PROT_WRITE, hbm)
            Mover(node, arena).serve()
        except ConfigError as error:
            node.send(ANSWER.pack(STARTED, 1) + str(error).encode()[:WORDS_BYTES_MAX])
        except (OSError, SystemExit) as error:
            print(f"the mover ends: {error}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(0)  # no library is asked whether it would like to go


if __name__ == "__main__":
    main()
