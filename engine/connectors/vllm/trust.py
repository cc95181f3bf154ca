"""Which hits are loaded and which are computed and compared: pure, but for a seeded die.

Blocks of an origin (a kind of engine and the layout it writes from) that this engine has not
compared yet are computed, not loaded, until so many hits have agreed: a misread layout is found
before any request uses its KV. Of the hits that may be loaded a random few are compared too, which
finds KV that is wrong for whatever reason, and says without bias what loading saves.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Collection


class Verb(enum.Enum):
    """What is done with a hit."""

    LOAD = "load"
    TEST = "self_test"  # an origin is new here
    AUDIT = "audit"  # drawn at random
    REFUSE = "refuse"  # its blocks were found wrong


class Trust:
    """What one engine has seen of the origins of the blocks it meets."""

    def __init__(self, *, self_test: bool, hits: int, rate: float, seed: int) -> None:
        self._wanted = hits if self_test else 0
        self._rate, self._die = rate, random.Random(seed)
        self._agreed: dict[int, int] = {}
        self.wrong: dict[int, str] = {}  # origin -> what was wrong with it
        self.quarantined = ""

    def verb(self, origins: Collection[int]) -> Verb:
        """What to do with the next hit. Draws the die only for hits that may be loaded."""
        if self.quarantined or any(one in self.wrong for one in origins):
            return Verb.REFUSE
        if any(self._agreed.get(one, 0) < self._wanted for one in origins):
            return Verb.TEST
        return Verb.AUDIT if self._die.random() < self._rate else Verb.LOAD

    def agreed(self, origins: Collection[int]) -> list[int]:
        """A hit's blocks were as computed; the origins that may be loaded from now on."""
        opened = []
        for one in origins:
            self._agreed[one] = self._agreed.get(one, 0) + 1
            if self._agreed[one] == self._wanted:
                opened.append(one)
        return opened

    def differed(self, origins: Collection[int], what: str, *, random: bool) -> None:
        """A hit's blocks were not as computed."""
        if random:
            self.quarantined = what
        else:
            self.wrong.update(dict.fromkeys(origins, what))
