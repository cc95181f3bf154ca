"""Hits that are computed and compared instead of loaded: which they are, and what came of them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection

from .effect import Effect
from .messages import Verdict
from .metrics import MoonpoolStats
from .settings import Settings
from .tracked import Audit, Tracked
from .trust import Trust, Verb

log = logging.getLogger("vllm.moonpool")

DRAWN = (Verb.LOAD, Verb.AUDIT)  # by the die, which nothing else decides between


class Audits:
    """The self-test and the causal audit of one engine."""

    def __init__(self, settings: Settings) -> None:
        self._waited, self._prefilled = Effect(settings.audit_rate), Effect(settings.audit_rate)
        self.gpus = 1  # that a prefill runs on
        self._trust = Trust(
            self_test=settings.self_test,
            hits=settings.self_test_hits,
            rate=settings.audit_rate,
            seed=settings.audit_seed,
        )
        # By request, its comparisons in the order of their steps, and whether to the hit's end:
        # vLLM may schedule a step before it has heard of the last.
        self._under_way: dict[str, deque[tuple[Audit, bool]]] = {}

    @property
    def found_wrong(self) -> bool:
        """Whether stored KV was wrong, or of a layout that is misread here."""
        return bool(self._trust.quarantined or self._trust.wrong)

    def loads(self, tracked: Tracked, begin: int, end: int, origins: Collection[int]) -> bool:
        """Whether a hit of tokens [begin, end) is loaded. A request that asks again, as after a
        preemption, is not drawn again; whose blocks it finds, and whether these may be used, is as
        of now."""
        verb = self._trust.verb(origins)
        if verb in DRAWN and tracked.verb in DRAWN:
            verb = tracked.verb
        tracked.verb = verb
        if verb is Verb.LOAD:
            return True
        tracked.miss = verb.value
        if verb is not Verb.REFUSE:
            random = verb is Verb.AUDIT
            tracked.audit = Audit(begin, end, frozenset(origins), random)
        return False

    def span(self, tracked: Tracked, done: int, block_tokens: int) -> tuple[int, int]:
        """Blocks [first, last) of an audited hit that a step finishes computing."""
        audit = tracked.audit
        if audit is None:
            return 0, 0
        first = -(-max(audit.begin, tracked.compared) // block_tokens)
        last = min(done, audit.end) // block_tokens
        if first < last:
            tracked.compared = last * block_tokens
            whole = last == audit.end // block_tokens
            self._under_way.setdefault(tracked.id, deque()).append((audit, whole))
            if whole:
                tracked.audit = None
        return first, last

    def judge(self, request: str, verdict: Verdict, stats: MoonpoolStats) -> str:
        """What the ranks found; what a namespace is to be quarantined for, or nothing."""
        asked = self._under_way[request]
        audit, whole = asked.popleft()
        if not asked:
            del self._under_way[request]
        if not verdict.wrong:
            audit.proves = audit.proves and bool(verdict.blocks)
            if whole and audit.proves:
                stats.add("audits" if audit.random else "self_tests")
                for origin in self._trust.agreed(audit.origins):
                    log.info("Moonpool: KV of origin %016x is as it is computed here", origin)
            return ""
        stats.add("alarms")
        self._trust.differed(audit.origins, verdict.wrong, random=audit.random)
        if audit.random:
            log.error("Moonpool: stored KV is WRONG, it is quarantined: %s", verdict.wrong)
            return verdict.wrong
        log.error("Moonpool: KV of another layout is misread, none is used: %s", verdict.wrong)
        return ""

    def scheduled(self, tracked: Tracked, stats: MoonpoolStats) -> None:
        """A step runs a request: note when its prefill begins, and when it has its first token."""
        if not tracked.began:
            tracked.began = time.monotonic()
        self.first_token(tracked, stats)

    def first_token(self, tracked: Tracked, stats: MoonpoolStats) -> None:
        """Note what a request's first token took, once it has one."""
        if tracked.timed or not tracked.began or tracked.request.num_output_tokens == 0:
            return
        tracked.timed = True
        if tracked.verb not in DRAWN or tracked.request.num_preemptions:
            return
        now, loaded = time.monotonic(), tracked.verb is Verb.LOAD
        self._waited.add(now - tracked.arrived, loaded=loaded)
        self._prefilled.add(self.gpus * (now - tracked.began), loaded=loaded)
        waited, prefilled = self._waited.saved_seconds, self._prefilled.saved_seconds
        if waited is not None and prefilled is not None:
            stats.saves(waited, prefilled)
