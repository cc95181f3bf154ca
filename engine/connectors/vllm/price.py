"""Whether loading a prefix is quicker than computing it, from what both have cost here lately.

Both are priced as so many seconds a token; a load costs at least what the quickest one took. A
price that is not known yet is not held against loading. What was slow once may be quick again, so
a load's price is halved for every `FORGET_SECONDS` in which nothing was loaded.
"""

from __future__ import annotations

SHARE = 0.3  # of a new measurement in the running mean
TOKENS_MIN = 32  # a step or load of fewer tokens says more about its fixed cost
FORGET_SECONDS = 30.0
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

    def loaded(self, tokens: int, seconds: float, now: float) -> None:
        if seconds <= 0:
            return
        self._quickest = min(seconds, self._quickest or seconds)
        if tokens >= TOKENS_MIN:
            self.load = _mean(self.load_price(now), seconds / tokens)
            self._loaded_at = now

    def load_price(self, now: float) -> float | None:
        if self.load is None:
            return None
        forgotten: float = 0.5 ** ((now - self._loaded_at) / FORGET_SECONDS)
        return self.load * forgotten

    def pays(self, tokens: int, now: float) -> bool:
        """Whether to load so many tokens rather than compute them."""
        price = self.load_price(now)
        if self.prefill is None or price is None:
            return True
        return max(price * tokens, self._quickest or 0.0) < self.prefill * tokens

    def budget_seconds(self, tokens: int) -> float:
        """How long a load of so many tokens may take before computing would have been quicker."""
        if self.prefill is None:
            return 0.0
        return max(self.prefill * tokens, BUDGET_SECONDS_MIN)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SHARE * (new - old)
