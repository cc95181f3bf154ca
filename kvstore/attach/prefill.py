"""What a prefill takes, from sums that servers tell of several at a time: a + b n seconds.

Between two looks at a server's counters some prompts ended, took so many seconds together, and
computed so many tokens. Looks with much and with little a prompt tell apart what each prompt costs
and what each token does, by least squares. What attention costs beyond that no sum tells. Pure.
"""

from __future__ import annotations

import numpy as np

LOOKS_MIN = 8  # before that it is the mean a token
_DETERMINED = 1e-3  # share of its square that a look's mean length varies by, at least


class PrefillTime:
    """Of servers that are alike."""

    def __init__(self) -> None:
        self.looks = 0
        self._sums = np.zeros((2, 2))  # of the features' products, each look weighing its prompts
        self._moment = np.zeros(2)
        self._tokens = self._seconds = 0.0

    def observe(self, prompts: float, tokens: float, seconds: float) -> None:
        """So many prompts ended that computed so many tokens in so many seconds altogether."""
        if prompts <= 0 or tokens <= 0 or seconds <= 0:
            return
        features = np.array([prompts, tokens])
        self._sums += np.outer(features, features) / prompts
        self._moment += features * seconds / prompts
        self._tokens += tokens
        self._seconds += seconds
        self.looks += 1

    @property
    def per_token(self) -> float:
        """Seconds that a token less saves."""
        return self._solved()[1]

    @property
    def per_prompt(self) -> float:
        """Seconds that a prompt takes beside that."""
        return self._solved()[0]

    def _solved(self) -> tuple[float, float]:
        if not self._tokens:
            return 0.0, 0.0
        mean = 0.0, self._seconds / self._tokens
        (count, both), (_, squares) = self._sums.tolist()
        spread = count * squares - both * both
        if self.looks < LOOKS_MIN or spread <= _DETERMINED * count * squares:
            return mean
        first, second = self._moment.tolist()
        each = (squares * first - both * second) / spread
        token = (count * second - both * first) / spread
        if each < 0.0:
            return 0.0, second / squares
        return (each, token) if token > 0.0 else mean


class PrefillTimes:
    """Of a fleet: of each server by what it tells itself, as soon as that is enough to go by, and
    until then by what all of them tell."""

    def __init__(self, servers: int) -> None:
        self._each = [PrefillTime() for _ in range(servers)]
        self._all = PrefillTime()
        self._begun = [0.0] * servers

    def observe(self, server: int, prompts: float, tokens: float, seconds: float) -> None:
        """What a server's counters rose by. Tokens may be counted before the prompt that computed
        them ends, and its seconds with that."""
        self._begun[server] += tokens
        if prompts <= 0:
            return
        tokens, self._begun[server] = self._begun[server], 0.0
        for one in (self._each[server], self._all):
            one.observe(prompts, tokens, seconds)

    @property
    def per_token(self) -> list[float]:
        """Seconds that a token less saves, of each server."""
        every = (one if one.looks >= LOOKS_MIN else self._all for one in self._each)
        return [one.per_token for one in every]
