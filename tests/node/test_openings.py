"""What is opened at another node is let go there, also where nobody has heard that it is open."""

from __future__ import annotations

import asyncio
from typing import Any

from kvstore.errors import Unavailable
from kvstore.node.openings import Openings
from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.holder import Holder, cancelled_while_it_asks

HANDLES = (b"one", b"", b"two")


def test_what_opens_once_nobody_waits_for_it_is_let_go() -> None:
    async def main() -> None:
        openings, holder = Openings(), Holder(HANDLES)
        link: Any = holder
        asking = asyncio.create_task(openings.open(link, pb.OpenRequest()))
        await cancelled_while_it_asks(asking, holder)
        assert not holder.open

    asyncio.run(main())


def test_what_does_not_open_after_all_harms_nobody() -> None:
    async def main() -> None:
        openings, holder, told = Openings(), Holder(HANDLES), list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        link: Any = holder
        holder.error = Unavailable("it went away")
        asking = asyncio.create_task(openings.open(link, pb.OpenRequest()))
        await cancelled_while_it_asks(asking, holder)
        assert not told

    asyncio.run(main())


def test_closing_waits_for_no_answer() -> None:
    async def main() -> None:
        openings, holder = Openings(), Holder(HANDLES)
        link: Any = holder
        asking = asyncio.create_task(openings.open(link, pb.OpenRequest()))
        await holder.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(20):
            await openings.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing of it is left"

    asyncio.run(main())


def test_what_is_let_go_is_closed_there_beside_whoever_had_it() -> None:
    async def main() -> None:
        openings, holder = Openings(), Holder(HANDLES)
        link: Any = holder
        holder.answers.set()
        reply = await openings.open(link, pb.OpenRequest())
        assert holder.open == {b"one", b"two"}
        openings.let_go(link, reply.handles)
        assert holder.open, "nobody waited for it"
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert not holder.open

    asyncio.run(main())
