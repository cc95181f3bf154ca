"""Runs `async def` tests under a deadline; gives the contract every form of metadata there is."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from kvstore.clock import SimClock
from kvstore.config import EtcdConfig
from kvstore.metadata import Metadata
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.etcd import EtcdMetadata, endpoints
from tests.etcd import EtcdProcess, have_etcd, need_etcd

TEST_DEADLINE_S = 120
PATIENCE_S = 20.0  # a call may wait so long for a CPU


class Form(Protocol):
    ttl_ms: int  # of a lease that a test may wait for
    late_s: float  # so much later than it wanted a test may come

    def open(self) -> Metadata:
        """One more client of the same store."""
        ...

    async def start(self) -> int:
        """A revision before every change of the test; nothing after it is forgotten yet."""
        ...

    async def compact(self) -> None:
        """Make one change under `scratch/`, and let all changes before it be forgotten."""
        ...

    async def pass_time(self, seconds: float) -> None: ...

    async def close(self) -> None:
        """Close every client opened here."""
        ...


class EmbeddedForm:
    """Its lease time is simulated, so that no test waits for a lease to end."""

    ttl_ms, late_s = 5_000, 0.01

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metadata.db"
        self.clock = SimClock(start=1_000.0)
        self._opened: list[EmbeddedMetadata] = []

    def open(self) -> EmbeddedMetadata:
        return self._open(changes_kept=10_000)

    def _open(self, changes_kept: int) -> EmbeddedMetadata:
        store = EmbeddedMetadata(
            self.path, clock=self.clock, busy_s=PATIENCE_S, changes_kept=changes_kept
        )
        self._opened.append(store)
        return store

    async def start(self) -> int:
        return 0

    async def compact(self) -> None:
        forgetful = self._open(changes_kept=1)
        await forgetful.put("scratch/compact", b"")
        await forgetful.close()

    async def pass_time(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class EtcdForm:
    """One real etcd for all tests, in which each has a pool of its own."""

    ttl_ms, late_s = 5_000, 3.0
    _clusters = itertools.count()

    def __init__(self, etcd: EtcdProcess) -> None:
        self._etcd = etcd
        self._cluster = f"test-{next(self._clusters)}"
        self._opened: list[EtcdMetadata] = []

    def open(self) -> EtcdMetadata:
        store = EtcdMetadata(EtcdConfig((self._etcd.url,), self._cluster))
        self._opened.append(store)
        return store

    async def start(self) -> int:
        return (await self.open().list(""))[1]

    async def compact(self) -> None:
        await self.open().put("scratch/compact", b"")
        self._etcd.compact()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        self._etcd.revoke_all()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess | None]:
    """None where there is no etcd to run."""
    if not have_etcd():
        yield None
        return
    etcd = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    try:
        yield etcd.start()
    finally:
        etcd.stop()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of etcd wait for their answers for longer than any that comes is late."""
    monkeypatch.setattr(endpoints, "CALL_SECONDS", PATIENCE_S)


@pytest.fixture(params=[EmbeddedForm, EtcdForm], ids=lambda form: form.__name__)
def form(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    shared_etcd: EtcdProcess | None,
    patient: None,
) -> Iterator[Form]:
    if request.param is EmbeddedForm:
        made: Form = EmbeddedForm(tmp_path)
    else:
        need_etcd()
        assert shared_etcd is not None
        made = EtcdForm(shared_etcd)
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
            try:
                await test(**{name: pyfuncitem.funcargs[name] for name in names})
            finally:  # in the event loop that opened them
                if "form" in names:
                    await pyfuncitem.funcargs["form"].close()

    asyncio.run(bounded())
    return True
