"""Write windows asked for before they are needed: their caller goes on while the node sees to it.

One thread at a time; it may be another than the one that asked.
"""

from __future__ import annotations

from collections.abc import Callable

from kvstore.client.reserving import Reserving
from kvstore.client.writer import Writer


class Windows:
    """On consecutive blocks of a chain; the `Writer` of them waits for the node's answer."""

    def __init__(
        self, ask: Callable[[], Reserving], again: Callable[[Callable[[], Writer]], Writer]
    ) -> None:
        """Asks, and waits at once for an answer that does not keep. `again` calls what it is given,
        and once more where the node has forgotten us."""
        self._ask, self._again = ask, again
        asked = ask()
        self.first = asked.first
        self._asked: Reserving | None = asked if asked.keeps else None
        self._writer: Writer | None = None if asked.keeps else Writer(asked)

    @property
    def writer(self) -> Writer:
        """Waits for what was asked for. Raises what the node refused it for."""
        if self._writer is None:
            self._writer = self._again(self._waited)
        return self._writer

    def _waited(self) -> Writer:
        asked, self._asked = self._asked, None
        return Writer(asked or self._ask())

    def abort(self) -> None:
        """Give up the blocks that are not sealed, waited for or not. Never raises."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.drop()
        if self._writer is not None:
            self._writer.abort()
