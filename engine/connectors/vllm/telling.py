"""What conductors hear of this engine: which prompts wait, run and are over, how much it decodes,
and what steps took. On vLLM's scheduler thread, beside what it schedules.

A prefill is measured where a step computes one prompt's tokens and nothing else, a decode step
where it computes no prompt's, and nothing again that a preemption lost. A request that follows a
prefill by its hand-off waits for that and not for this engine, so it is told of only once it has
its first token here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstore.client.teller import Teller

from ..request_name import name_of
from .keys import said_of

STEPS_MAX = 16  # of which vLLM has not said what came: it is two ahead at most
SECONDS_MAX = 600.0  # what took longer was stopped meanwhile, and says nothing of steps


@dataclass(slots=True)
class _Here:
    """A request of vLLM's."""

    request: Any
    name: str  # that conductors know it by
    follows: bool
    began: bool = False
    ended: bool = False  # its prefill


@dataclass(slots=True)
class _Step:
    """One that is scheduled; what came of it is not known yet."""

    at: float
    prefills: list[tuple[int, int]] = field(default_factory=list)  # new tokens, and before those
    ends: list[str] = field(default_factory=list)  # requests whose prompts it completes
    replays: bool = False  # what was lost of requests by preemption: it measures nothing
    batch: int = 0
    context_tokens: int = 0


class Telling:
    """Of one engine."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._here: dict[str, _Here] = {}
        self._decoding: dict[str, int] = {}  # tokens of each
        self._steps: deque[_Step] = deque(maxlen=STEPS_MAX)
        self._over = 0.0  # when the last step was

    def arrived(self, request: Any, hashes: Sequence[bytes], follows: bool) -> None:
        """It waits, for this engine or for a prefill that it follows; `hashes` are of its prompt's
        full blocks, as far as they are known."""
        name = name_of(str(said_of(request).get("request") or request.request_id))
        here = _Here(request, name, follows)
        self._here[request.request_id] = here
        if not here.follows:
            self._teller.accepted(name, request.num_prompt_tokens, 0, hashes)

    def scheduled(self, output: Any) -> None:
        """vLLM has scheduled a step."""
        step = _Step(time.monotonic())
        self._steps.append(step)
        for gone in output.preempted_req_ids or ():
            self._decoding.pop(gone, None)
        for request, tokens in output.num_scheduled_tokens.items():
            here = self._here.get(request)
            if here is None:
                continue
            before, prompt = here.request.num_computed_tokens, here.request.num_prompt_tokens
            if before >= prompt:
                step.batch += 1
                step.context_tokens += before + tokens
                # Who decodes has all but its last token; what comes behind that are drafts.
                step.replays |= before + 1 < here.request.num_tokens
                if before + tokens >= here.request.num_tokens:
                    self._decoding[request] = before + tokens
                continue
            step.prefills.append((tokens, before))
            if not here.began and not here.follows:
                self._teller.began(here.name)
            here.began = True
            if before + tokens >= prompt:
                step.ends.append(request)

    def computed(self) -> None:
        """What came of the first of these steps is known; who is over with it has been `finished`
        before."""
        if not self._steps:
            return
        step, now = self._steps.popleft(), time.monotonic()
        seconds, self._over = now - max(step.at, self._over), now
        if seconds > SECONDS_MAX or step.replays:
            pass
        elif not step.batch and len(step.prefills) == 1:
            self._teller.prefilled(*step.prefills[0], seconds)
        elif step.batch and not step.prefills:
            self._teller.stepped(step.batch, step.context_tokens, seconds)
        for request in step.ends:
            here = self._here.get(request)
            if here is not None:
                self._end(here)
                self._teller.decoding(here.name)
                self._decoding[request] = here.request.num_tokens
        self._load()

    def finished(self, request: Any) -> None:
        """It is over, at whatever stage."""
        here = self._here.pop(request.request_id, None)
        if here is None:
            return
        if here.began and request.num_computed_tokens >= request.num_prompt_tokens:
            self._end(here)
        elif not here.ended:
            self._teller.given_up(here.name)
        if self._decoding.pop(request.request_id, None) is not None:
            self._teller.over(request.num_tokens - request.num_prompt_tokens)
            self._load()

    def _end(self, here: _Here) -> None:
        if not here.ended:
            self._teller.ended(here.name)
        here.ended = True

    def _load(self) -> None:
        self._teller.load(len(self._decoding), sum(self._decoding.values()))
