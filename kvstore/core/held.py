"""What tenants hold of DRAM, so that none takes all of it from the others.

A slot that is pinned, or that somebody may still write, makes room for nobody, for as long as its
holder renews the pin or keeps the window open; nor does one that is sealed in part, while it waits
for the other parts. So a tenant gets no more held while what it holds is over three times what
nobody does, as with all else that it could take whole (`kvstore.core.turns`).
The only tenant there is may hold everything. Of slots that are pinned and written often each counts
once, as its part of a slab. What is on its way between tiers is held by the node, and for a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.pins import Pins
from kvstore.core.slabs import Slabs
from kvstore.core.windows import Windows
from kvstore.errors import Overloaded

_PATIENCE = 3  # bytes held for each that nobody holds
_RETRY_MS = 1_000


class Held:
    """Bytes of slots in DRAM with a pin, a window, or a sealed part of a block, by tenant."""

    def __init__(
        self, slabs: Slabs, tenants: Collection[str], pins: Pins, windows: Windows
    ) -> None:
        self._slabs, self._tenants = slabs, tenants  # live: tenants come
        self._of_tenant = Counter[str]()
        self._total = 0
        self._windows = windows
        windows.on_held, windows.on_unheld = self.begin, self.end
        pins.on_held = lambda slots: self.begin(windows.not_in_part(slots))
        pins.on_unheld = lambda slots: self.end(windows.not_in_part(slots))

    def of(self, tenant: str) -> int:
        return self._of_tenant[tenant]

    def begin(self, slots: Sequence[Slot]) -> None:
        """Nobody held these until now. They are one tenant's."""
        self._change(slots, 1)

    def end(self, slots: Sequence[Slot]) -> None:
        """Nobody holds these any more. They are one tenant's."""
        self._change(slots, -1)

    def check_windows(self, tenant: str, slot_bytes: int, count: int) -> None:
        """Raise `Overloaded` where windows on so many new slots would pass what a tenant holds."""
        if count == 0 or len(self._tenants) == 1:
            return
        size = self._slabs.share_bytes(slot_bytes)
        if not self._fits(tenant, more := size * count, size):
            raise Overloaded(
                f"{tenant} holds {self._of_tenant[tenant]} bytes of DRAM by pins and windows, and "
                f"all tenants {self._total} of {self._slabs.capacity_bytes}: {more} more are too "
                "many, as no tenant takes all",
                _RETRY_MS,
            )

    def ever(self, slot_bytes: int, count: int) -> bool:
        """Whether a tenant could have windows on so many new slots, were nothing held."""
        if count == 0 or len(self._tenants) == 1:
            return True
        before = self._slabs.share_bytes(slot_bytes) * (count - 1)
        return before < _PATIENCE * (self._slabs.capacity_bytes - before)

    def beyond(self, tenant: str, slots: Sequence[Slot]) -> Collection[Slot]:
        """Those of these that a tenant may not pin, as those before them are all it may hold. What
        is held already costs nothing, and so is never among them."""
        if not slots or len(self._tenants) == 1:
            return ()
        if self._fits(tenant, self._bytes(slots), self._bytes(slots[-1:])):
            return ()  # all of them do, as if nobody held any: mostly that will do
        more, refused = 0, set[Slot]()
        for slot in dict.fromkeys(self._windows.not_in_part(slots)):
            size = 0 if slot.pins or slot.windows else self._bytes([slot])
            if size and not self._fits(tenant, more + size, size):
                refused.add(slot)
            else:
                more += size
        return refused

    def check(self) -> None:
        found = Counter[str]()
        for slab in self._slabs.occupied():
            for slot in slab.slots.values():
                if slot.pins or slot.windows or not self._windows.not_in_part([slot]):
                    found[slot.tenant] += self._slabs.slab_bytes // slab.places
        assert found == self._of_tenant, "what a tenant holds is miscounted"
        assert found.total() == self._total <= self._slabs.capacity_bytes

    def _fits(self, tenant: str, more: int, one: int) -> bool:
        """Whether each slot of these could be held beside those before it."""
        before = more - one
        left = self._slabs.capacity_bytes - self._total - before
        return more == 0 or self._of_tenant[tenant] + before < _PATIENCE * left

    def _change(self, slots: Sequence[Slot], sign: int) -> None:
        if slots and (size := sign * self._bytes(slots)):
            self._of_tenant[slots[0].tenant] += size
            self._total += size

    def _bytes(self, slots: Sequence[Slot]) -> int:
        """All slots of an owner are of one size, and mostly they are one's."""
        size, share, last = 0, 0, None
        for slot in slots:
            if slot.tier is Tier.DRAM:
                if slot.owner is not last:
                    last, places = slot.owner, self._slabs.slab_of(slot).places
                    share = self._slabs.slab_bytes // places
                size += share
        return size
