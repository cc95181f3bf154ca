"""How much each of several users of one bounded thing may have, so that none takes it all."""

from __future__ import annotations


class Allowance:
    """What all crews together may have. One may have more while it has less than three times what
    is free: alone it gets three quarters, and the next still finds some."""

    def __init__(self, total: int) -> None:
        self._total, self.taken = total, 0

    def try_take(self, held: int, more: int) -> bool:
        if held + more > 3 * (self._total - self.taken - more):
            return False
        self.taken += more
        return True

    def give_back(self, count: int) -> None:
        assert self.taken >= count, "more was given back than was taken"
        self.taken -= count
