"""Which of the blocks that SGLang tells of are of one prompt, and which are of its answer.

It tells of blocks when they enter its tree. Those of a prompt do once it is computed, or a piece of
it is: the last two pieces in one batch, those before in consecutive ones. Those of an answer enter
together when the answer ends, and are told of at the next occasion. So what comes first behind a
prompt's end is its answer, whatever its length, unless it came faster than any answer is made; and
what comes behind an answer's is a prompt, the next turn.

Who asks with what was just another's whole prompt, of whose answer nothing was told since it filled
no block, is taken for that answer. `kvstore.attach.reasons` puts right what counters show of that.
"""

from __future__ import annotations

from kvstore.attach.prompts import End, Prompts

ANSWER_TOKEN_SECONDS = 2e-3  # nobody is answered faster; a prefill takes a tenth of that


class TreePrompts(Prompts):
    """Of one engine. What is said of it comes in the order in which it was published."""

    def _may_answer(self, end: End, count: int) -> bool:
        return not end.answers and end.batch != self._batch

    def _goes_on(self, at: float, end: End, count: int) -> bool:
        if end.answers or end.batch < self._batch - 1:
            return False
        if end.batch == self._batch:
            return True
        return at - end.at < ANSWER_TOKEN_SECONDS * self._tokens(count)
