"""What a way over UCX makes of calls that come to nothing. (Of real nodes: test_fetch_ucx.)"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvstore.clock import SimClock
from kvstore.errors import Unavailable
from kvstore.limits import UCX_ASIDE_PIECES
from kvstore.node.ucx_way import UcxWay
from kvstore.telemetry import NODE, Telemetry
from kvstore.transfer import ucx_aside, ucx_pieces
from kvstore.transfer.ucx_aside import Aside

LAYOUT: Any = SimpleNamespace(place_bytes=8, block_bytes=lambda tokens: 1)
SLOTS: Any = SimpleNamespace(tokens=np.zeros(1, np.int32))


class Ways:
    """What a node's ways have in common, of little memory; and one way, whose connections are
    there."""

    def __init__(self) -> None:
        self.aside, self.clock, self.counters = Aside(), SimClock(), Telemetry(NODE)
        ways: Any = self
        self.to_peer = UcxWay(ways, "peer:1")
        lanes: Any = SimpleNamespace(close=lambda: None)
        self.to_peer._in_thread, self.to_peer._lanes = self.in_thread, lanes

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        return work()

    async def pull(self, call: Callable[[], None], seconds: float = 0.0) -> Any:
        """What the way says of a call that takes so long."""

        async def made(*_: Any) -> Any:
            await self.clock.advance(seconds)
            call()
            return np.ones(1, bool)

        return await self.to_peer.pull(LAYOUT, SLOTS, None, made)  # type: ignore[arg-type]

    @property
    def failures(self) -> int:
        return self.counters.totals().get("ucx_failures", 0)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    monkeypatch.setattr(ucx_aside, "UCX_ASIDE_BYTES", 64)
    monkeypatch.setattr(ucx_pieces, "TAKE_SECONDS", 0.01)
    return Ways()


def test_a_lack_of_this_nodes_own_memory_is_no_failure_of_a_peer(ways: Ways) -> None:
    """Calls of other peers took the pieces after this one was told that there is one."""

    def none_left() -> None:
        held = [ways.aside.pieces.take() for _ in range(UCX_ASIDE_PIECES)]
        try:
            ways.aside.pieces.take()
        finally:
            for one in held:
                ways.aside.pieces.give(one)

    async def main() -> None:
        assert await ways.pull(none_left, seconds=1.0) is None, "it comes another way"
        assert ways.to_peer.failure is None and not ways.failures
        assert (await ways.pull(lambda: None)).all(), "and the next over ucx"

    asyncio.run(main())


@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_failed_comes_another_way_unless_its_reader_has_waited_for_long(
    ways: Ways, late: bool
) -> None:
    def broken() -> None:
        raise Unavailable("it broke")

    async def main() -> None:
        if late:
            with pytest.raises(Unavailable, match="it broke"):
                await ways.pull(broken, seconds=1.0)
        else:
            assert await ways.pull(broken) is None
        assert str(ways.to_peer.failure) == "it broke" and ways.failures == 1

    asyncio.run(main())
