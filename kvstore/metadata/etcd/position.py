"""How far a watch has come, so that it can go on over a broken stream: nothing lost, nothing twice.

Pure. etcd sends changes in the order of their revisions, and may cut a reply anywhere into
fragments; a revision is complete when a later one begins or the reply's last fragment is there.
Several keys may share a revision (those of a lease that ended), each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_EVERY_WATCH = -1  # the watch id of an answer about the whole stream


class Position:
    def __init__(self, revision: int) -> None:
        self.revision = revision  # every change up to here was given
        self._at = revision  # of the last that was given; beyond `revision` if some may be missing
        self._given: set[bytes] = set()  # keys of those at `_at`

    def take(self, response: Any) -> Iterator[Any]:
        """The events of a WatchResponse that were not given before, in order."""
        if response.watch_id == _EVERY_WATCH:
            return  # it says that the stream lives, and (before etcd 3.4.25) nothing more
        yield from self._new(response.events)
        if not response.fragment:
            self.revision = max(self.revision, self._at)
        if not (response.events or response.created or response.canceled):
            # Told unasked that the watch is up to date: what came since does not match its prefix.
            self.revision = self._at = max(self.revision, response.header.revision)

    def _new(self, events: Iterable[Any]) -> Iterator[Any]:
        for event in events:
            at, key = event.kv.mod_revision, event.kv.key
            if at <= self.revision or (at == self._at and key in self._given):
                continue
            if at > self._at:
                self.revision, self._at, self._given = at - 1, at, set()
            self._given.add(key)
            yield event
