"""What loading saves, without bias: hits drawn at random are computed, the others are loaded.

Of hits that could have been loaded a share p was not, for no other reason than a die. Where t is
what a hit takes of something, its time to first token or the prefill's part of that, the seconds
that the loaded ones saved are, in expectation,

    sum of t over the computed x (1 - p) / p  -  sum of t over the loaded

(Horvitz and Thompson 1952, over both arms). Hits computed by a self-test are in neither arm.
"""

from __future__ import annotations


class Effect:
    """One estimate."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self.computed, self.loaded = 0, 0
        self._computed_seconds, self._loaded_seconds = 0.0, 0.0

    def add(self, seconds: float, *, loaded: bool) -> None:
        """What a hit took."""
        if loaded:
            self.loaded += 1
            self._loaded_seconds += seconds
        else:
            self.computed += 1
            self._computed_seconds += seconds

    @property
    def saved_seconds(self) -> float | None:
        """None until both arms have a hit."""
        if not self.computed or not self.loaded:
            return None
        weight = (1.0 - self._rate) / self._rate
        return self._computed_seconds * weight - self._loaded_seconds
