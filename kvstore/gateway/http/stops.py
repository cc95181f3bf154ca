"""Where an answer ends because of what it says: at the first text that its caller named for that.

What may turn out to be the beginning of such a text is held back, so that no part of one is ever
given out.
"""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Of one answer as it grows."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._held = texts, ""
        self.met = False  # it has ended, and goes on no more

    def add(self, text: str) -> str:
        """What can be given out of it now."""
        if self.met:
            return ""
        self._held += text
        found = [at for one in self._texts if (at := self._held.find(one)) >= 0]
        if found:
            self.met = True
            out, self._held = self._held[: min(found)], ""
            return out
        keep = max((_begun(self._held, one) for one in self._texts), default=0)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def end(self) -> str:
        """What was held back and is no such text after all."""
        out, self._held = self._held, ""
        return out


def _begun(text: str, stop: str) -> int:
    """How many characters at a text's end are the first ones of another, but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
