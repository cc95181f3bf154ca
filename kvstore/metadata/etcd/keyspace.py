"""Whose keys are whose: every key of a pool lies below `moonpool/CLUSTER/`. Pure.

What lies there and is no text was not put by us, and nobody sees it.
"""

from __future__ import annotations

from typing import Any

from kvstore.metadata.bounds import prefix_end
from kvstore.metadata.protocol import Change, Entry, Kind


class Keyspace:
    def __init__(self, cluster: str) -> None:
        self.root = f"moonpool/{cluster}/".encode()

    def inside(self, key: bytes) -> bytes:
        """The key or prefix as etcd has it."""
        return self.root + key

    def end(self, prefix: bytes) -> bytes:
        """The first key after all that start with the prefix, as etcd has it."""
        return prefix_end(self.inside(prefix))

    def entry(self, stored: Any) -> Entry | None:
        """Of an mvccpb.KeyValue; None for what is not ours."""
        try:
            key = bytes(stored.key).removeprefix(self.root).decode()
        except UnicodeDecodeError:
            return None
        return Entry(key, stored.value, stored.mod_revision, stored.lease)

    def change(self, event: Any) -> Change | None:
        """Of an mvccpb.Event; None for what is not ours."""
        entry = self.entry(event.kv)
        if entry is None:
            return None
        if event.type == event.DELETE:
            gone = Entry(entry.key, b"", entry.revision)
            return Change(Kind.DELETE, gone, entry.revision)
        return Change(Kind.PUT, entry, entry.revision)
