"""Pinned blocks read where they lie: verified in place, no copy at all.

The views are of the node's own memory, read-only. They are the blocks' bytes while the pins hold:
`confirm` after use says whether they did.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvstore.block import Chain, Miss
from kvstore.client.connection import Connection
from kvstore.client.opened import Opened
from kvstore.client.space import Space
from kvstore.errors import Invalid


class Pinned:
    """The leading blocks of a chain that could be pinned and had their hash."""

    def __init__(self, connection: Connection, space: Space, chain: Chain, pin_ms: int) -> None:
        self._opened = Opened(connection, space, chain, (), pin_ms)
        self._space = space
        layout = space.layout
        try:
            good = self._opened.link.transport.verify(layout, self._opened.slots, layout.whole)
        except BaseException:
            self._opened.close()
            raise
        self._bad = ~good
        self.blocks = int(good.argmin()) if not good.all() else len(good)
        self.miss: Miss | None = self._opened.miss if good.all() else Miss.DAMAGED
        self._slots = self._opened.slots.pick(slice(0, self.blocks))
        self.tokens: tuple[int, ...] = tuple(int(n) for n in self._slots.tokens)

    def views(self) -> list[npt.NDArray[np.uint8]]:
        """(layers, KV heads, block tokens, token bytes) of each block; a short block fills less.

        Raises `Invalid` where a codec keeps the blocks: their bytes are not the KV.
        """
        layout, stored = self._space.layout, self._space.spec.stored
        if layout.coding is not None:
            raise Invalid(f"the namespace keeps KV as {stored}: there are no views; use get")
        shape = (layout.layers, layout.kv_heads, layout.block_tokens, layout.token_bytes)
        views = self._opened.link.transport.views(layout, self._slots)
        return [view.reshape(shape) for view in views]

    def confirm(self) -> int:
        """Leading blocks that were theirs all along: what was read from later ones is void."""
        nothing = np.zeros(len(self._slots), dtype=bool)  # was copied
        current = self._opened.link.transport.current(self._slots, nothing)
        return int(current.argmin()) if not current.all() else len(current)

    def close(self) -> None:
        self._opened.close(self._bad)

    def __enter__(self) -> Pinned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
