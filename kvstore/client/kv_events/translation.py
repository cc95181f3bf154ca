"""An engine's own blocks as blocks of ours: by their names here, in our size.

The engine's blocks are a forest: each is where its chain says, with the tokens that it has. A block
of ours ends in one of them, and is there while that one and all before it in its chain are: so what
is told is whole from its start, whatever the engine lets go of first, and where an engine's block
is no multiple of ours, or ours none of its, a block of ours is there when all that cover it are.

An engine that has a block twice says so once, and says that it is gone when the first one is: then
it counts as gone until the engine says that it has it. A block that follows an unknown one is left
out, as nobody knows where it is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvstore.client.kv_events.messages import Cleared, Event, Hash, Removed, Stored, Tokens
from kvstore.naming import Names

BLOCKS_MAX = 1 << 18  # of an engine's that are remembered, half a KiB each
_NO_TOKENS: Tokens = np.zeros(0, np.uint32)


@dataclass(slots=True, eq=False)
class _Block:
    """One of the engine's. It is remembered while it is held, or one that follows it is."""

    name: Hash
    before: _Block | None  # None: it stands for a chain's start
    ours: tuple[bytes, ...]  # links of those that end in it
    last: bytes  # of these, the last that ends in it or before it; empty: none does
    rest: Tokens  # behind that
    held: bool = False
    there: bool = False  # held, and all before it
    after: set[_Block] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Change:
    """Of what is there, in this order."""

    cleared: bool
    dropped: Sequence[bytes]
    held: Sequence[bytes]  # prefixes before what follows them


class Translation:
    """Of one engine, to blocks of so many tokens under these names. `left_out` counts the engine's
    blocks that are not told of, by the reason."""

    def __init__(self, names: Names, block_tokens: int, blocks_max: int = BLOCKS_MAX) -> None:
        self._names, self._size, self._blocks_max = names, block_tokens, blocks_max
        self.left_out: Counter[str] = Counter()
        self._changes: dict[bytes, bool] = {}  # of ours: whether each came, or went
        self._forget()

    def take(self, events: Iterable[Event]) -> Change:
        """What these events change."""
        cleared = False
        for event in events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    for name in event.hashes:
                        self._remove(name)
                case Cleared():
                    cleared = True
                    self._forget()
        changes, self._changes = self._changes, {}
        dropped = self._names.named([one for one, came in changes.items() if not came])
        held = self._names.named([one for one, came in changes.items() if came])
        return Change(cleared, dropped, held)

    def __len__(self) -> int:
        """The engine's blocks that are remembered."""
        return len(self._blocks)

    def check(self) -> None:
        ends: Counter[bytes] = Counter()
        for name, block in self._blocks.items():
            assert block.name == name and block.before is not None
            assert block in block.before.after, "a block follows nothing"
            assert block.held or block.after, "a block is remembered for nothing"
            assert block.there == (block.held and block.before.there)
            if block.there:
                ends.update(block.ours)
        assert ends == self._ends, "blocks of ours are miscounted"

    def _forget(self) -> None:
        self._start = _Block(b"", None, (), b"", _NO_TOKENS, held=True, there=True)
        self._blocks: dict[Hash, _Block] = {}
        # How many of the engine's that are there end each of ours: more than one where prompts part
        # within a block of the engine's.
        self._ends: Counter[bytes] = Counter()
        self._changes.clear()

    def _store(self, event: Stored) -> None:
        before = self._start if event.parent is None else self._blocks.get(event.parent)
        if before is None:
            self.left_out["behind an unknown one"] += len(event.hashes)
            return
        for at, name in enumerate(event.hashes):
            block = self._blocks.get(name)
            if block is None:
                if len(self._blocks) >= self._blocks_max:
                    self.left_out["too many"] += len(event.hashes) - at
                    return
                first = at * event.block_tokens
                tokens = event.tokens[first : first + event.block_tokens]
                if (block := self._new(name, before, tokens)) is None:
                    self.left_out["key unknown"] += len(event.hashes) - at
                    return
            elif block.before is not before:
                self.left_out["two of one name"] += len(event.hashes) - at
                return
            block.held = True
            if before.there and not block.there:
                self._arrive(block)
            before = block

    def _new(self, name: Hash, before: _Block, tokens: Tokens) -> _Block | None:
        """None where its name is of more than its tokens."""
        tokens = np.concatenate([before.rest, tokens])
        ours = self._names.links(before.last, tokens)
        if ours and not self._names.told_as(ours[-1], name):
            return None
        rest = tokens[len(ours) * self._size :].copy()  # a view would keep the whole event
        last = ours[-1] if ours else before.last
        block = self._blocks[name] = _Block(name, before, ours, last, rest)
        before.after.add(block)
        return block

    def _remove(self, name: Hash) -> None:
        block = self._blocks.get(name)
        if block is None:
            return
        block.held = False
        if block.there:
            self._leave(block)
        while block.before is not None and not block.held and not block.after:
            del self._blocks[block.name]
            block.before.after.remove(block)
            block = block.before

    def _arrive(self, block: _Block) -> None:
        """It is there now, and so are those behind it that were waiting for it."""
        line = deque([block])
        while line:
            one = line.popleft()
            one.there = True
            for ours in one.ours:
                self._ends[ours] += 1
                if self._ends[ours] == 1:
                    self._changed(ours, True)
            line.extend(behind for behind in one.after if behind.held)

    def _leave(self, block: _Block) -> None:
        """It is not there any more, nor is anything behind it."""
        line = deque([block])
        while line:
            one = line.popleft()
            one.there = False
            for ours in one.ours:
                self._ends[ours] -= 1
                if not self._ends[ours]:
                    del self._ends[ours]
                    self._changed(ours, False)
            line.extend(behind for behind in one.after if behind.there)

    def _changed(self, ours: bytes, came: bool) -> None:
        if self._changes.pop(ours, came) is came:
            self._changes[ours] = came
