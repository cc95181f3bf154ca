"""Whether loading a prefix is quicker than computing it, from what both have cost here lately.

Both are priced as so many seconds a token; a load costs at least what the quickest one took. An
engine computes its first prompt, so that it knows what computing costs and no load can be without
a budget. What was slow once may be quick again: a load's price is halved for every
`FORGET_SECONDS` in which nothing was loaded, and one that pays only by what was forgotten is a
try, which is cut short early.
"""

from __future__ import annotations

SHARE = 0.3  # of a new measurement in the running mean
TOKENS_MIN = 32  # a step or load of fewer tokens says more about its fixed cost
FORGET_SECONDS = 30.0
TRY_SHARE = 0.25  # of what computing would take: what a try may add to the time to first token
BUDGET_SECONDS_MIN = 0.05


class Prices:
    """Running means of one engine. Time is an argument: monotonic seconds."""

    def __init__(self) -> None:
        self.prefill: float | None = None  # seconds a token
        self.load: float | None = None
        self._quickest: float | None = None  # of any load, seconds
        self._loaded_at = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many prompt tokens."""
        if tokens >= TOKENS_MIN and seconds > 0:
            self.prefill = _mean(self.prefill, seconds / tokens)

    def loaded(self, tokens: int, wanted: int, seconds: float, now: float) -> None:
        """A load of so many tokens that got fewer is dear: its seconds were spent all the same."""
        if seconds <= 0:
            return
        # One that was cut short took as long as it was let: that others take less it may show, and
        # not that all take so long.
        if tokens >= wanted or (tokens and self._quickest is not None):
            self._quickest = min(seconds, self._quickest or seconds)
        if wanted >= TOKENS_MIN:
            self.load = _mean(self._load_price(now), seconds / max(tokens, TOKENS_MIN))
            self._loaded_at = now

    def pays(self, tokens: int, now: float) -> bool:
        """Whether to load so many tokens rather than compute them."""
        if self.prefill is None:
            return False
        price = self._load_price(now)
        if price is None:
            return True
        return max(price * tokens, self._quickest or 0.0) < self.prefill * tokens

    def budget_seconds(self, tokens: int) -> float:
        """How long a load of so many tokens may take before the rest is computed."""
        assert self.prefill is not None, "a load pays against a known price only"
        dear = self.load is not None and self.load >= self.prefill
        share = TRY_SHARE if dear else 1.0
        return max(share * self.prefill * tokens, BUDGET_SECONDS_MIN)

    def _load_price(self, now: float) -> float | None:
        if self.load is None:
            return None
        forgotten: float = 0.5 ** ((now - self._loaded_at) / FORGET_SECONDS)
        return self.load * forgotten


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SHARE * (new - old)
