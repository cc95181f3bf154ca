"""Sessions that are to begin at the same moment: each has its time once it is its turn, and no turn
is waited for in vain. The links of these peers begin as a test has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kvstore.clock import SimClock
from kvstore.config import OPEN
from kvstore.errors import Overloaded, Unavailable
from kvstore.metadata.records import NodeRecord
from kvstore.node import peers
from kvstore.node.peers import BEGINNING_MAX, Peers

COUNT = 3 * BEGINNING_MAX


class Many(dict[str, NodeRecord]):
    """Stands for the roster."""

    def __init__(self) -> None:
        names = [f"n{i}" for i in range(COUNT)]
        super().__init__({n: NodeRecord(n, 1, f"{n}:1", {}, (), {}, "serving") for n in names})


class Met:
    """Stands for `Contacts`: nobody is measured."""

    def met(self, link: Any) -> None: ...


class Beginning:
    """Peers, and how many of their sessions begin at the same time."""

    def __init__(self, patch: pytest.MonkeyPatch, begin: Callable[[], Awaitable[object]]) -> None:
        self.begun = self.now = self.most = 0
        given: Any = (Many(), SimClock(1_000.0), None, None, OPEN, Met())
        self.peers, counts = Peers("me", *given), self

        class Link:
            """Stands for a link to a node: it takes of the loop's time from when it is made."""

            alive, session = True, b""

            def __init__(self, record: NodeRecord, *_: Any) -> None:
                self.epoch, self.address = record.epoch, record.address
                counts.begun += 1
                counts.now += 1
                counts.most = max(counts.most, counts.now)

            async def begin(self) -> None:
                try:
                    await begin()
                finally:
                    counts.now -= 1

            async def close(self) -> None: ...

        patch.setattr(peers, "Link", Link)

    async def all(self, *whose: tuple[str, str]) -> list[Any]:
        links = [self.peers.link(*one) for one in whose]
        async with asyncio.timeout(30.0):
            return await asyncio.gather(*links, return_exceptions=True)


OF_ONE = [("n0", f"t{i}") for i in range(COUNT)]
OF_EACH = [(f"n{i}", "default") for i in range(COUNT)]


@pytest.mark.parametrize("whose", [OF_ONE, OF_EACH])
def test_of_many_that_are_wanted_at_once_so_many_begin_together_and_all_are_had(
    monkeypatch: pytest.MonkeyPatch, whose: list[tuple[str, str]]
) -> None:
    async def test() -> None:
        some = Beginning(monkeypatch, lambda: asyncio.sleep(0))
        links = await some.all(*whose)
        assert not any(isinstance(one, Exception) for one in links)
        assert (some.begun, some.most) == (COUNT, BEGINNING_MAX)

    asyncio.run(test())


def test_a_peer_that_fails_is_waited_for_by_nobody_whose_turn_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse() -> None:
        await asyncio.sleep(0)
        raise Unavailable("nobody is there")

    async def test() -> None:
        some = Beginning(monkeypatch, refuse)
        why = await some.all(*OF_ONE)
        assert all(isinstance(one, Unavailable) for one in why)
        assert "failed a moment ago" in str(why[-1]) and some.begun == BEGINNING_MAX

    asyncio.run(test())


def test_a_peer_whose_turn_does_not_come_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BEGIN_SECONDS", 30.0)
    monkeypatch.setattr(peers, "TURN_SECONDS", 0.05)

    async def test() -> None:
        over = asyncio.Event()
        some = Beginning(monkeypatch, over.wait)
        first = asyncio.create_task(some.all(*OF_EACH[:BEGINNING_MAX]))
        while some.now < BEGINNING_MAX:
            await asyncio.sleep(0)
        late = OF_EACH[BEGINNING_MAX]
        (why,) = await some.all(late)
        assert isinstance(why, Overloaded) and some.peers.may_ask(late[0])
        over.set()
        await first
        assert not isinstance((await some.all(late))[0], Exception)

    asyncio.run(test())


def test_one_that_is_late_to_begin_is_told_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BEGIN_SECONDS", 0.05)

    async def test() -> None:
        some = Beginning(monkeypatch, cast(Any, asyncio.Event().wait))
        with pytest.raises(Unavailable, match=r"n0:1 cannot be used: .* no session within 0\.05 s"):
            await some.peers.link("n0", "default")
        assert not some.peers.may_ask("n0")

    asyncio.run(test())
