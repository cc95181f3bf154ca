"""How a caller finds its node: by an address, or in the directory of this host's node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvstore.errors import Unavailable
from kvstore.rpc.address_file import address_in


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
class InDirectory:
    """The node of this host that runs in `directory`, wherever the pool's metadata lies."""

    directory: Path

    def find(self) -> str:
        if address := address_in(self.directory):
            return address
        ran = "serves from" if (self.directory / "node.id").exists() else "has run in"
        one = f"`moonpool node --dir {self.directory}`"
        raise Unavailable(
            f"no node {ran} {self.directory}: start one with {one}, or a whole stack with "
            "`moonpool up`"
        )


def located(where: str | Path) -> Locator:
    """Of a node that is named by its HOST:PORT, or by its directory, in whose path there may be a
    colon too."""
    fixed = isinstance(where, str) and ":" in where and "/" not in where
    return FixedAddress(str(where)) if fixed else InDirectory(Path(where))
