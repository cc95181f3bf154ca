"""What one data connection asks of UCX: regions that it has attached, and moves to and from them.

A region is what the caller said it is; that the memory is the caller's own nobody here can tell.
So a caller whom a node serves over ucx is trusted with the memory of the node's host
(deploy/guide/transports.md says to whom that leads).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kvstore.errors import Unavailable
from kvstore.limits import UCX_BLOB_BYTES_MAX, UCX_REGIONS_MAX, MiB
from kvstore.memory.arena import Arena
from kvstore.node.moves import Held
from kvstore.node.sessions import Session
from kvstore.node.ucx_moves import AHEAD, Attached, UcxMoves
from kvstore.transfer.frames import PLACE, REGION, Attach, Segment, Status
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_agent import Run, cut
from kvstore.transfer.ucx_memory import Registration

_PLACE_ALIGN = 8
_ADDRESSES = 1 << 64  # that there are
# Of what is moved at a time: less, and waking whoever waits costs more than what they do meanwhile.
# Towards the end less and less, since nothing is left to do while the last of it is proven.
_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 2 * MiB, 16 * MiB
_FIRST_BLOCKS = 6  # of a call, that move while the node is asked about the others

assert _FIRST_BLOCKS < AHEAD, "else some would have landed before the others were asked about"


@dataclass(frozen=True, slots=True)
class _Region:
    address: int
    size: int
    registration: Registration
    agent: Attached


class UcxCalls:
    """One connection's. What it has attached is let go of at the end of the block."""

    def __init__(
        self, moves: UcxMoves | None, stream: DataStream, session: Session, arena: Arena
    ) -> None:
        self._moves, self._stream, self._session = moves, stream, session
        self._arena_bytes = arena.size
        self._regions: list[_Region] = []
        self._attached = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attached.close()

    def attach(self, size: int) -> None:
        """Take a region and what its agent says; answer whether it can be reached."""
        if size > UCX_BLOB_BYTES_MAX or len(self._regions) == UCX_REGIONS_MAX:
            raise Unavailable(f"{size} bytes of an agent for region {len(self._regions)}")
        said = self._stream.receive(REGION.size)
        agent, address, room, device, kind = REGION.unpack(said)
        try:
            registration = Registration(device, Segment(kind))
        except ValueError as error:
            raise Unavailable(f"a region was not attached: {error}") from error
        if address + room > _ADDRESSES:
            raise Unavailable(f"no memory has {room} bytes at {address}")
        blob = self._stream.receive(size)
        if self._moves is None:
            self._stream.send(bytes([Attach.NOT_SERVED]))
            return
        if not self._session.names_memory:
            self._stream.send(bytes([Attach.NOT_TRUSTED]))
            return
        try:
            known = self._attached.enter_context(self._moves.knowing(agent, blob))
        except Unavailable as error:
            self._stream.send(bytes([Attach.NOT_REACHED]))
            raise Unavailable(f"a region was not attached: {error}") from error
        self._regions.append(_Region(address, room, registration, known))
        self._stream.send(bytes([Attach.KNOWN]))

    def places(self, count: int, region: int) -> list[int]:
        """Where in a region the caller wants, or has, the payloads of a call's blocks."""
        self._region(region)  # where there is none, nothing is waited for
        said = self._stream.receive(PLACE.size * count)
        return [place for (place,) in PLACE.iter_unpack(said)]

    def steps(self, count: int) -> list[slice]:
        """A call's blocks as the node is asked about them: the first few, then all the others."""
        first = min(count, _FIRST_BLOCKS)
        return [slice(0, first), slice(first, count)]

    def fitting(
        self, held: Sequence[Held | Status], places: Sequence[int], region: int
    ) -> list[Held | Status]:
        """Those of the blocks whose strips all have a place in the region."""
        room = self._region(region).size
        return [
            one if not isinstance(one, Held) or _fits(one, place, room) else Status.OUT_OF_RANGE
            for one, place in zip(held, places, strict=True)
        ]

    def write(
        self, steps: Iterable[Sequence[Held | Status]], places: Sequence[int], region: int
    ) -> Generator[list[Held], None, None]:
        """Move the strips to their places; yields blocks whose strips are there, a few at a time.

        What all steps are is known before the first yield. Close it before the blocks are let go:
        then nothing of them moves any more.
        """
        found, pieces = self._region(region), deque[list[Held]]()

        def runs() -> Iterator[Iterator[Run]]:
            first = 0
            for held in steps:
                end = first + len(held)
                for piece in pieces_of(held, places[first:end], len(places) - end):
                    pieces.append([one for one, _ in piece])
                    yield self._runs(piece, found)
                first = end

        moving = found.agent.write(found.registration, runs())
        with self._stream.kept(), closing(moving) as moved:
            for _ in moved:
                yield pieces.popleft()

    def read(self, held: Sequence[Held | Status], places: Sequence[int], region: int) -> None:
        """The other way, all of it."""
        found = self._region(region)
        runs = (self._runs(piece, found) for piece in pieces_of(held, places, 0))
        with self._stream.kept(), closing(found.agent.read(found.registration, runs)) as moved:
            for _ in moved:
                pass

    def _region(self, number: int) -> _Region:
        if number >= len(self._regions):
            raise Unavailable(f"region {number} of {len(self._regions)} was asked for")
        return self._regions[number]

    def _runs(self, piece: list[tuple[Held, int]], region: _Region) -> Iterator[Run]:
        for one, place in piece:
            payload = one.slot.offset + one.layout.head_bytes
            for start, size in one.layout.runs(one.slot.tokens, one.fragment):
                for here, there, count in cut(payload + start, place + start, size):
                    assert here + count <= self._arena_bytes, "slots lie in the arena"
                    yield here, region.address + there, count


def bytes_of(held: Sequence[Held | Status]) -> int:
    """Of all strips that are moved."""
    return sum(_size(one) for one in held if isinstance(one, Held))


def pieces_of(
    held: Sequence[Held | Status], places: Sequence[int], behind: int
) -> Iterator[list[tuple[Held, int]]]:
    """Blocks that are moved, each with its place: so many at a time that one end of the way is
    busy with some while the other end is with the next. So many more of the call are `behind`."""
    piece: list[tuple[Held, int]] = []
    size, left = 0, bytes_of(held)
    for one, place in zip(held, places, strict=True):
        if isinstance(one, Held):
            piece.append((one, place))
            size += _size(one)
            wanted = left if behind else max(_PIECE_BYTES_MIN, left // 2)
            if size >= min(_PIECE_BYTES_MAX, wanted) and left - size >= _PIECE_BYTES_MIN:
                yield piece
                left -= size
                piece, size = [], 0
    if piece:
        yield piece


def _fits(one: Held, place: int, room: int) -> bool:
    """The last strip ends last."""
    layout, part = one.layout, one.fragment
    last = (part.layer_first + part.layers - 1) * layout.kv_heads + part.head_first + part.heads - 1
    end = last * layout.strip_stride + layout.strip_bytes(one.slot.tokens)
    return place % _PLACE_ALIGN == 0 and place + end <= room


def _size(one: Held) -> int:
    return one.fragment.layers * one.fragment.heads * one.layout.strip_bytes(one.slot.tokens)
