"""So many tasks at once, and the others in turn, by the rules of `kvstore.core.turns`."""

from __future__ import annotations

import asyncio

from kvstore.core.turns import Line, Places


class Entrance:
    """Its methods are for the event loop's thread."""

    def __init__(self, total: int) -> None:
        self.places = Places(total)
        self._line: Line[asyncio.Future[None]] = Line()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def try_enter(self, who: str) -> bool:
        return not self._line.has(who) and self.places.try_take(who)

    async def enter(self, who: str) -> None:
        """Returns once there is a place, which is given back by `leave`."""
        if self.try_enter(who):
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.join(who, called)
        try:
            await called
        except asyncio.CancelledError:
            self._line.leave(who, called)
            if called.done() and not called.cancelled():  # it had its turn a moment ago
                self.leave(who)
            raise

    def leave(self, who: str) -> None:
        self.places.give_back(who)
        for next_one, called in self._line.let_in(self.places):
            if called.cancelled():  # its caller hung up, and its task has not run since
                self.places.give_back(next_one)
            else:
                called.set_result(None)
