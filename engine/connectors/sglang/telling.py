"""What conductors hear of this engine: which prompts wait, run and are over, how much it decodes,
and what steps took. On SGLang's scheduler thread, beside what it schedules.

A prefill is measured where a step computes one prompt's tokens and nothing else, a decode step
where it computes no prompt's. What SGLang runs for its own health is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX

from kvstore.client import Invalid, Names, request_of
from kvstore.client.teller import Teller

from ..request_name import name_of

PAGES_MAX = 1_024  # of a prompt that are named: the scheduler waits for it, some 3 ms
SECONDS_MAX = 600.0  # what took longer was stopped meanwhile, and says nothing of steps


@dataclass(slots=True)
class _Here:
    """A request of SGLang's."""

    request: Any
    name: str  # that conductors know it by
    began: bool = False
    ended: bool = False  # its prefill


class Telling:
    """Of one engine."""

    def __init__(self, teller: Teller, names: Names, page: int) -> None:
        """`page` is how many tokens one has."""
        self._teller, self._names, self._named_max = teller, names, PAGES_MAX * page
        self._here: dict[str, _Here] = {}
        self._decoding: dict[str, int] = {}  # tokens of each
        self._over = 0.0  # when the last step was

    @property
    def busy(self) -> bool:
        return bool(self._here)

    def queued(self, request: Any) -> None:
        """It waits, also for the second time: then what it had is computed anew."""
        if request.rid in self._here:
            if self._decoding.pop(request.rid, None) is not None:
                self._load()
            return
        if request.rid.startswith(HEALTH_CHECK_RID_PREFIX):
            return
        here = _Here(request, name_of(request_of(request.rid)))
        self._here[request.rid] = here
        tokens = request.origin_input_ids
        self._teller.accepted(here.name, len(tokens), 0, self._hashes(request))

    def scheduled(self, batch: Any) -> None:
        """A step is about to run."""
        if batch.forward_mode.is_extend():
            for request in batch.reqs:
                here = self._here.get(request.rid)
                if here is not None and not here.began:
                    here.began = True
                    self._teller.began(here.name)

    def computed(self, batch: Any) -> None:
        """What came of a step is known."""
        now, mode, requests = time.monotonic(), batch.forward_mode, batch.reqs
        began = batch.launch_ts or now
        seconds, self._over = now - max(began, self._over), now
        if not 0 < seconds <= SECONDS_MAX:
            pass
        elif mode.is_decode() and requests:
            tokens = sum(one.seqlen - 1 for one in requests)  # less the one that each made
            self._teller.stepped(len(requests), tokens, seconds)
        elif mode.is_extend() and not mode.is_mixed() and len(requests) == 1:
            self._teller.prefilled(batch.extend_lens[0], batch.prefix_lens[0], seconds)
        for request in requests:
            here = self._here.get(request.rid)
            if here is None or request.is_retracted:
                continue  # a step under way when it made room for others: it waits once more
            if len(request.output_ids):
                if not here.ended:
                    here.ended = True
                    self._teller.ended(here.name)
                    self._teller.decoding(here.name)
                self._decoding[request.rid] = request.seqlen
            if request.finished():
                self._end(here)
        if requests:
            self._load()

    def gone(self, request: Any) -> None:
        """It is given up, before it was computed or while it was."""
        here = self._here.get(request.rid)
        if here is not None:
            self._end(here)
            self._load()

    def idle(self) -> None:
        """There is nothing here, whatever was heard."""
        for here in [*self._here.values()]:
            self._end(here)
        self._load()

    def _end(self, here: _Here) -> None:
        del self._here[here.request.rid]
        if not here.ended:
            self._teller.given_up(here.name)
        if self._decoding.pop(here.request.rid, None) is not None:
            self._teller.over(len(here.request.output_ids))

    def _load(self) -> None:
        self._teller.load(len(self._decoding), sum(self._decoding.values()))

    def _hashes(self, request: Any) -> Sequence[bytes]:
        """Of its prompt's pages, where they are named by their tokens and a salt alone."""
        if request.extra_key or request.multimodal_inputs is not None:
            return ()
        tokens = request.origin_input_ids[: self._named_max]
        try:
            return self._names.of(tokens, request.cache_salt or "")
        except Invalid:
            return ()
