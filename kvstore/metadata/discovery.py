"""How a caller finds its node: at an address it was given, or through this host's metadata."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvstore.errors import Unavailable
from kvstore.metadata import open_metadata
from kvstore.metadata.records import NodeRecord


class Locator(Protocol):
    def find(self) -> str:
        """The node's gRPC address now; raises `Unavailable` if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class FixedAddress:
    """A node at a known HOST:PORT."""

    address: str

    def find(self) -> str:
        return self.address


@dataclass(frozen=True, slots=True)
class FromMetadata:
    """The node of this host, as its record in the metadata of `directory` says."""

    directory: Path

    def find(self) -> str:
        path = self.directory / "metadata.db"
        if not path.exists():
            raise Unavailable(f"no node has run in {self.directory}: start one with `moonpool up`")
        with ThreadPoolExecutor(1) as thread:  # the caller may stand in an event loop of its own
            records = thread.submit(asyncio.run, _nodes(path)).result()
        if not records:
            raise Unavailable(f"no node serves from {self.directory}: start one with `moonpool up`")
        return max(records, key=lambda record: record.epoch).address


async def _nodes(path: Path) -> list[NodeRecord]:
    metadata = open_metadata(os.fspath(path))
    try:
        entries, _ = await metadata.list(NodeRecord.prefix)
        return [NodeRecord.parse(entry) for entry in entries]
    finally:
        await metadata.close()
