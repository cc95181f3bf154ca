"""An engine's prefix cache as vLLM keeps it: pages, least recently used first, and its events."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from kvstore.attach.asked import Asked
from kvstore.attach.fleet import Fleet
from kvstore.client.kv_events.messages import Event, Removed, Stored

IDLE_SECONDS = 5.0  # before each prompt

Key = tuple[int, ...]  # all tokens up to a block's end


class Replica:
    """Serves prompts one at a time, in pieces of so many tokens. Its hashes have their own seed."""

    def __init__(self, number: int, pages: int, block: int, piece: int) -> None:
        self.number, self._block, self._piece = number, block, piece
        self._free: OrderedDict[int, Key | None] = OrderedDict.fromkeys(range(pages))
        self._pages: dict[Key, set[int]] = {}  # that have a block
        self.asked = Asked()
        self.why: Counter[str] = Counter()  # what is true of blocks of prompts
        self.had: set[Key] = set()  # blocks that were ever here
        self.now = 0.0

    def has(self, key: Key) -> bool:
        return bool(self._pages.get(key))

    def serve(self, tokens: Sequence[int], answer: int, fleet: Fleet) -> None:
        size, rest = self._block, [7_000 + one for one in range(answer - 1)]
        text = [*tokens, *rest]
        keys = [tuple(text[:end]) for end in range(size, len(text) + 1, size)]
        hit = 0
        while hit < (len(tokens) - 1) // size and self.has(keys[hit]):
            hit += 1
        used: list[tuple[int, Key]] = []
        for key in keys[:hit]:
            page = min(self._pages[key])
            self._free.pop(page)
            used.append((page, key))
        done = hit * size
        self.now += IDLE_SECONDS
        while done < len(text):
            step = min(self._piece, len(tokens) - done) if done < len(tokens) else 1
            first, done = done // size, done + step
            self.now += 0.001 + 0.0001 * step
            events: list[Event] = []
            new = keys[first : done // size]
            for key in new:
                used.append((self._page(events), key))
                self._count(key, fleet, len(key) <= len(tokens))
            if new:
                parent = hash((self.number, keys[first - 1])) if first else None
                ids = np.array(text[first * size : done // size * size], np.uint32)
                names = tuple(hash((self.number, key)) for key in new)
                events.append(Stored(names, parent, ids, size))
            for page, key in used[len(used) - len(new) :]:
                self._pages.setdefault(key, set()).add(page)
                self.had.add(key)
            if events:
                fleet.take(self.number, self.now, events)
        for page, key in reversed(used):
            self._free[page] = key
        self.asked = replace(
            self.asked,
            queries=self.asked.queries + len(tokens),
            hits=self.asked.hits + hit * size,
            generated=self.asked.generated + answer,
            prompts=self.asked.prompts + 1,
        )

    def _page(self, events: list[Event]) -> int:
        page, old = self._free.popitem(last=False)
        if old is not None:
            self._pages[old].discard(page)
            events.append(Removed((hash((self.number, old)),)))
        return page

    others: Iterable[Replica] = ()

    def _count(self, key: Key, fleet: Fleet, asked: bool) -> None:
        if not asked:
            return
        if self.has(key):
            self.why["here"] += self._block
        elif key in self.had:
            self.why["evicted"] += self._block
        elif any(one.has(key) for one in self.others):
            self.why["elsewhere"] += self._block
        elif any(key in one.had for one in self.others):
            self.why["gone"] += self._block
        else:
            self.why["never"] += self._block


def replicas(count: int, pages: int, block: int = 4, piece: int = 16) -> list[Replica]:
    made = [Replica(number, pages, block, piece) for number in range(count)]
    for one in made:
        one.others = [other for other in made if other is not one]
    return made
