"""The disk's calls as a simulated node makes them: they wait, and a step runs any of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvstore.core.lifecycle import State
from kvstore.disk.protocol import DiskError, DiskFull, DiskReadOnly
from kvstore.disk.volumes import Volumes
from kvstore.node.blocks import Blocks


@dataclass
class Jobs:
    """Stands for the node's threads; the calls run in any order."""

    rng: random.Random
    failed: FailedFiles
    waiting: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = field(
        default_factory=list
    )

    async def read(self, call: Callable[..., Any], *given: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((future, call, given))
        return await future

    write = read

    def each(self, call: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(call, items)

    def run_one(self) -> bool:
        if not self.waiting:
            return False
        future, call, given = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        if future.done():  # whoever asked was cancelled
            return True
        try:
            future.set_result(self.failed.watched(call, given))
        except Exception as error:
            future.set_exception(error)
        return True


class FailedFiles:
    """Files that the node may not use again, and whether it does."""

    def __init__(self, blocks: Blocks, volumes: Volumes) -> None:
        self._blocks, self._volumes = blocks, volumes
        self._at: dict[int, int] = {}  # file -> the last generation given out before it was known
        self._news: set[int] = set()  # files that failed since the last check
        self._lied: set[int] = set()  # files of which a write or sync failed
        self.wrong = ""

    def watched(self, call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        if call.__name__ == "sync" and given[0] in self._lied:
            self.wrong = f"file {given[0]} was synced after it had failed"
        try:
            return call(*given)
        except DiskFull:
            if call.__name__ == "sync":
                self._note([given[0]], lied=True)
            raise
        except DiskError as error:
            files = self._concerned(call.__name__, given, isinstance(error, DiskReadOnly))
            self._note(files, lied=call.__name__ != "commit")
            raise

    def check(self) -> None:
        """No slot of a failed file has been given out since."""
        assert not self.wrong, self.wrong
        assert self._blocks.ssd is not None
        for slab in self._blocks.ssd.occupied():
            since = self._at.get(self._volumes.file_of(slab.offset))
            for slot in slab.slots.values() if since is not None else ():
                late = slot.state is not State.EMPTY and slot.generation > since
                assert not late, "a file that failed is used again"
        for file in self._news:  # the node has had its turns, so it knows
            self._at.setdefault(file, self._blocks.ssd.generation)
        self._news.clear()

    def _concerned(self, what: str, given: tuple[Any, ...], whole: bool) -> Iterable[int]:
        volumes = self._volumes
        if what in ("read", "peek"):
            return ()
        if what == "commit":
            return volumes.files_of(given[0])
        written = {"write": 1, "erase": 0}
        file = given[0] if what == "sync" else volumes.file_of(given[written[what]].offset)
        return volumes.files_of(volumes.path_of(volumes.span(file)[0])) if whole else [file]

    def _note(self, files: Iterable[int], lied: bool) -> None:
        self._news.update(files)
        if lied:
            self._lied.update(files)
