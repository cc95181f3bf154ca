"""The demo's requests: chats that share a system prompt, documents asked about several times.

Deterministic by seed. A chat's next turn is made from its last answer, as a chat server would, so a
turn can only be built once the turn before it has been answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvstore.gateway.request import Request

NEW_TOKENS = 16

Answer = Callable[["Ask"], list[int]]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    id: str
    kind: str  # cold, chat, document, repeat
    prompt: tuple[int, ...]
    new_tokens: int = NEW_TOKENS

    def request(self) -> Request:
        """Through the pool."""
        return Request(self.id, self.prompt, self.new_tokens, ignore_eos=True)

    def alone(self) -> Request:
        """The same computed by one engine alone."""
        return replace(self.request(), id=f"{self.id} alone", without_pool=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a workload is. The default makes 46 requests of about 500 to 4,000 tokens."""

    chats: int = 6
    turns: int = 4
    documents: int = 2
    questions: int = 6
    lone: int = 5
    repeats: int = 5
    system_tokens: int = 850
    turn_tokens: tuple[int, int] = (60, 260)
    document_tokens: tuple[int, int] = (2_300, 3_700)
    lone_tokens: tuple[int, int] = (500, 1_400)

    @property
    def requests(self) -> int:
        chats = self.chats * self.turns
        return chats + self.documents * self.questions + self.lone + self.repeats


class Workload:
    """Requests in the order they arrive; `answered` feeds the next turns."""

    def __init__(self, vocabulary: range, shape: Shape, seed: int) -> None:
        self.shape = shape
        self._vocabulary = vocabulary
        self._dice = random.Random(seed)

    def requests(self, answer: Answer) -> Iterator[Ask]:
        """Yield each request once; `answer` gives its tokens when the next turn needs them."""
        shape, dice = self.shape, self._dice
        system = self._words(shape.system_tokens)
        chats = [list(system) for _ in range(shape.chats)]
        documents = [
            self._words(dice.randint(*shape.document_tokens)) for _ in range(shape.documents)
        ]
        plan = [("chat", c, t) for t in range(shape.turns) for c in range(shape.chats)]
        plan += [("document", d, q) for q in range(shape.questions) for d in range(shape.documents)]
        plan += [("cold", i, 0) for i in range(shape.lone)]
        # Shuffled, but the turns of one chat stay in order.
        order = sorted(range(len(plan)), key=lambda i: (plan[i][2], dice.random()))
        made: list[Ask] = []
        for i in order:
            kind, which, number = plan[i]
            if kind == "chat":
                chats[which] += self._words(dice.randint(*shape.turn_tokens))
                prompt = chats[which]
            elif kind == "document":
                prompt = documents[which] + self._words(dice.randint(30, 90))
            else:
                prompt = self._words(dice.randint(*shape.lone_tokens))
            ask = Ask(f"{kind}-{which}.{number}", kind, tuple(prompt))
            made.append(ask)
            yield ask
            if kind == "chat":
                chats[which] += answer(ask)
        for i in range(shape.repeats):
            again = dice.choice(made)
            yield Ask(f"repeat-{i}", "repeat", again.prompt, again.new_tokens)

    def _words(self, count: int) -> list[int]:
        return [self._dice.choice(self._vocabulary) for _ in range(count)]
