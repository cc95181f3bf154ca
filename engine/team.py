"""The ranks of one engine, as each of them sees the others: what they sum, share and are told.

Every rank takes the same steps in the same order, so each call here is made by all of them and
waits for all of them. Whoever has lost the others gets `RankLost`, within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Team(Protocol):
    """What a rank asks of the others. Rank 0 serves and leads; the others do what it tells them."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def join_others(self) -> None:
        """Connect to the others, who are to do the same at about the same time. Comes first."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, which may be `part` itself, overwritten."""

    def join(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts side by side along the last axis, bit for bit alike at every rank."""

    def exchange(self, values: Sequence[int]) -> list[Sequence[int]]:
        """Each rank's values (64 bits each, as many at every rank), by rank."""

    def tell(self, message: bytes) -> None:
        """From rank 0 to the others, each of which is in `hear`."""

    def hear(self) -> bytes:
        """What rank 0 tells, at any other rank."""


class Solo:
    """A team of one: nothing to wait for, nothing to pay."""

    rank, ranks = 0, 1

    def join_others(self) -> None:
        pass

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def join(self, part: torch.Tensor) -> torch.Tensor:
        return part

    def exchange(self, values: Sequence[int]) -> list[Sequence[int]]:
        return [values]

    def tell(self, message: bytes) -> None:
        pass

    def hear(self) -> bytes:
        raise AssertionError("a team of one has nobody to hear")


SOLO = Solo()
