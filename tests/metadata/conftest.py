"""Runs `async def` tests under a deadline, and gives the contract every form of metadata there is.

A new form (etcd) joins by one class like `EmbeddedForm` and one entry in `FORMS`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from kvstore.clock import SimClock
from kvstore.metadata import Metadata
from kvstore.metadata.embedded import EmbeddedMetadata

TEST_DEADLINE_S = 30


class Form(Protocol):
    def __init__(self, folder: Path) -> None: ...

    def open(self) -> Metadata:
        """One more client of the same store."""
        ...

    async def compact(self) -> None:
        """Make one change under `scratch/`, and let all changes before it be forgotten."""
        ...

    async def pass_time(self, seconds: float) -> None: ...

    async def close(self) -> None:
        """Close every client opened here."""
        ...


class EmbeddedForm:
    """Its lease time is simulated, so that no contract test waits for a lease to end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metadata.db"
        self.clock = SimClock(start=1_000.0)
        self._opened: list[EmbeddedMetadata] = []

    def open(self) -> EmbeddedMetadata:
        return self._open(changes_kept=10_000)

    def _open(self, changes_kept: int) -> EmbeddedMetadata:
        store = EmbeddedMetadata(self.path, clock=self.clock, changes_kept=changes_kept)
        self._opened.append(store)
        return store

    async def compact(self) -> None:
        forgetful = self._open(changes_kept=1)
        await forgetful.put("scratch/compact", b"")
        await forgetful.close()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


FORMS: list[type[Form]] = [EmbeddedForm]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def form(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Form]:
    made: Form = request.param(tmp_path)
    yield made
    asyncio.run(made.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def bounded() -> None:
        names = inspect.signature(test).parameters
        async with asyncio.timeout(TEST_DEADLINE_S):
            await test(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(bounded())
    return True
