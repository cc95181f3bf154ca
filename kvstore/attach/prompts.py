"""Which of the blocks that one engine computes are of one prompt, and which are of its answer.

An engine says what it computes and not for whom. A prompt's blocks come in one step or, where it is
computed in pieces, in consecutive ones; a block of an answer comes alone, when enough tokens of it
were made, behind the block that ended the prompt or the answer so far. So a single block behind
such an end is taken for an answer's, save where the step before it was as full as any: then the
prompt goes on, if it does within the time of such a step. A step's blocks are published when it is
over, so pieces of a prompt follow each other in consecutive batches.

This is a guess for single blocks, and only for those; `kvstore.attach.reasons` puts right what the
engine's counters show it to have got wrong.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

from kvstore.attach.blocks import Blocks, Computed, Reason

ENDS_MAX = 4_096  # of prompts and answers that may go on: no engine runs as many at once
TOKEN_SECONDS = 0.5  # of an answer: who has said nothing for a block of such tokens has ended
STEP_SECONDS = 2.0  # no engine computes longer at a piece of a prompt
PIECES = 8.0  # over which the time between two is a mean


@dataclass(eq=False, slots=True)
class Use:
    """One prompt, as far as its whole blocks tell."""

    engine: int
    at: float
    found: int  # leading blocks that the engine had itself
    last: int  # its last block
    whole: bool = False  # all its blocks were there, and the last was computed for its logits


@dataclass(frozen=True, slots=True)
class Filled:
    """An engine has computed so many blocks, up to this one."""

    engine: int
    at: float
    last: int
    count: int


Step: TypeAlias = Use | Filled


@dataclass(eq=False, slots=True)
class End:
    """Where a prompt or its answer is at an engine."""

    use: Use
    at: float
    batch: int
    full: bool  # so was the step
    answers: bool = False


class Prompts:
    """Of one engine. What is said of it comes in the order in which it was published."""

    def __init__(self, engine: int, blocks: Blocks) -> None:
        self._engine, self._blocks = engine, blocks
        self._ends: OrderedDict[int, End] = OrderedDict()  # by the last block
        self._batch = self._most = 0
        self._full = False
        self._apart = 0.0  # seconds between two pieces of one prompt, on average

    def begin_batch(self, blocks: int, prompts: int) -> None:
        """One more has come, with so many blocks of so many prompts and answers."""
        self._batch += 1
        self._most = max(self._most, blocks)
        # Each may have less than a block more in the step.
        self._full = blocks >= max(2, self._most - prompts)

    def forget(self) -> None:
        self._ends.clear()

    def take(self, at: float, computed: Computed) -> tuple[bool, list[Step]]:
        """Whether these blocks are of an answer, and what happened."""
        end, count = self._ends.pop(computed.before, None), len(computed.numbers)
        if end is not None and at - end.at > TOKEN_SECONDS * self._tokens(count):
            end = None
        steps: list[Step] = [Filled(self._engine, at, computed.numbers[-1], count)]
        answers = False
        if end is not None and self._goes_on(at, end, count):
            end.use.last = computed.numbers[-1]
        elif end is not None and self._may_answer(end, count):
            answers = True
        else:
            whole = computed.reasons == (Reason.HERE,)
            found = self._blocks.depth(computed.before)
            end = End(Use(self._engine, at, found, computed.numbers[-1], whole), at, 0, False)
            steps.insert(0, end.use)
        now = End(end.use, at, self._batch, self._full, answers)
        self._ends[computed.numbers[-1]] = now
        while len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
        return answers, steps

    def _tokens(self, count: int) -> int:
        return count * self._blocks.block_tokens

    def _may_answer(self, end: End, count: int) -> bool:
        """Whether so many blocks behind this end, which are no more of its prompt, answer it."""
        return count == 1

    def _goes_on(self, at: float, end: End, count: int) -> bool:
        """Whether what comes behind this end is one more piece of the same prompt."""
        if end.answers or end.batch != self._batch - 1 or not end.full:
            return False
        apart = at - end.at
        if count == 1:  # less than a full step, so it takes no longer
            return apart <= self._apart
        if apart <= STEP_SECONDS:  # later it is the next turn of who had this prompt's answer
            self._apart += (apart - self._apart) / PIECES if self._apart else apart
        return apart <= STEP_SECONDS
