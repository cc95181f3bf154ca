"""What an operator is told of a node whose blocks come and go meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from kvstore.errors import Unavailable
from kvstore.node.admin import AdminService
from kvstore.node.namespaces import Namespaces
from kvstore.spec import KVGroup, KVSpec
from kvstore.wire.v1 import admin_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt

SPEC = KVSpec("small", "r0", "float16", (KVGroup((0, 1), 2, 8, TOKENS),))  # that of SMALL


def test_a_listing_has_no_rows_of_blocks_that_went_while_it_was_told() -> None:
    rig, admin = Rig(), AdminService.__new__(AdminService)
    admin._store = rig.store
    blocks = prompt(SMALL, 3 * TOKENS)
    rig.put(rig.session(), SMALL, blocks)
    keys = rig.store.keys("default", SMALL, blocks.hashes)

    async def told() -> list[str]:
        rows = admin.List(pb.ListRequest(), None)
        first = await anext(rows)
        rig.store.remove(keys)
        return [first.block] + [row.block async for row in rows]

    assert asyncio.run(told()) == [keys[0].hex()[:12]]


def test_others_have_their_turns_while_a_listing_passes_blocks_that_it_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, admin, turns = Rig(), AdminService.__new__(AdminService), 0
    admin._store = rig.store
    rig.put(rig.session(), SMALL, prompt(SMALL, 12 * TOKENS))
    monkeypatch.setattr("kvstore.node.admin._ROWS", 2)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def told() -> list[pb.ListReply]:
        counting = asyncio.create_task(count())
        rows = [row async for row in admin.List(pb.ListRequest(namespace=b"another"), None)]
        counting.cancel()
        return rows

    assert asyncio.run(told()) == [] and turns >= 6


def test_a_listing_of_a_few_blocks_goes_through_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, admin, passed = Rig(), AdminService.__new__(AdminService), 0
    admin._store = rig.store
    blocks = prompt(SMALL, 12 * TOKENS)
    rig.put(rig.session(), SMALL, blocks)
    recent = rig.blocks.index.recent

    def counted() -> Iterator[bytes]:
        nonlocal passed
        for key in recent():
            passed += 1
            yield key

    async def told() -> list[str]:
        return [row.block async for row in admin.List(pb.ListRequest(limit=3), None)]

    monkeypatch.setattr(rig.blocks.index, "recent", counted)
    keys = rig.store.keys("default", SMALL, blocks.hashes)
    assert asyncio.run(told()) == [key.hex()[:12] for key in keys[:3]] and passed == 3


class Copied:
    """Stands for `Replicas`: others take whatever they are offered."""

    async def copied(self, tenant: str, keys: list[bytes], copies: int, *_: Any) -> Any:
        return dict.fromkeys(keys, copies)


class Away:
    """Stands for the metadata: it took what was registered, and cannot be reached since."""

    async def get(self, key: str) -> None: ...

    async def put_if(self, key: str, value: bytes, expected_revision: int) -> int:
        return 1

    async def list(self, prefix: str) -> Any:
        raise Unavailable("etcd is away")


def test_while_the_metadata_is_away_blocks_of_a_namespace_that_is_known_are_copied() -> None:
    rig, admin, away = Rig(), AdminService.__new__(AdminService), Away()
    namespaces = Namespaces(away, rig.clock, random.Random(0))  # type: ignore[arg-type]
    admin._store, admin._namespaces = rig.store, namespaces
    admin._replicas = Copied()  # type: ignore[assignment]
    rig.put(rig.session(), SMALL, prompt(SMALL, 3 * TOKENS))
    name = SMALL.owner[0].hex()[:12]

    async def answered(call: Any, request: Any) -> tuple[list[Any], str]:
        context = Mock()
        replies = [reply async for reply in call(request, context)]
        refusals = context.set_details.call_args_list
        return replies, " ".join(one.args[0] for one in refusals)

    async def run() -> None:
        await namespaces.register(SPEC.canonical(), b"")
        asked = pb.ReplicateRequest(namespace=name, copies=2)
        assert await answered(admin.Replicate, asked) == (
            [pb.ReplicateReply(blocks=3, blocks_done=3, whole=3, least=2)],
            "",
        )
        for unsure in ("", "not one that is known"):
            asked = pb.ReplicateRequest(namespace=unsure, copies=2)
            assert await answered(admin.Replicate, asked) == ([], "etcd is away")
        asked = pb.PurgeRequest(namespace=name)
        assert await answered(admin.Purge, asked) == ([], "etcd is away"), "it names others too?"

    asyncio.run(run())
