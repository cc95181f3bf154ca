"""What an operator is told of a node whose blocks come and go meanwhile."""

from __future__ import annotations

import asyncio

from kvstore.node.admin import AdminService
from kvstore.wire.v1 import admin_pb2 as pb
from tests.node.rig import SMALL, TOKENS, Rig, prompt


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
