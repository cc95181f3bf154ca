"""Calls of a process that runs for longer than its token or its certificate: once these were
renewed where they are named, a call that was refused is made again with what is named now.

Calls of other threads that are under way meanwhile end in peace: the channel before is closed when
none of them can be left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from kvstore.config import Credentials
from kvstore.errors import ConfigError, Unauthenticated, Unavailable
from kvstore.rpc.channel import open_channel
from kvstore.rpc.status import typed_errors
from kvstore.rpc.tls import Stamp, stamp

T = TypeVar("T")
Stub: TypeAlias = Any  # grpc has no types
Shown: TypeAlias = tuple[Credentials, Stamp]

LEFT_SECONDS = 60.0  # no call lasts for so long


class LastingStub:
    """Of a service at HOST:PORT. It shows `credentials`, whose certificate is read anew as well, or
    what the environment names. Safe to use from several threads."""

    def __init__(
        self,
        address: str,
        kind: Callable[[Any], Stub],
        credentials: Credentials | None = None,
    ) -> None:
        self.address, self._kind, self._credentials = address, kind, credentials
        self._lock = threading.Lock()
        self._shown = self._to_show()
        self._channel = open_channel(address, self._shown[0])
        self._stub = kind(self._channel)
        self._before: list[tuple[float, Any]] = []  # channels, and until when each was used

    def ask(self, call: Callable[[Stub], T]) -> T:
        """Make the call; its errors come out typed."""
        stub = self._stub
        try:
            with typed_errors(self.address):
                return call(stub)
        except (Unauthenticated, Unavailable):
            if not self.renewed(stub):
                raise
        with typed_errors(self.address):
            return call(self._stub)

    def close(self) -> None:
        with self._lock:
            for _, channel in self._before:
                channel.close()
            self._channel.close()

    @property
    def now(self) -> Stub:
        """For calls that begin now."""
        return self._stub

    def renewed(self, refused: Stub) -> bool:
        """Whether there is another to try than the one by which a call failed."""
        with self._lock:
            if self._stub is not refused:
                return True
            try:
                shown = self._to_show()
                if shown == self._shown:
                    return False
                channel = open_channel(self.address, shown[0])
            except ConfigError:  # they are being written
                return False
            now = time.monotonic()
            for until, one in self._before:
                if until <= now - LEFT_SECONDS:
                    one.close()
            recent = [one for one in self._before if one[0] > now - LEFT_SECONDS]
            self._before = [*recent, (now, self._channel)]
            self._channel, self._stub, self._shown = channel, self._kind(channel), shown
            return True

    def _to_show(self) -> Shown:
        found = Credentials.of_environment() if self._credentials is None else self._credentials
        return found, () if found.tls is None else stamp(found.tls)
