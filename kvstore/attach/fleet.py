"""What is known of a fleet from its events: where blocks are, and what was computed why.

Events count from `begin` on, and once; those before it, and those that are said again, only tell
what is where. Pure, and not for several threads at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvstore.attach.blocks import Blocks, Computed, Reason
from kvstore.attach.kinds import Kind
from kvstore.attach.prompts import Prompts, Step
from kvstore.attach.tree_prompts import TreePrompts
from kvstore.client.kv_events.messages import Cleared, Event, Removed, Stored
from kvstore.limits import ATTACH_BLOCKS_MAX, ATTACH_STEPS_MAX


@dataclass(slots=True)
class Seen:
    """Blocks that one engine computed, by why it did not have them."""

    prompts: Counter[Reason] = field(default_factory=Counter)
    answers: Counter[Reason] = field(default_factory=Counter)
    losses: int = 0  # how often events were lost
    unread: int = 0  # events or blocks that nothing could be made of
    tells_twice: bool = True  # of blocks that it computes and has

    @property
    def heard_all(self) -> bool:
        return not self.losses and not self.unread


class Fleet:
    """`steps` is what a replay goes through; `unrecorded` counts those that it has not. `kinds` are
    those of its engines."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        blocks_max: int = ATTACH_BLOCKS_MAX,
        steps_max: int = ATTACH_STEPS_MAX,
    ) -> None:
        self.kinds = kinds
        self.blocks = Blocks(len(kinds), blocks_max)
        self._prompts = [
            (TreePrompts if kind.in_tree else Prompts)(engine, self.blocks)
            for engine, kind in enumerate(kinds)
        ]
        self._steps_max = steps_max
        self.begin()

    def begin(self) -> None:
        """What comes from now on counts."""
        self.seen = [Seen(tells_twice=kind.tells_twice) for kind in self.kinds]
        self.steps: list[Step] = []
        self.unrecorded = 0
        self.blocks.left_out.clear()

    @property
    def all_seen(self) -> Seen:
        """Of all engines."""
        found = Seen()
        for one in self.seen:
            found.prompts += one.prompts
            found.answers += one.answers
            found.losses += one.losses
            found.unread += one.unread
            found.tells_twice &= one.tells_twice
        return found

    def take(self, engine: int, at: float, events: Sequence[Event]) -> None:
        """One batch of an engine, in its order, `at` seconds."""
        prompts, news = self._prompts[engine], self._place(engine, events)
        counts = [len(one.numbers) for one in news if isinstance(one, Computed)]
        prompts.begin_batch(sum(counts), len(counts))
        for one in news:
            if isinstance(one, Computed):
                self._count(engine, at, one)
            else:
                prompts.forget()

    def recall(self, engine: int, events: Sequence[Event]) -> None:
        """A batch that was taken before what is where was lost."""
        counted = self.blocks.left_out.copy()
        self._place(engine, events)
        self.blocks.left_out = counted

    def lost(self, engine: int) -> None:
        """Some of what an engine said did not come: what it has now is not known. Prompts and
        answers go on once what they have is recalled."""
        self.seen[engine].losses += 1
        self.blocks.forget(engine)

    def _news(self, engine: int, events: Sequence[Event]) -> Iterator[Event]:
        """All but what a prompt reuses, of which vLLM tells where a request wants it reported in
        full: it looks like what is computed, and stands before what the prompt computes behind it.
        Whoever computed blocks that are here would go on in a later step."""
        behind = {one.parent for one in events if isinstance(one, Stored)}
        for event in events:
            if (
                isinstance(event, Stored)
                and event.parent is None
                and event.hashes[-1] in behind
                and self.blocks.has_all(engine, event.hashes)
            ):
                continue
            yield event

    def _place(self, engine: int, events: Sequence[Event]) -> list[Computed | Cleared]:
        """Blocks are where these say. Gives what was computed, and where all was cleared."""
        news: list[Computed | Cleared] = []
        for event in self._news(engine, events):
            match event:
                case Stored():
                    computed = self.blocks.store(engine, event)
                    if computed is not None:
                        news.append(computed)
                case Removed():
                    self.blocks.remove(engine, event.hashes)
                case Cleared():
                    self.blocks.forget(engine)
                    news.append(event)
        return news

    def _count(self, engine: int, at: float, computed: Computed) -> None:
        answers, steps = self._prompts[engine].take(at, computed)
        seen = self.seen[engine]
        (seen.answers if answers else seen.prompts).update(computed.reasons)
        if len(self.steps) + len(steps) > self._steps_max:
            self.unrecorded += len(steps)
        else:
            self.steps += steps
