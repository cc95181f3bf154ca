"""How many tokens an answer comes to, as one crew's requests tell: what room is kept for a sequence
to grow by, and how soon sequences end and free theirs.

Learned from those that were decoded to their ends. Until enough were, an answer is taken to come to
what callers let it, `TOKENS` at most and where they do not say: of those that run now the short
ones end first, so the first few say too little. No answer is thought longer than its caller lets
it be.
"""

from __future__ import annotations

TOKENS = 512.0  # of an answer, before any is known of
ENOUGH = 32.0  # ended requests, for what they came to to be believed as it is
KEPT = 100.0  # requests that are remembered, as a mean that forgets


class Answers:
    """Pure. Of one crew."""

    def __init__(self) -> None:
        self._let, self._lets = TOKENS, 0.0  # tokens in the mean, and of how many requests
        self._came, self._over = 0.0, 0.0

    @property
    def tokens(self) -> float:
        """In the mean, 1 at least."""
        known = min(1.0, self._over / ENOUGH)
        return max(1.0, self._let + known * (self._came - self._let))

    def of(self, most: int) -> float:
        """Of a request that is given so many at most; 0: nobody knows."""
        return min(self.tokens, float(most)) if most else self.tokens

    def wanted(self, most: int) -> None:
        """A request is to run."""
        self._lets = min(self._lets + 1.0, KEPT)
        self._let += (min(TOKENS, float(most or TOKENS)) - self._let) / self._lets

    def over(self, sequences: int, tokens: int) -> None:
        """So many requests were decoded to their ends, and had so many tokens all together."""
        self._over = min(self._over + sequences, KEPT)
        self._came += (tokens / sequences - self._came) * min(1.0, sequences / self._over)
