"""Follows an engine's KV events, and tells its conductors which blocks it holds itself.

Where events are lost, conductors forget what they were told, and learn from then on what comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from kvstore.client.kv_events.messages import Cleared, Event, Messages
from kvstore.client.kv_events.subscription import Source, Subscription
from kvstore.client.kv_events.translation import Translation


class Teller(Protocol):
    """Whoever passes it on: see `kvstore.client.reporter.Reporter`."""

    def own(self, dropped: Sequence[bytes], held: Sequence[bytes]) -> None: ...
    def forget_own(self) -> None: ...


class OwnCache:
    """Of one engine, until `close`. `group` is the engine's KV group that `translation` is of.
    Raises `ConfigError` where what it takes is not installed."""

    def __init__(
        self, source: Source, translation: Translation, teller: Teller, group: int = 0
    ) -> None:
        self._translation, self._teller = translation, teller
        self._messages = Messages(group)
        self.losses = 0  # how often events were lost
        self._subscription = Subscription(source, self._messages, self._take, self._lost)

    @property
    def left_out(self) -> Counter[str]:
        """Events that were passed over, and blocks that are not told of, by the reason."""
        return self._messages.passed_over + self._translation.left_out

    def close(self) -> None:
        self._subscription.close()

    def _take(self, events: list[Event]) -> None:
        change = self._translation.take(events)
        if change.cleared:
            self._teller.forget_own()
        if change.dropped or change.held:
            self._teller.own(change.dropped, change.held)

    def _lost(self) -> None:
        self.losses += 1
        self._take([Cleared()])
