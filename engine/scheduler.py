"""Which sequences run how many tokens in the next step, and who comes in from the queue.

Nothing running is ever preempted or starved: pages for prompt and answer are reserved on entry,
decodes go first at one token each, and there are fewer of them than the step has room for, so the
oldest prefill always advances. Entry is in order of arrival, so a large request is not overtaken
for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kvstore.errors import Invalid

from .errors import BadRequest, RequestTooLong
from .sequence import Chunk, Request, Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and a request may take."""

    max_batch_tokens: int = 512  # tokens computed in one step
    max_running: int = 64  # sequences that hold pages
    max_request_tokens: int = 8192  # prompt and answer: what model and cache hold at all
    vocab_size: int = 1 << 31

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= self.max_batch_tokens:
            raise Invalid(
                f"max_running {self.max_running} must be 1 to max_batch_tokens "
                f"({self.max_batch_tokens}), so that all of them advance in every step"
            )


def plan(running: Iterable[Sequence], max_batch_tokens: int) -> list[Chunk]:
    """The next step's chunks: each decoding sequence's token, then prefill by age. Pure.

    A sequence whose prefix is still landing sits the step out.
    """
    sequences = [one for one in running if not one.loading]
    # A prompt's very last token alone is a decode in all but name: it is cheap and yields a token.
    decoding = [one for one in sequences if one.remaining == 1]
    prefilling = [one for one in sequences if one.remaining > 1]
    left, chunks = max_batch_tokens, []
    for sequence in decoding + prefilling:
        count = min(left, sequence.remaining)
        if count == 0:
            break
        start, end = sequence.computed_tokens, sequence.computed_tokens + count
        chunks.append(Chunk(sequence, start, end, last=count == sequence.remaining))
        left -= count
    return chunks


def refusal(request: Request, limits: Limits) -> BadRequest | None:
    """Why this request can never run, or None. Pure."""
    if not request.prompt:
        return BadRequest(f"request {request.id}: the prompt has no tokens")
    if request.max_new_tokens < 1:
        return BadRequest(f"request {request.id}: max_new_tokens must be at least 1")
    if request.length > limits.max_request_tokens:
        return RequestTooLong(
            f"request {request.id}: {len(request.prompt)} prompt and {request.max_new_tokens} new "
            f"tokens are more than the {limits.max_request_tokens} that fit"
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < limits.vocab_size:
        return BadRequest(f"request {request.id}: token ids must be 0..{limits.vocab_size - 1}")
    return None


class Scheduler:
    """The waiting queue and the running set, both in order of arrival."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: dict[str, Sequence] = {}

    def add(self, request: Request) -> Sequence:
        """Queue a request, or raise `BadRequest` or `RequestTooLong`."""
        refused = refusal(request, self.limits)
        if refused is not None:
            raise refused
        if self.find(request.id) is not None:
            raise BadRequest(f"request {request.id}: this id is waiting or running already")
        sequence = Sequence(request)
        self.waiting.append(sequence)
        return sequence

    def find(self, request_id: str) -> Sequence | None:
        """The waiting or running sequence of this id."""
        if request_id in self.running:
            return self.running[request_id]
        return next((one for one in self.waiting if one.id == request_id), None)

    def next_in_line(self) -> Sequence | None:
        """Who enters next if there are pages for it; None if nobody waits or the set is full."""
        full = len(self.running) >= self.limits.max_running
        return None if full or not self.waiting else self.waiting[0]

    def enter(self, sequence: Sequence) -> None:
        """Move the next in line, which has its pages now, into the running set."""
        assert self.waiting[0] is sequence
        self.running[self.waiting.popleft().id] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if self.running.pop(sequence.id, None) is None:
            self.waiting.remove(sequence)

    def plan(self) -> list[Chunk]:
        """The next step's chunks; empty when nothing runs."""
        return plan(self.running.values(), self.limits.max_batch_tokens)
