"""Says which requests are sent nowhere any more, to the conductor that planned each: until it hears
that, or 10 s, they count there as load. It is said beside whoever gives up, who waits for nothing.

Nothing depends on it: what finds no place here, and what a conductor does not take, is dropped.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

from kvstore.errors import KVStoreError, Unavailable
from kvstore.limits import REPORT_REQUESTS_MAX
from kvstore.rpc.threads import begin_thread
from kvstore.wire.v1 import conductor_pb2 as pb

T = TypeVar("T")
_Space: TypeAlias = tuple[bytes, int]  # namespace and group

PLANNED_KEPT = 16_384  # requests of which it is known who planned them: some 300 bytes each
UNSAID_MAX = 4_096  # that wait to be said
assert UNSAID_MAX <= REPORT_REQUESTS_MAX, "all of one conductor's go in one message"


class GivenUp(Generic[T]):
    """To conductors, each a `T`. Safe to use from several threads."""

    def __init__(self, say: Callable[[T, pb.GiveUpRequest], object]) -> None:
        """`say` may take its time, and raise."""
        self._say = say
        self._lock = threading.Lock()
        self._by: OrderedDict[str, T] = OrderedDict()  # who planned it; the last comes last
        self._unsaid: dict[tuple[T, _Space], list[str]] = {}
        self._count = 0
        self._saying = False

    def planned(self, request: str, by: T) -> None:
        """Or it may be."""
        with self._lock:
            self._by[request] = by
            self._by.move_to_end(request)
            if len(self._by) > PLANNED_KEPT:
                self._by.popitem(last=False)

    def add(self, space: _Space, request: str) -> None:
        """One that was not planned is nobody's to be told of."""
        with self._lock:
            by = self._by.pop(request, None)
            if by is None or self._count == UNSAID_MAX:
                return
            self._unsaid.setdefault((by, space), []).append(request)
            self._count += 1
            if self._saying:
                return
            self._saying = True
        try:
            begin_thread(self._say_all, "given up", "the conductors")
        except Unavailable:
            with self._lock:
                self._saying = False  # the next one begins it, and says this as well

    def _say_all(self) -> None:
        while (found := self._next()) is not None:
            with suppress(KVStoreError):
                self._say(*found)

    def _next(self) -> tuple[T, pb.GiveUpRequest] | None:
        with self._lock:
            if not self._unsaid:
                self._saying = False
                return None
            by, (namespace, group) = first = next(iter(self._unsaid))
            ids = self._unsaid.pop(first)
            self._count -= len(ids)
        return by, pb.GiveUpRequest(namespace=namespace, group=group, request_ids=ids)
