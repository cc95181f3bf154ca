"""How many calls a server receives at once, which bounds what all callers together make it hold,
and how those places are shared, so that no tenant keeps another out.

A call is admitted before its first message is received: until then flow control leaves all but a
window's worth of the message with the caller. The rules are in `kvstore.core.turns`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from kvstore.core.turns import Places, Rates
from kvstore.errors import Overloaded
from kvstore.limits import (
    RPC_BULK_MAX,
    RPC_BURST_MAX,
    RPC_OPEN_STREAMS_MAX,
    RPC_OWED_MAX,
    RPC_RATE_MAX,
    RPC_STREAMS_MAX,
    RPC_UNARY_MAX,
    RPC_UNARY_SECONDS,
    RPC_WAITING_MAX,
)
from kvstore.rpc.access import Role
from kvstore.rpc.entrance import Entrance
from kvstore.rpc.identity import Caller
from kvstore.rpc.named import further_calls

_RETRY_MS = 200
# What ends a hold, or keeps one. Few ask for it again: refused, blocks stay held, or are lost.
_OF_HOLDS = frozenset(
    f"/moonpool.v1.KV/{method}" for method in ("Seal", "Abort", "Close", "Unpin", "Renew")
)


class Admission:
    """Unary calls wait for their turn, which is bounded in time; streams beyond their places are
    refused: those of bulk bytes, those that take no token, and all others apart."""

    def __init__(
        self,
        bulk: Collection[str],
        streams: int = RPC_STREAMS_MAX,
        open_: Collection[str] = (),
    ) -> None:
        self._bulk_methods, self._open_methods = frozenset(bulk), frozenset(open_)  # full names
        self._bulk, self._streams = Places(RPC_BULK_MAX), Places(streams)
        self._open = Places(RPC_OPEN_STREAMS_MAX)
        self._turns, self._seats = Entrance(RPC_UNARY_MAX), Places(RPC_WAITING_MAX)
        self._rates = Rates(RPC_RATE_MAX, RPC_BURST_MAX)

    def count(self, who: str, method: str) -> None:
        """One more call of `who`; `Overloaded` where it calls too often for the others' good. What
        is of a hold is refused later than all else: most of it makes room."""
        now = asyncio.get_running_loop().time()
        if wait := self._rates.spend(who, now, _owing(method)):
            text = f"{who} makes more than {RPC_RATE_MAX:.0f} calls a second while others call"
            raise Overloaded(text, max(1, round(1e3 * wait)))

    def count_named(self, caller: Caller, method: str, message: Any) -> None:
        """The same of what a call that was counted names: many blocks cost as much as many calls. A
        node or a conductor acts for callers that were counted where they called."""
        more = further_calls(message) if caller.role in (Role.CLIENT, Role.OPEN) else 0
        now = asyncio.get_running_loop().time()
        if more and (wait := self._rates.spend_more(caller.who, now, more, _owing(method))):
            text = f"{caller.who} names more blocks than go with {RPC_RATE_MAX:.0f} calls a second"
            raise Overloaded(f"{text} while others call", max(1, round(1e3 * wait)))

    def take_stream(self, method: str, who: str, task: asyncio.Task[None]) -> None:
        """A place for a stream, until its task has ended."""
        kind, places = "streams", self._streams
        if method in self._bulk_methods:
            kind, places = "streams of blocks", self._bulk
        elif method in self._open_methods:
            kind, places = "streams without a token", self._open
        if not places.try_take(who):
            raise Overloaded(
                f"{who} has {places.held(who)} of the {places.total} {kind} that are served at "
                f"once, and {places.free} are free: no tenant takes all",
                _RETRY_MS,
            )
        task.add_done_callback(lambda _: places.give_back(who))

    async def take_turn(
        self, who: str, task: asyncio.Task[None], hang_up: Callable[[], None]
    ) -> None:
        """A place for a unary call, until its task has ended; waits for one in line."""
        if not self._turns.try_enter(who):
            await self._wait(who)
        # A caller may begin a call and never send its message: its turn ends all the same.
        end = asyncio.get_running_loop().call_later(RPC_UNARY_SECONDS, hang_up)
        task.add_done_callback(lambda _: self._turn_ended(who, end))

    async def _wait(self, who: str) -> None:
        if not self._seats.try_take(who):
            text = f"{self._seats.held(who)} calls of {who} wait already"
            raise Overloaded(text, _RETRY_MS)
        try:
            await self._turns.enter(who)
        finally:
            self._seats.give_back(who)

    def _turn_ended(self, who: str, end: asyncio.TimerHandle) -> None:
        end.cancel()
        self._turns.leave(who)


def _owing(method: str) -> float:
    """So many calls its tenant may owe by now."""
    return RPC_OWED_MAX if method in _OF_HOLDS else 0.0
