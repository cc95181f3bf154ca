"""The namespaces that a node knows of all that are registered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvstore.clock import SystemClock
from kvstore.errors import Overloaded, UnknownNamespace
from kvstore.metadata import Metadata
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.records import NamespaceRecord
from kvstore.node import namespaces
from kvstore.node.namespaces import Namespaces
from kvstore.spec import KVGroup, KVSpec

SPECS = [KVSpec(f"m{i}", "r", "int8", (KVGroup((0,), 1, 8, 4),)) for i in range(4)]


def with_metadata(path: Path, test: Callable[[Metadata], Awaitable[None]]) -> None:
    async def run() -> None:
        metadata = EmbeddedMetadata(path / "metadata.db")
        try:
            await test(metadata)
        finally:
            await metadata.close()

    asyncio.run(run())


def of_a_node(metadata: Metadata) -> Namespaces:
    return Namespaces(metadata, SystemClock(), random.Random(0))


def test_a_node_starts_where_more_namespaces_are_registered_than_it_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each node counts those that it was asked for, so two of them register more than one holds."""
    monkeypatch.setattr(namespaces, "NAMESPACES_MAX", 2)

    async def test(metadata: Metadata) -> None:
        for one, some in ((of_a_node(metadata), SPECS[:2]), (of_a_node(metadata), SPECS[2:])):
            for spec in some:
                await one.register(spec.canonical(), b"")
        started = of_a_node(metadata)
        await started.load()
        known = started.known()
        assert len(known) == 2 and known.keys() <= {spec.digest for spec in SPECS}
        assert "2 namespaces are not known here" in caplog.text
        left_out = next(spec for spec in SPECS if spec.digest not in known)
        with pytest.raises(Overloaded, match="2 namespaces"):
            await started.place(left_out.digest, 0)

    with_metadata(tmp_path, test)


def test_calls_that_register_at_once_register_no_more_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "NAMESPACES_MAX", 2)

    async def test(metadata: Metadata) -> None:
        one = of_a_node(metadata)
        told = await asyncio.gather(
            *(one.register(spec.canonical(), b"") for spec in SPECS), return_exceptions=True
        )
        assert [type(each) for each in told].count(Overloaded) == 2
        another = of_a_node(metadata)
        await another.load()
        assert another.known() == one.known(), "what was refused is nowhere"

    with_metadata(tmp_path, test)


def test_a_node_starts_where_a_later_release_has_registered_what_it_cannot_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(metadata: Metadata) -> None:
        later = NamespaceRecord("00" * 32, SPECS[0].as_dict() | {"hash_version": 9})
        await metadata.put(later.key(), later.encode())
        one = of_a_node(metadata)
        await one.register(SPECS[0].canonical(), b"")
        await one.load()
        assert one.known() == {SPECS[0].digest: SPECS[0]}
        assert "hash_version 9 is unknown" in caplog.text

    with_metadata(tmp_path, test)


def test_a_release_that_the_metadata_has_no_room_for_ends_no_hearing_of_quarantines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "_AGAIN_SECONDS", 0.01)

    async def test(metadata: Metadata) -> None:
        one, other = of_a_node(metadata), of_a_node(metadata)
        first, second = [await other.register(spec.canonical(), b"") for spec in SPECS[:2]]
        refused = 0

        async def drop(_: bytes) -> None:
            nonlocal refused
            if not refused:
                refused += 1
                raise Overloaded("etcd has no room", 1)

        await other.quarantine(first, "wrong")
        await one.load_quarantines()
        keeping = asyncio.create_task(one.keep_quarantines(drop))
        try:
            await other.release(first)
            while first in one.quarantined:
                await asyncio.wait({keeping}, timeout=0.01)
                assert not keeping.done()
            await other.quarantine(second, "wrong")
            while second not in one.quarantined:
                await asyncio.wait({keeping}, timeout=0.01)
                assert not keeping.done()
            assert refused
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    with_metadata(tmp_path, test)


def test_a_record_of_another_spec_than_its_name_says_is_no_namespaces(tmp_path: Path) -> None:
    async def test(metadata: Metadata) -> None:
        record = NamespaceRecord(SPECS[0].digest.hex(), SPECS[1].as_dict())
        await metadata.put(record.key(), record.encode())
        asked = of_a_node(metadata)
        with pytest.raises(UnknownNamespace):
            await asked.place(SPECS[0].digest, 0)
        assert await asked.register(SPECS[0].canonical(), b"") == SPECS[0].digest
        assert (await asked.place(SPECS[0].digest, 0)).owner == (SPECS[0].digest, 0)

    with_metadata(tmp_path, test)


@pytest.mark.parametrize("who", ["one", "other"])
def test_a_quarantine_that_was_said_again_ends_with_its_record_all_the_same(
    tmp_path: Path, who: str
) -> None:
    """Every engine that meets wrong KV says so, to the node of its own host."""

    async def test(metadata: Metadata) -> None:
        one, other = of_a_node(metadata), of_a_node(metadata)
        first, told, last = [await other.register(spec.canonical(), b"") for spec in SPECS[:3]]
        dropped: list[bytes] = []

        async def drop(digest: bytes) -> None:
            dropped.append(digest)

        async def hears_of(digest: bytes) -> None:
            """Of a namespace that the other says, and so of all that was said before it."""
            await other.quarantine(digest, "wrong")
            while digest not in one.quarantined:
                await asyncio.wait({keeping}, timeout=0.01)
                assert not keeping.done()

        await one.load_quarantines()
        keeping = asyncio.create_task(one.keep_quarantines(drop))
        try:
            await {"one": one, "other": other}[who].quarantine(first, "wrong")
            await hears_of(told)
            await one.quarantine(first, "wrong again")
            await other.release(first)
            await hears_of(last)
            for _ in range(10):  # turns for the drop, which is due by now
                await asyncio.sleep(0)
            assert dropped == [first] and first not in one.quarantined
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    with_metadata(tmp_path, test)


def test_a_quarantine_that_is_released_while_it_is_said_again_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(metadata: Metadata) -> None:
        one, other = of_a_node(metadata), of_a_node(metadata)
        first, told = [await other.register(spec.canonical(), b"") for spec in SPECS[:2]]
        put_if = metadata.put_if

        async def dropped(_: bytes) -> None:
            pass

        async def released_meanwhile(key: str, value: bytes, expected_revision: int) -> int | None:
            made = await put_if(key, value, expected_revision=expected_revision)
            await other.release(first)
            while one._records.get(first.hex()) is not None:  # until the metadata has told it
                await asyncio.wait({keeping}, timeout=0.01)
                assert not keeping.done()
            return made

        await other.quarantine(first, "wrong")
        await one.load_quarantines()
        keeping = asyncio.create_task(one.keep_quarantines(dropped))
        try:
            await other.quarantine(told, "wrong")
            while told not in one.quarantined:
                await asyncio.wait({keeping}, timeout=0.01)
                assert not keeping.done()
            monkeypatch.setattr(metadata, "put_if", released_meanwhile)
            await one.quarantine(first, "wrong again")
            for _ in range(10):  # turns for the drop, which is due by now
                await asyncio.sleep(0)
            assert first not in one.quarantined
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    with_metadata(tmp_path, test)
