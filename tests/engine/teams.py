"""Teams whose ranks are threads of one process, and an engine of them: gloo replaced, nothing else.

Every call says which it is, so ranks that do not take the same steps are caught at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kvstore.client import Client
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.follower import follow
from kvstore.engine.pool import Pool
from kvstore.engine.worker import Worker

SECONDS = 60.0


class Table:
    """Where the ranks lay down what they bring, and take up what the others brought."""

    def __init__(self, ranks: int) -> None:
        self._brought: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=SECONDS)
        self.calls: list[str] = []

    def share(self, rank: int, call: str, value: Any) -> list[Any]:
        self._brought[rank] = (call, value)
        self._barrier.wait()
        brought = list(self._brought)
        if rank == 0:
            self.calls.append(call)
        self._barrier.wait()
        assert {name for name, _ in brought} == {call}, "the ranks are not in step"
        return [one for _, one in brought]

    def leave(self) -> None:
        self._barrier.abort()


class ThreadTeam:
    """One rank's membership."""

    def __init__(self, rank: int, ranks: int, table: Table) -> None:
        self.rank, self.ranks, self.table = rank, ranks, table

    def join_others(self) -> None:
        pass

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        parts = self.table.share(self.rank, f"sum {tuple(part.shape)}", part)
        total: torch.Tensor = torch.stack(parts).sum(0)
        return total

    def join(self, part: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.table.share(self.rank, f"join {tuple(part.shape)}", part), dim=-1)

    def exchange(self, values: Sequence[int]) -> list[Sequence[int]]:
        return self.table.share(self.rank, f"exchange {len(values)}", tuple(values))

    def tell(self, message: bytes) -> None:
        self.table.share(self.rank, "tell", message)

    def hear(self) -> bytes:
        heard: bytes = self.table.share(self.rank, "tell", b"")[0]
        return heard


def teams(ranks: int) -> list[ThreadTeam]:
    table = Table(ranks)
    return [ThreadTeam(rank, ranks, table) for rank in range(ranks)]


def each(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call returns; they run side by side, and the first error of any is raised."""
    results: list[Any] = [None] * len(calls)
    errors: list[Exception] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


class TeamEngine:
    """An engine of several ranks, each with a client of its own."""

    def __init__(self, folder: Path, clients: Sequence[Client], settings: EngineSettings) -> None:
        self.clients = clients
        self.members = teams(len(clients))
        self.cores = [EngineCore.load(folder, settings, team=one) for one in self.members]
        self.pools = [
            Pool(client, core.cache, team)
            for client, core, team in zip(clients, self.cores, self.members, strict=True)
        ]
        self.worker = Worker(self.cores[0], self.pools[0], self.members[0], self._broken)
        self.errors: list[Exception] = []
        self._followers = [
            threading.Thread(target=self._follow, args=(rank,), daemon=True)
            for rank in range(1, len(clients))
        ]
        for thread in self._followers:
            thread.start()
        self.worker.start()

    def close(self) -> None:
        self.worker.stop(5.0)
        for thread in self._followers:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a rank goes on without rank 0"
        for client in self.clients:
            client.close()

    def _follow(self, rank: int) -> None:
        try:
            follow(self.cores[rank], self.pools[rank], self.members[rank])
        except Exception as error:
            self.errors.append(error)
            self._broken()

    def _broken(self) -> None:
        self.members[0].table.leave()
