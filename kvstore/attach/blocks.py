"""Which blocks of KV are where in a fleet, and were: known by their tokens.

What an engine calls a block is its own: two engines may start their hashes from different seeds. So
a block is named anew by its tokens and those before it, and equal blocks of two engines are one.
A block behind one that nobody told of is named behind the engine's own name for that.

An engine that computes a block it has already has it twice, and says twice that it is gone.
Pure: what is true follows from the events alone. What is remembered is bounded.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from kvstore.block import following
from kvstore.client.kv_events.messages import Hash, Stored
from kvstore.limits import ATTACH_BLOCKS_MAX, HASH_BYTES

NONE = -1  # what stands before the first block of a prompt
_SPACE = b"\0" * HASH_BYTES  # names are compared within one process


class Reason(StrEnum):
    """Why an engine that computed a block did not have it, as far as blocks tell."""

    HERE = "here already"  # the end of a prompt that it has whole, or prompts side by side
    EVICTED = "evicted"  # it had it
    ELSEWHERE = "elsewhere"  # another engine has it
    GONE = "gone elsewhere"  # another engine had it
    NEVER = "never seen"


@dataclass(frozen=True, slots=True)
class Computed:
    """Consecutive blocks that an engine computed."""

    before: int  # number of the block before them, or NONE
    numbers: tuple[int, ...]
    reasons: tuple[Reason, ...]


class Blocks:
    """Of a fleet of so many engines. `left_out` counts blocks by why they are not known."""

    def __init__(self, engines: int, blocks_max: int = ATTACH_BLOCKS_MAX) -> None:
        self.block_tokens = 0
        self._size_known = False
        self.left_out: Counter[str] = Counter()
        self._max = blocks_max
        self._numbers: dict[bytes, int] = {}
        self._names: list[bytes] = []
        self._before: list[int] = []
        self._depth: list[int] = []  # blocks from the start to this one; 0: no block, but a name
        self._here: list[int] = []  # engines that have it, as bits
        self._ever: list[int] = []  # and had it
        self._called: list[dict[Hash, int]] = [{} for _ in range(engines)]
        self._copies: list[Counter[int]] = [Counter() for _ in range(engines)]  # beside the first

    def __len__(self) -> int:
        return len(self._names)

    def depth(self, number: int) -> int:
        """Blocks of its prompt up to this one, as far as is known."""
        return 0 if number == NONE else self._depth[number]

    def path(self, last: int) -> list[int]:
        """The blocks of a prompt up to this one, from its start."""
        found = []
        while last != NONE and self._depth[last]:
            found.append(last)
            last = self._before[last]
        return found[::-1]

    def before(self, number: int) -> int:
        return self._before[number]

    def has(self, engine: int, number: int) -> bool:
        return bool(self._here[number] >> engine & 1)

    def has_all(self, engine: int, hashes: tuple[Hash, ...]) -> bool:
        numbers = map(self._called[engine].get, hashes)
        return all(number is not None and self.has(engine, number) for number in numbers)

    def store(self, engine: int, event: Stored) -> Computed | None:
        """These were computed by an engine. None where they cannot be told apart from others."""
        self._learn_size(event)
        if event.block_tokens != self.block_tokens:
            self.left_out["of another size"] += len(event.hashes)
            return None
        called, more = self._called[engine], len(event.hashes) + 1
        if max(len(self._names), len(called)) + more > self._max:
            self.left_out["too many"] += len(event.hashes)
            return None
        before = NONE
        if event.parent is not None:
            known = called.get(event.parent)
            before = self._stranger(event.parent) if known is None else known
        name = b"" if before == NONE else self._names[before]
        names = following(_SPACE, 0, name, event.tokens, self.block_tokens)
        numbers, reasons, behind = [], [], before
        for raw, name in zip(event.hashes, names, strict=True):
            number = self._number(name, behind)
            numbers.append(number)
            reasons.append(self._why(engine, number))
            if called.get(raw, number) != number:
                self._go(engine, called[raw])  # another block has its name now
            self._come(engine, number)
            called[raw] = behind = number
        return Computed(before, tuple(numbers), tuple(reasons))

    def remove(self, engine: int, hashes: tuple[Hash, ...]) -> None:
        """An engine let go of these, or of one of two that it had."""
        called, copies = self._called[engine], self._copies[engine]
        for raw in hashes:
            number = called.get(raw)
            if number is None:
                continue
            if copies[number] > 0:
                copies[number] -= 1
                continue
            self._go(engine, number)
            del called[raw]

    def forget(self, engine: int) -> None:
        """An engine has nothing any more, or nobody knows what it has."""
        for number in self._called[engine].values():
            self._go(engine, number)
        self._called[engine].clear()

    def check(self) -> None:
        for engine, called in enumerate(self._called):
            held = {number for number, bits in enumerate(self._here) if bits >> engine & 1}
            assert held <= set(called.values()), "an engine has what it did not tell of"
            assert not self._copies[engine].keys() - held, "two of what is not there"
        for number, before in enumerate(self._before):
            assert before < number, "a block stands before the one before it"
            assert not self._here[number] & ~self._ever[number], "it is there and never came"
            assert self._depth[number] in (0, self.depth(before) + 1)

    def _learn_size(self, event: Stored) -> None:
        """It is that of the first blocks that are told of together, and until some are, of the
        largest: vLLM tells also of a block that is not full, if alone."""
        if not self._size_known:
            self._size_known = len(event.hashes) > 1
            least = 0 if self._size_known else self.block_tokens
            self.block_tokens = max(least, event.block_tokens)

    def _why(self, engine: int, number: int) -> Reason:
        here, ever, bit = self._here[number], self._ever[number], 1 << engine
        if here & bit:
            return Reason.HERE
        if ever & bit:
            return Reason.EVICTED
        if here:
            return Reason.ELSEWHERE
        return Reason.GONE if ever else Reason.NEVER

    def _come(self, engine: int, number: int) -> None:
        if self.has(engine, number):
            self._copies[engine][number] += 1
        self._here[number] |= 1 << engine
        self._ever[number] |= 1 << engine

    def _go(self, engine: int, number: int) -> None:
        self._here[number] &= ~(1 << engine)
        del self._copies[engine][number]

    def _number(self, name: bytes, before: int) -> int:
        known = self._numbers.get(name)
        if known is None:
            known = self._new(name, before, self.depth(before) + 1)
        return known

    def _stranger(self, raw: Hash) -> int:
        """What stands for a block that nobody told of."""
        name = hashlib.blake2b(repr(raw).encode(), digest_size=HASH_BYTES).digest()
        known = self._numbers.get(name)
        return self._new(name, NONE, 0) if known is None else known

    def _new(self, name: bytes, before: int, depth: int) -> int:
        number = self._numbers[name] = len(self._names)
        self._names.append(name)
        self._before.append(before)
        self._depth.append(depth)
        self._here.append(0)
        self._ever.append(0)
        return number
