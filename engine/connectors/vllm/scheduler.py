"""The scheduler side: which prefix a request loads, and which blocks a step completes.

It decides on token counts and hashes alone and moves no bytes. Nothing here waits on the pool for
longer than `lookup_ms`, and nothing the pool does or fails to do raises into vLLM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from kvstore.client import Client, KVSpec

from .audits import Audits
from .contents import Contents
from .fleet import Fleet, Place
from .health import Health
from .lookup import Found, Lookup, Lookups
from .messages import Compare, Load, Loaded, Ready, Report, Save, Step
from .metrics import MoonpoolStats
from .parts import Parts
from .price import Prices
from .requests import Requests
from .settings import Settings
from .tracked import Tracked
from .unproven import Pages, Unproven

log = logging.getLogger("vllm.moonpool")

CHEAPER = "cheaper to compute"  # why a hit is not loaded, where its price says so
UNHEARD = "unheard"  # why none is looked for before the workers have said what they keep


class SchedulerSide:
    """One vLLM engine's view of the pool. Used by vLLM's scheduler thread only."""

    def __init__(
        self,
        settings: Settings,
        page_tokens: int,
        *,
        reads: bool,
        writes: bool,
        goes_on: bool,
        place: Place | None,
        contents: Contents,
    ) -> None:
        """`goes_on`: a step comes after the last request is over. `place` is in the fleet that
        conductors know of; None where there are none."""
        self._settings, self._align = settings, page_tokens
        self._reads, self._writes, self._may_cut = reads, writes, False
        self._goes_on, self._place = goes_on, place
        self.fleet: Fleet | None = None
        self._clients: tuple[Client, ...] = ()
        self._lookups: Lookups | None = None
        self._ready: Ready | None = None
        self._parts: Parts  # of what the workers keep, once they have said that
        self._block_tokens = 1  # as the workers chose
        self._here = Requests(page_tokens, contents, self._tell, self._drop)
        self._answers: dict[str, Lookup] = {}
        self._loads: list[Load] = []
        self._finishing: list[Save] = []
        self._loaded: dict[str, Loaded] = {}  # at some ranks, and not yet at all
        self._steps = 0
        self._patience = settings.lookup_ms / 1e3  # seconds that this step may yet wait for answers
        self._given: set[bytes] = set()  # blocks that this step has given to a worker already
        self._told: set[str] = set()
        self._prices = Prices()
        self._audits = Audits(settings)
        self._unproven = Unproven()
        self.stats = MoonpoolStats()

    # Start and end

    def ready(self, ranks: dict[tuple[int, int], Ready]) -> None:
        """The workers have said what they keep; they must all say the same."""
        first, self._audits.gpus = ranks[min(ranks)], len(ranks)
        for rank, one in ranks.items():
            if one != first:
                raise ValueError(f"rank {rank} has another namespace than rank {min(ranks)}")
        spec = KVSpec.parse(first.spec)
        root = Client(
            self._settings.locator,
            spec,
            label="vllm-scheduler",
            deadline_seconds=self._settings.deadline_ms / 1e3,
        )
        self._ready, self._parts = first, Parts(first)
        self._block_tokens = spec.groups[0].block_tokens
        self._may_cut = first.policy == "recompute"
        if not self._may_cut:
            log.warning(
                "kv_load_failure_policy is 'fail': a request whose KV cannot be loaded ends in an "
                "error. With 'recompute' it is computed instead and nobody notices. Of several "
                "connectors what stands beside MultiConnector counts, and not what is within."
            )
        self._clients = tuple(root.of_group(index) for index in range(len(spec.groups)))
        self._here.begin(self._clients, first)
        health = Health(self._settings.node, root)
        self._lookups = Lookups(self._clients, first.windows, self._align, health)
        self._lookups.later(root.register)  # and so the session is there when requests come
        if self._place is not None:
            self.fleet = Fleet(self._settings, self._place, first, root)

    def taken(self) -> MoonpoolStats:
        """What was counted since this was last asked."""
        stats, self.stats = self.stats, MoonpoolStats()
        return stats

    def reset(self, empty: bool) -> None:
        """vLLM forgets what it cached, as it does when its weights are changed in place; all of it,
        if that is `empty` now. Requests that are here may have KV of either: they go on alone."""
        self.keep_apart("caches were reset")
        self._here.forgotten()
        if empty:
            self._here.nothing_cached()

    def keep_apart(self, why: str) -> None:
        """Nothing tells the weights from now on from any others: what is stored from now on only
        this engine finds."""
        self._here.keep_apart()
        self._tell(f"{why}: this engine loads what it stores from now on, and nobody else does")

    def close(self) -> None:
        if self.fleet is not None:
            self.fleet.close()
        if self._lookups is not None:
            self._lookups.close()
            self._clients[0].close()

    # A request's life

    def arrived(self, request: Any) -> None:
        tracked = self._here.arrived(request)
        if tracked is not None:
            self._looks(tracked)
        self._tell_fleet(request, tracked)

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens to load beyond the first `computed`, or None while the pool has not answered."""
        tracked = self._here.tracked.get(request.request_id)
        if tracked is None:
            if (other := self._here.others.get(request.request_id)) is not None:
                other.end = computed
            return 0, False
        tracked.computed = tracked.end = computed
        if not self._looks_up(request) or tracked.failed:
            return 0, False
        tracked.asked, tracked.audit, tracked.miss = True, None, ""
        if tracked.follow:
            # Whose blocks they will be is not known yet: they might be of those that were wrong.
            tracked.end = computed if self._audits.found_wrong else tracked.follows_to(computed)
            return tracked.end - computed, tracked.end > computed
        answer = self._answers.get(tracked.id)
        if answer is None or not answer.fresh:
            answer = self._ask(tracked)
        found = self._waited(answer)
        if found is None:
            return None, False
        tracked.published = max(tracked.published, found.held_blocks)
        tracked.miss = str(found.miss.value) if found.miss is not None else ""
        tokens, size = found.tokens, self._block_tokens
        if tokens <= computed:
            return 0, False
        if self._settings.reuse == "priced" and not self._prices.pays(
            tokens - computed, time.monotonic()
        ):
            tracked.miss = CHEAPER
            return 0, False
        origins = found.origins(computed // size, tokens // size)
        if not self._audits.loads(tracked, max(computed, found.first * size), tokens, origins):
            return 0, False
        tracked.end = tokens
        return tokens - computed, True

    def allocated(self, request: Any, pages: Pages, tokens: int) -> None:
        """vLLM has given the request pages; load `tokens` into them, if any."""
        tracked = self._here.tracked.get(request.request_id)
        if tracked is None:
            if (other := self._here.others.get(request.request_id)) is not None:
                other.ran = False
                self._here.goes_on(other.request)
                if self._lookups is None:
                    self.stats.add("miss", reason=UNHEARD)
            return
        tracked.ran, tracked.rests = False, range(0)
        if tracked.asked:
            tracked.asked = False
            if tokens == 0 and tracked.end > tracked.computed:
                # vLLM takes none of what was found, as where another connector has as much.
                tracked.verb = None
            # Nor all of it, where it wants whole pages: what it does not take is what comes last.
            tracked.end = tracked.computed + tokens
            if request.num_preemptions == 0 and not tracked.follow:  # its prefill has counted it
                self._count(tracked, request.num_tokens - tracked.computed, tokens)
        if tokens == 0:
            if not tracked.loading:
                self._drop(tracked.id)
            return
        begin, end = tracked.end - tokens, tracked.end
        tracked.loading = True
        budget = 0.0
        if self._settings.reuse == "priced" and self._may_cut and not tracked.follow:
            budget = self._prices.budget_seconds(tokens)
        parts = self._parts.needed(tracked, begin, end, pages, end)
        followed = (tracked.follow, tracked.follow_at)
        self._loads.append(Load(tracked.id, begin, end, parts, *followed, budget, tracked.adapter))

    def step(self, output: Any) -> Step:
        """The step's loads, and the blocks whose last token it computes."""
        self._steps, self._patience = self._steps + 1, self._settings.lookup_ms / 1e3
        self._given.clear()
        if self.fleet is not None:
            self.fleet.scheduled(output)
            self.fleet.loaded(self._here.renamed())
        step = Step(self._steps, self._loads, self._finishing, over=self._here.handed())
        self._loads, self._finishing = [], []
        step.tokens = output.total_num_scheduled_tokens
        for request, scheduled in output.num_scheduled_tokens.items():
            tracked = self._here.tracked.get(request)
            if tracked and tracked.request.num_computed_tokens + scheduled in tracked.rests:
                continue
            known = tracked or self._here.others.get(request)
            if known is None:
                continue
            one = known.request
            pages = partial(output.kv_connector_block_state.get_block_ids, request)
            if not known.ran:
                by_another = one.num_computed_tokens > known.end
                self._unproven.begins(one, pages, loaded=by_another)
            known.ran = True
            unproven = self._unproven.holds(one)
            if tracked is None:
                continue
            if one.num_computed_tokens < one.num_prompt_tokens:
                step.prefill_tokens += scheduled
            self._audits.scheduled(tracked, self.stats)
            done = min(one.num_computed_tokens + scheduled, one.num_tokens)
            if unproven:
                tracked.audit = tracked.verb = None  # what it would compare was not computed here
                continue
            hit = tracked.audit.end if tracked.audit is not None else 0
            first, last = self._audits.span(tracked, done, self._block_tokens)
            if first < last:
                begin, end = first * self._block_tokens, last * self._block_tokens
                parts = self._parts.needed(tracked, begin, end, pages(), hit)
                step.compares.append(Compare(tracked.id, parts, tracked.adapter))
            if self._writes:
                step.saves += self._completed(tracked, done, pages)
            tracked.rest(self._writes)
        return step

    def finished(self, request: Any, pages: Pages) -> bool:
        """The request is over; whether its pages must be kept until a last block is stored."""
        tracked = self._here.over(request.request_id)
        self._drop(request.request_id)
        if self.fleet is not None:
            self.fleet.finished(request)
        unproven = self._unproven.holds(request)
        self._unproven.forget(request.request_id)
        if tracked is None:
            return False
        self._audits.first_token(tracked, self.stats)
        if not self._writes or not self._goes_on or not tracked.ran or unproven:
            return False
        done = min(request.num_computed_tokens, request.num_tokens - 1)
        saves = self._completed(tracked, done, lambda: pages)
        self._finishing += [replace(one, finished=True) for one in saves]
        return bool(saves)

    def heard(self, report: Report | None, received: set[str]) -> None:
        """What the workers say of loads and of comparisons."""
        if report is None and not received:
            return
        report = report or Report()
        if report.ready:
            self._begin_late(report.ready)
        if report.adapters and self._here.adapters_loaded(report.adapters):
            self._take_in_others()
        now = time.monotonic()
        self.stats.add("saved_blocks", report.saved_blocks)
        self._prices.computed(*report.prefill)
        for request, first in report.late.items():
            self.stats.add("late_saves")
            if (tracked := self._here.tracked.get(request)) is not None:
                tracked.publish_again(first)
        for request, one in report.loaded.items():  # of ranks that may end in different steps
            self._loaded[request] = one.and_of(self._loaded.get(request, one))
        for request in received & self._loaded.keys():
            loaded = self._loaded.pop(request)
            self.stats.loaded(loaded.seconds)
            self.stats.add("followed_tokens" if loaded.follows else "loaded_tokens", loaded.tokens)
            # Also of a request that is here no more: by the policy 'fail' vLLM ends it for this.
            self.stats.add("failed_tokens", loaded.wanted - loaded.tokens)
            tracked = self._here.tracked.get(request)
            if loaded.stale is not None:
                self._here.stale(loaded.stale)
            elif tracked is not None and not loaded.follows:
                self._prices.loaded(loaded.came, loaded.wanted, loaded.seconds, now)
            if tracked is not None and loaded.good < tracked.end:
                tracked.failed = True
                tracked.publish_again(loaded.good // self._block_tokens)  # what is bad, anew
        for request in received:
            self._drop(request)
            if (tracked := self._here.tracked.get(request)) is not None:
                tracked.loading = False
        for request, verdict in report.verdicts.items():
            wrong = self._audits.judge(request, verdict, self.stats)
            if wrong and self._lookups is not None:
                self._lookups.later(partial(self._clients[0].quarantine, wrong))

    # Parts

    def _begin_late(self, ranks: tuple[Ready, ...]) -> None:
        """The workers say what they keep with their first step: requests are here by then."""
        try:
            self.ready({(0, rank): one for rank, one in enumerate(ranks)})
        except Exception:  # whatever it is, as a rank that keeps something else
            log.exception("Moonpool: the pool is not used")
            return
        self._take_in_others()
        for tracked in self._here.tracked.values():
            self._tell_fleet(tracked.request, tracked)
        for other in self._here.others.values():
            if not other.apart:
                self._tell_fleet(other.request, None)

    def _take_in_others(self) -> None:
        """Those that went on without the pool, and in which it has a part now."""
        for tracked in self._here.known_now():
            if not tracked.ran:
                self._looks(tracked)

    def _looks(self, tracked: Tracked) -> None:
        """Ask at once: the answer is usually there when the request comes to be scheduled."""
        if self._looks_up(tracked.request) and not tracked.follow:
            self._ask(tracked)

    def _looks_up(self, request: Any) -> bool:
        """vLLM has some requests computed whole, as where their prompt's logprobs are wanted."""
        return self._reads and not request.skip_reading_prefix_cache

    def _ask(self, tracked: Tracked) -> Lookup:
        assert self._lookups is not None
        self._drop(tracked.id)
        answer = self._lookups.ask(tracked.chains(), tracked.loads_max)
        self._answers[tracked.id] = answer
        return answer

    def _tell_fleet(self, request: Any, tracked: Tracked | None) -> None:
        if self.fleet is not None:
            hashes = () if tracked is None else tracked.chains()[self.fleet.group].hashes
            self.fleet.arrived(request, hashes, tracked is not None and bool(tracked.follow))

    def _waited(self, answer: Lookup) -> Found | None:
        """What it is within the step's patience, which is for all that it asks together."""
        began = time.monotonic()
        found = answer.result(self._patience)
        self._patience = max(0.0, self._patience + began - time.monotonic())
        return found

    def _drop(self, request: str) -> None:
        answer = self._answers.pop(request, None)
        if answer is not None and self._lookups is not None:
            answer.drop(self._lookups)

    def _count(self, tracked: Tracked, queries: int, hits: int) -> None:
        self.stats.add("query_tokens", queries)
        self.stats.add("hit_tokens", hits)
        if tracked.miss:
            self.stats.add("miss", reason=tracked.miss)
        if self._lookups is not None:
            self._lookups.used(queries, hits)

    def _completed(self, tracked: Tracked, done: int, pages: Callable[[], Pages]) -> list[Save]:
        """Blocks not yet published that `done` computed tokens fill."""
        chains = tracked.chains()
        whole = done >= chains[0].token_count
        blocks = len(chains[0]) if whole else done // self._block_tokens
        if blocks <= tracked.published:
            return []
        first, tracked.published = tracked.published, blocks
        # Prompts that arrive together share their beginnings: one of them stores it.
        while first < blocks and chains[0].hashes[first] in self._given:
            first += 1
        if first == blocks:
            return []
        self._given.update(chains[0].hashes[first:blocks])
        parts = self._parts.whole(tracked, first, blocks, pages())
        return [Save(tracked.id, parts, tracked.hand_off, adapter=tracked.adapter)]

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("Moonpool: %s", what)
