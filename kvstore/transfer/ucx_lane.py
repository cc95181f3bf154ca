"""A data connection whose strips go over UCX: the node itself puts them into this process's memory,
and takes them from it.

Calls and small answers go over the connection; memory is registered with this process's agent, and
the node told of it once for each connection. What lands is proven here as everywhere. Nothing of
the node's own memory is ever told to a caller. Nothing here is compiled, so a storage node can
fetch from another with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from kvstore.errors import ConfigError, Denied, KVStoreError, Unavailable
from kvstore.layout import Fragment
from kvstore.limits import UCX_REGIONS_MAX, KiB, MiB
from kvstore.transfer import calls
from kvstore.transfer.calls import Statuses
from kvstore.transfer.frames import CALL, PLACE, REGION, Attach, Op, Status
from kvstore.transfer.landing import Landing, rows_of
from kvstore.transfer.lanes import Lane
from kvstore.transfer.protocol import Ints
from kvstore.transfer.stream import DataStream
from kvstore.transfer.ucx_agent import shared_agent
from kvstore.transfer.ucx_memory import Region, Shown, place
from kvstore.transfer.ucx_pieces import Pieces

_FIRST_BYTES = 64 * KiB  # that a connection has from the start, so that it is known to work
UCX_STREAMS = 1  # of a caller: one mover moves for all of them, and more would only take turns
_GROWTH = 4  # of what blocks pass through: a node hears of few regions
_PARTING_MAX = 16  # connections whose memory waits for their node to be done with it


class UcxLane(Lane):
    """One connection, and what of this process's memory its node knows.

    Where a call fails, the node may be moving its bytes still. The memory is let go of when the
    node has hung up, which it does when it moves nothing more.
    """

    staging_bytes = 32 * MiB  # nothing of it is waited for while the rest is moved

    def __init__(self, stream: DataStream) -> None:
        super().__init__(stream)
        self._agent = shared_agent()
        self._regions: list[Region | None] = []  # by the numbers that the node knows them by
        self._moving = False  # bytes of a call
        self._give: Callable[[], None] | None = None  # the piece that a call has, back
        if len(_parting) >= _PARTING_MAX:
            raise Unavailable(
                f"transport ucx: of {_PARTING_MAX} calls that were given up bytes may still come"
            )
        try:
            self.show(self.room(_FIRST_BYTES))
        except BaseException:
            self.close()
            raise

    def read(
        self, handles: Sequence[bytes], into: Landing, rows: Ints, fragment: Fragment
    ) -> Iterator[Ints]:
        for some in calls.few(np.arange(len(rows)), into.places):
            self._call(Op.PULL, [handles[i] for i in some], into, rows[some], fragment)
            came = some[calls.moved(calls.receive_statuses(self.stream, len(some)))]
            size, most = into.layout.root_bytes, into.together(fragment)
            for landed in self.stream.receive_rows(size, len(came), most):
                runs = np.frombuffer(landed, dtype=np.uint8).reshape(-1, size)
                few, came = came[: len(runs)], came[len(runs) :]
                into.runs[rows[few]] = runs
                yield few
            self._moving = False

    def write(
        self,
        handles: Sequence[bytes],
        source: Landing,
        rows: Ints,
        fragment: Fragment,
    ) -> Statuses:
        answers, where = np.zeros(len(rows), dtype=np.uint8), rows_of(source.layout, fragment)
        for some in calls.few(np.arange(len(rows)), source.places):
            # Before the node is asked, which hangs up on who keeps it waiting: a GPU may be busy.
            source.ready(rows[some], fragment)
            self._call(Op.PUSH, [handles[i] for i in some], source, rows[some], fragment)
            statuses = calls.receive_statuses(self.stream, len(some))
            moved = some[calls.moved(statuses)]
            self.stream.send(source.tables[np.ix_(rows[moved], where)].tobytes())
            arrived = calls.receive_statuses(self.stream, len(some))
            answers[some] = np.where(statuses == Status.MOVED, arrived, statuses)
            self._moving = False
        return answers

    @contextmanager
    def piece(self, pieces: Pieces) -> Iterator[int]:
        """Where a piece begins that a call has to itself. Where the call fails nobody has it before
        the node has hung up. Raises `PiecesTaken`."""
        at = pieces.take()
        self._give = partial(pieces.give, at)
        yield at
        self._give_back()

    def show(self, memory: Shown) -> int:
        """The number by which the node knows this memory; it is told now if it does not yet."""
        where = place(memory)
        for number, one in enumerate(self._regions):
            if one is not None and (one.address, one.size) == where:
                return number
        if len(self._regions) == UCX_REGIONS_MAX:
            raise Unavailable(f"{UCX_REGIONS_MAX} pieces of memory are attached: use one large one")
        region = self._agent.register(memory)
        self._regions.append(region)
        call = CALL.pack(Op.ATTACH, 0, 0, 0, 0, 0, 0, 0, len(region.blob))
        about = REGION.pack(self._agent.name, region.address, region.size, *region.registration)
        self.stream.send(call, about, region.blob)
        if refusal := _REFUSALS.get(self.stream.receive(1)[0]):
            kind, why = refusal
            raise kind(why)
        return len(self._regions) - 1

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        if len(self.memory) >= size:
            return self.memory
        for number, one in enumerate(self._regions):
            if one is not None and one.address == self.memory.ctypes.data:
                self._regions[number] = None
                self._agent.forget(one)
        return super().room(max(size, _GROWTH * len(self.memory), _FIRST_BYTES))

    def end(self) -> None:
        self.stream.end_sending()

    def close(self) -> None:
        if not self._moving:
            self._let_go()
            return
        _parting.add(self)
        try:
            threading.Thread(target=self._part, name="moonpool-ucx-parting", daemon=True).start()
        except RuntimeError:  # the system has none left: its memory is kept, and nobody else's
            self.stream.end_sending()

    def _part(self) -> None:
        self.stream.wait_for_end()
        self._let_go()
        _parting.discard(self)

    def _let_go(self) -> None:
        self.stream.close()
        regions, self._regions = self._regions, []
        for one in regions:
            if one is not None:
                self._agent.forget(one)
        self._give_back()

    def _give_back(self) -> None:
        give, self._give = self._give, None
        if give is not None:
            give()

    def _call(
        self, op: Op, handles: Sequence[bytes], where: Landing, rows: Ints, fragment: Fragment
    ) -> None:
        part = (fragment.layer_first, fragment.layers, fragment.head_first, fragment.heads)
        region = self.show(where.shown)
        head = CALL.pack(op, len(handles[0]), len(handles), *part, 0, region)
        places = where.offsets[rows].astype("<u8").tobytes()
        assert len(places) == PLACE.size * len(handles), "a place for each block"
        self._moving = True
        self.stream.send(head, b"".join(handles), places)


_parting: set[UcxLane] = set()

_REFUSALS: dict[int, tuple[type[KVStoreError], str]] = {
    Attach.NOT_SERVED: (
        ConfigError,
        "transport ucx: this node does not offer it: start it with --transport tcp,ucx, or use "
        "another transport",
    ),
    Attach.NOT_TRUSTED: (
        Denied,
        "transport ucx: it is for nodes, and callers of a host that serves without TLS: whoever "
        "uses it is believed about where memory lies. Use transport tcp",
    ),
    Attach.NOT_REACHED: (
        Unavailable,
        "transport ucx: the node's agent and this one find no way to each other: see that "
        "UCX_TLS and UCX_NET_DEVICES allow both sides the same",
    ),
}
