"""Which sequences run how many tokens in the next step, and who comes in from the queue.

Nothing running is ever starved: decodes go first at one token each, and there are fewer of them
than the step has room for, so the prefill that began first always advances, and ends. Pages for a
prompt and the first `answer_tokens` of its answer are reserved on entry, so what asks for no more
is never preempted. A longer answer takes pages as it goes on: how long it gets, nobody knows. Where
none are free, of those that may still need more the one that entered last gives its own up. It
enters again before whoever is due later, but for what needs no more pages than it enters with and
leaves enough for it once the largest that runs has ended. Entry, and which prefill begins next, is
by when a request is due: `turn` bounds by how much, so a large one is not overtaken for ever. Of
those due at one moment the first to arrive is first, so without anything said it is the order of
arrival.

A prompt enters when the step has room for its first tokens: whatever was published until then it
finds in the pool, and whoever is due sooner goes before it. If that step computes more of the same
prompt for another, it enters one later: else both would compute it. One that follows a prefill
elsewhere takes no such room, and enters as soon as there is a place.

When a request is due goes by what was to be computed of it when it came, what another had still to
compute left out. So one that came later may be due before another with which its prompt begins:
that one goes first then, or its KV would be computed while it waits on.

When a request is due is decided once, by whoever takes it in. Here no clock is read: ranks that
were told the same requests order them alike.
"""

from __future__ import annotations

from bisect import insort, insort_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvstore.errors import Invalid
from kvstore.limits import TOP_LOGPROBS_MAX

from .errors import BadRequest, RequestTooLong
from .sequence import Chunk, Request, Sequence

DOUBLED_MAX = 4  # times that what is reserved of an answer is doubled, each time that it gave way

Comes = Callable[[Sequence, Iterable[Sequence]], bool]  # see `KVHooks.comes`


def never(sequence: Sequence, running: Iterable[Sequence]) -> bool:
    """What is computed for one is of no use to another."""
    return False


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and a request may take."""

    max_batch_tokens: int = 512  # tokens computed in one step
    max_running: int = 64  # sequences that hold pages
    max_request_tokens: int = 8192  # prompt and answer: what model and cache hold at all
    answer_tokens: int = 512  # of an answer, those for which there are pages when it enters
    vocab_size: int = 1 << 31

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= self.max_batch_tokens:
            raise Invalid(
                f"max_running {self.max_running} must be 1 to max_batch_tokens "
                f"({self.max_batch_tokens}), so that all of them advance in every step"
            )


def plan(running: Iterable[Sequence], max_batch_tokens: int) -> list[Chunk]:
    """The next step's chunks: each decoding sequence's token, then the prefill that has begun, then
    others as they are due. Pure.

    There is one that has begun and not ended at most, for others begin with what it leaves of a
    step, so in its last. A sequence whose prefix is still landing sits the step out.
    """
    sequences = [one for one in running if not one.loading]
    # A prompt's very last token alone is a decode in all but name: it is cheap and yields a token.
    decoding = [one for one in sequences if one.remaining == 1]
    prefilling = [one for one in sequences if one.remaining > 1]
    prefilling.sort(key=lambda one: (not one.begun, _due(one)))  # stable: equals as they came in
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
    if request.logprobs is not None and not 0 <= request.logprobs <= TOP_LOGPROBS_MAX:
        return BadRequest(
            f"request {request.id}: logprobs = {request.logprobs}: ask for 0 to {TOP_LOGPROBS_MAX}"
        )
    return None


class Scheduler:
    """The waiting queue, in the order in which requests are due, and the running set, in the order
    in which they entered."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: list[Sequence] = []
        self.running: dict[str, Sequence] = {}
        self._taken_in = 0

    def add(self, request: Request) -> Sequence:
        """Queue a request, or raise `BadRequest` or `RequestTooLong`."""
        refused = refusal(request, self.limits)
        if refused is not None:
            raise refused
        if self.find(request.id) is not None:
            raise BadRequest(f"request {request.id}: this id is waiting or running already")
        sequence = Sequence(request, came=self._taken_in)
        self._taken_in += 1
        insort(self.waiting, sequence, key=_due)  # behind those that are due at the same moment
        return sequence

    def find(self, request_id: str) -> Sequence | None:
        """The waiting or running sequence of this id."""
        if request_id in self.running:
            return self.running[request_id]
        return next((one for one in self.waiting if one.id == request_id), None)

    def next_in_line(self, comes: Comes = never) -> Sequence | None:
        """Who enters next if there are pages for it; None if nobody may. One of whose prompt more
        `comes` while it waits does not yet, and is overtaken by nobody for that."""
        if len(self.running) >= self.limits.max_running:
            return None
        if self.waiting and self._left() > 0:
            first = self._before(self.waiting[0])
            if first.follows or not comes(first, self.running.values()):
                return first
        return next((one for one in self.waiting if one.follows), None)

    def enter(self, sequence: Sequence) -> None:
        """Move the next in line, which has its pages now, into the running set."""
        self.waiting.remove(sequence)
        self.running[sequence.id] = sequence

    def passing(
        self, first: Sequence, pages: int, pages_for: Callable[[int], int], comes: Comes = never
    ) -> Sequence | None:
        """Who may enter before the next in line, which has no place yet where so many pages are
        free: somebody if that one gave way, since it may have to wait for a whole long answer."""
        if not first.gave_way:
            return None
        largest = max((len(one.block_table) for one in self.running.values()), default=0)
        spare = min(pages, pages + largest - pages_for(self.room_on_entry(first)))
        computes = self._left() > 0
        for one in self.waiting:
            if pages_for(one.request.length) > spare or self._grows(one):
                continue
            if one.follows or (computes and not comes(one, self.running.values())):
                return one
        return None

    def room_on_entry(self, sequence: Sequence) -> int:
        """Tokens for which it is to have pages then: the more, the oftener it had too few."""
        ahead = self.limits.answer_tokens << min(sequence.gave_way, DOUBLED_MAX)
        return min(sequence.request.length, len(sequence.tokens) + ahead)

    def gives_way(self, page_tokens: int) -> Sequence:
        """Of those that have not all the pages that they may need, the last to enter. There is one
        where one of them needs a page."""
        return next(
            one
            for one in reversed(self.running.values())
            if one.room(page_tokens) < one.request.length
        )

    def wait_again(self, sequence: Sequence) -> None:
        """Put a running one back in line, before others that are due at the same moment."""
        del self.running[sequence.id]
        sequence.begin_anew()
        insort_left(self.waiting, sequence, key=_due)

    def _grows(self, sequence: Sequence) -> bool:
        """Whether it may need more pages than it enters with."""
        return self.room_on_entry(sequence) < sequence.request.length

    def _before(self, first: Sequence) -> Sequence:
        """Of those that came before it, the shortest that its prompt begins with; else itself."""
        if first.follows:
            return first
        before = [
            one
            for one in self.waiting
            if one.came < first.came and one.begins(first) and not one.answering
        ]
        return min(before, key=lambda one: one.prompt_len, default=first)

    def _left(self) -> int:
        """Tokens of the next step that those who run leave."""
        wanted = sum(one.remaining for one in self.running.values() if not one.loading)
        return self.limits.max_batch_tokens - wanted

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if self.running.pop(sequence.id, None) is None:
            self.waiting.remove(sequence)

    def plan(self) -> list[Chunk]:
        """The next step's chunks; empty when nothing runs."""
        return plan(self.running.values(), self.limits.max_batch_tokens)


def _due(sequence: Sequence) -> float:
    return sequence.request.due
