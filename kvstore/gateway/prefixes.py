"""Which beginnings prompts share, and how often they were asked for lately: a tree of blocks.

Pure, and bounded: what is asked for least is forgotten first. A request counts half as much after
ten minutes, so that the tree is of today's prompts. A beginning is known by its block's hash, of
which people see the first digits: no text can be read from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

BLOCKS_MAX = 20_000  # that are remembered
DEPTH_MAX = 256  # blocks of one prompt
HALF_LIFE_SECONDS = 600.0
SHOWN_MAX = 40  # beginnings
NAME_DIGITS = 8


@dataclass(slots=True, eq=False)
class _Block:
    """One of the tree; `weight` is how often it was asked for, as of `at`."""

    weight: float = 0.0
    at: float = 0.0
    tokens: int = 0  # of a prompt up to its end
    after: dict[bytes, _Block] = field(default_factory=dict)

    def now(self, now: float) -> float:
        return float(self.weight * 0.5 ** ((now - self.at) / HALF_LIFE_SECONDS))


class Prefixes:
    """Of one model's prompts. Engines of several kinds name blocks differently: a tree each."""

    def __init__(self) -> None:
        self._root, self._count = _Block(), 0

    def __len__(self) -> int:
        """Blocks that are remembered."""
        return self._count

    def add(self, hashes: Sequence[bytes], block_tokens: int, now: float) -> None:
        """A prompt was asked for, whose full blocks have these hashes."""
        block = self._root
        for one in (None, *hashes[:DEPTH_MAX]):
            if one is not None:
                found = block.after.get(one)
                if found is None:
                    found = block.after[one] = _Block(at=now, tokens=block.tokens + block_tokens)
                    self._count += 1
                block = found
            block.weight, block.at = block.now(now) + 1.0, now
        if self._count > BLOCKS_MAX:
            self._forget(now)

    def hottest(self, now: float) -> list[dict[str, Any]]:
        """As JSON, each behind the one it goes on from: a beginning that at least two prompts
        shared lately, up to where they part. `share` is of all requests, `depth` how many stand
        before it."""
        every = self._root.now(now)
        found: list[dict[str, Any]] = []
        if every > 0:
            self._walk(self._root, 0, (now, every), found)
        return found

    def _walk(
        self,
        block: _Block,
        depth: int,
        of: tuple[float, float],
        found: list[dict[str, Any]],
    ) -> None:
        now, every = of
        for name, one in sorted(block.after.items(), key=lambda item: -item[1].now(now)):
            weight = one.now(now)
            if weight < 1.5 or len(found) == SHOWN_MAX:
                return
            end = one
            while (only := _all_go_on(end, now)) is not None:
                end = only
            found.append(
                {
                    "name": name.hex()[:NAME_DIGITS],
                    "depth": depth,
                    "tokens": end.tokens,
                    "requests": weight,
                    "share": weight / every,
                }
            )
            self._walk(end, depth + 1, of, found)

    def _forget(self, now: float) -> None:
        """The lighter half. Nothing is lighter than what goes on from it."""
        weights = sorted(one.now(now) for one in _all(self._root))
        self._drop(self._root, weights[len(weights) // 2], now)

    def _drop(self, block: _Block, least: float, now: float) -> None:
        waiting = [block]
        while waiting:
            one = waiting.pop()
            for name, child in list(one.after.items()):
                if child.now(now) <= least:
                    self._count -= 1 + sum(1 for _ in _all(child))
                    del one.after[name]
                else:
                    waiting.append(child)


def _all_go_on(block: _Block, now: float) -> _Block | None:
    """The next block, if nearly all prompts that have this one have it too."""
    if not block.after:
        return None
    heaviest = max(block.after.values(), key=lambda one: one.now(now))
    return heaviest if heaviest.now(now) > 0.9 * block.now(now) else None


def _all(block: _Block) -> list[_Block]:
    """Those behind it."""
    found, waiting = [], list(block.after.values())
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting.extend(one.after.values())
    return found
