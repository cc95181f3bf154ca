"""A team of processes on one host, joined by torch.distributed with gloo, over loopback alone.

They meet in a folder that only their own user can enter; beyond that their connections are as open
as loopback is. Nothing is pickled: what is sent are tensors of numbers. A rank that ended is
noticed at once, since its connections close; one that stopped, when a call has waited for
CALL_SECONDS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from kvstore.limits import MiB

from .errors import RankLost

CALL_SECONDS = 30.0  # a rank may take so long between two calls: its pool has deadlines of 2 s
MESSAGE_BYTES_MAX = 64 * MiB


class GlooTeam:
    """One rank's membership. `join_others` first; then one thread makes all calls."""

    def __init__(self, rank: int, ranks: int, meeting: Path) -> None:
        assert 0 <= rank < ranks
        self.rank, self.ranks = rank, ranks
        self._meeting = meeting

    def join_others(self) -> None:
        """Connect; returns when all ranks have. Each is to call this at about the same time."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        with self._waiting():
            dist.init_process_group(
                "gloo",
                init_method=(self._meeting / "store").absolute().as_uri(),
                rank=self.rank,
                world_size=self.ranks,
                timeout=timedelta(seconds=CALL_SECONDS),
            )

    def part(self) -> None:
        """No call comes any more. Else gloo's threads abort the process as it ends."""
        dist.destroy_process_group()

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        with self._waiting():
            dist.all_reduce(part)
        return part

    def join(self, part: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(part) for _ in range(self.ranks)]
        if part.numel():
            with self._waiting():
                dist.all_gather(parts, part)
        return torch.cat(parts, dim=-1)

    def exchange(self, values: Sequence[int]) -> list[Sequence[int]]:
        mine = torch.tensor(values, dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.ranks)]
        with self._waiting():
            dist.all_gather(rows, mine)
        return [row.tolist() for row in rows]

    def tell(self, message: bytes) -> None:
        assert self.rank == 0 and len(message) <= MESSAGE_BYTES_MAX
        with self._waiting():
            dist.broadcast(torch.tensor([len(message)]), src=0)
            if message:
                dist.broadcast(torch.frombuffer(bytearray(message), dtype=torch.uint8), src=0)

    def hear(self) -> bytes:
        assert self.rank > 0
        size = torch.zeros(1, dtype=torch.int64)
        with self._waiting():
            dist.broadcast(size, src=0)
            count = int(size[0])
            if not 0 <= count <= MESSAGE_BYTES_MAX:
                raise RankLost(f"rank 0 announces a message of {count} bytes")
            message = torch.empty(count, dtype=torch.uint8)
            if count:
                dist.broadcast(message, src=0)
        return message.numpy().tobytes()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """gloo's word for whatever goes wrong between ranks is a RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self.rank} of {self.ranks} has lost the others: one of them ended, or did "
                f"not answer within {CALL_SECONDS:.0f} s"
            ) from error
