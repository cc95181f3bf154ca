"""Which blocks of a request a worker is told of, and the pages that their tokens lie in."""

from __future__ import annotations

from typing import Any

from .messages import Part, Ready
from .tracked import Tracked
from .unproven import Pages
from .usable import window_start


class Parts:
    """Those of the groups that the workers keep."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready

    def needed(
        self, tracked: Tracked, begin: int, end: int, pages: Pages, hit: int
    ) -> tuple[Part, ...]:
        """The blocks that hold tokens [begin, end), of each group what a hit of `hit` tokens needs
        of them."""
        parts = []
        for group, chain in enumerate(tracked.loaded_chains()):
            window, size = self._ready.windows[group], chain.block_tokens
            first = max(begin, window_start(hit, window)) if window else begin
            if first < end:
                parts.append(self._part(group, chain, first // size, -(-end // size), pages))
        return tuple(parts)

    def whole(self, tracked: Tracked, first: int, last: int, pages: Pages) -> tuple[Part, ...]:
        """Blocks [first, last) of every group."""
        chains = enumerate(tracked.chains())
        return tuple(self._part(group, chain, first, last, pages) for group, chain in chains)

    def _part(self, group: int, chain: Any, first: int, last: int, pages: Pages) -> Part:
        return Part(
            group,
            first,
            chain.hashes[first:last],
            chain.parent(first),
            tuple(pages[self._ready.vllm_groups[group]]),
            chain.tokens[last - 1],
        )
