"""What a Reserve asks for, as stored keys: what stands before each block, who fills it, and whether
it is to wait for room.

Decisions only: nothing is changed here, so a refused call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from kvstore.core.held import Held
from kvstore.core.lifecycle import Slot, Tier
from kvstore.core.windows import Windows
from kvstore.errors import Invalid
from kvstore.layout import Fragment
from kvstore.node.blocks import Blocks
from kvstore.node.namespaces import Place

Keyed = tuple[bytes, bytes, int]  # stored key, that of the block before or nothing, tokens


class Need(enum.Enum):
    """Of room in DRAM."""

    NOTHING = "nothing"  # all of it is there already, or others of its group are filling it
    ROOM = "room"  # new slots
    TOO_MUCH = "too much"  # more than its tenant could ever have


class Named(NamedTuple):
    """The blocks of one call, as things stand."""

    keys: Sequence[bytes]
    parents: Sequence[bytes]
    keyed: Sequence[Keyed]
    joined: Mapping[bytes, Slot]  # by key, what other members of the writer group are filling
    fresh: Sequence[bool]  # of each, whether it is neither there nor being filled
    before: bytes = b""  # of blocks that stand alone: key of the one that the first comes after

    @property
    def wanted(self) -> list[Keyed]:
        """Those that want new slots."""
        return list(compress(self.keyed, self.fresh))

    @property
    def spared(self) -> set[bytes]:
        """Keys of what makes no room for these: what the caller is told exists, and what stands
        before them."""
        near = {*self.keys, *self.parents, self.before}
        return near.difference(compress(self.keys, self.fresh))


class Wants:
    """What calls want of one store."""

    def __init__(
        self,
        blocks: Blocks,
        windows: Windows,
        held: Held,
        keys: Callable[[str, Place, Sequence[bytes]], list[bytes]],
    ) -> None:
        self._blocks, self._windows, self._held = blocks, windows, held
        self._keys = keys  # of a tenant's blocks, by their hashes

    def named(
        self,
        tenant: str,
        place: Place,
        chain: Sequence[tuple[bytes, bytes, int]],
        fragment: Fragment,
        writer_group: str,
        after: bytes | None = None,
    ) -> Named:
        """The blocks of (hash, parent hash, tokens) triples, the first of which comes after the one
        with that hash. Raises what `joined_by` raises."""

        def of_others(some: Sequence[bytes]) -> list[bytes]:
            return self._keys(tenant, place, some)

        hashes, before, tokens = zip(*chain, strict=True) if chain else ((), (), ())
        keys = self._keys(tenant, place, hashes)
        parents = parents_of(before, dict(zip(hashes, keys, strict=True)), of_others)
        keyed = list(zip(keys, parents, tokens, strict=True))
        held = self._blocks.index.get_all(keys)
        joined: dict[bytes, Slot] = {}
        if writer_group:
            joined = joined_by(self._windows, tenant, writer_group, keyed, fragment)
        fresh = [slot is None and key not in joined for key, slot in zip(keys, held, strict=True)]
        last = self._keys(tenant, place, [after])[0] if after else b""
        if last in keys:
            raise Invalid("after: it is one of the blocks that are to come after it")
        return Named(keys, parents, keyed, joined, fresh, last)

    def need(
        self,
        tenant: str,
        place: Place,
        chain: Sequence[tuple[bytes, bytes, int]],
        fragment: Fragment,
        writer_group: str = "",
        reach: Tier = Tier.DRAM,
        after: bytes | None = None,
    ) -> Need:
        """What these need of DRAM. `reach`: the highest tier that their writer can write to."""
        named = self.named(tenant, place, chain, fragment, writer_group, after)
        blocks, size, count = self._blocks, place.layout.slot_bytes, sum(named.fresh)
        if not count:
            return Need.NOTHING
        if blocks.hbm is not None and reach is Tier.HBM:
            count = max(0, count - blocks.hbm.most(size))
        near = [*named.joined.values(), *filter(None, blocks.index.get_all(list(named.spared)))]
        beside = count + sum(slot.tier is Tier.DRAM for slot in near) + self._behind(near)
        fits = beside <= blocks.slabs.most(size) and not blocks.shares.never(tenant, size * beside)
        return Need.ROOM if fits and self._held.ever(size, count) else Need.TOO_MUCH

    def _behind(self, near: Sequence[Slot]) -> int:
        """Slots of DRAM that stay as well, for what stands behind them does."""
        seen, count = {slot.key for slot in near}, 0
        for slot in near:
            while slot.behind and slot.behind not in seen:
                before = self._blocks.index.peek(slot.behind)
                if before is None:
                    break
                seen.add(before.key)
                count += before.lowest is Tier.DRAM  # of what is on SSD too the copy here may go
                slot = before
        return count


def parents_of(
    before: Sequence[bytes],
    known: Mapping[bytes, bytes],
    keys: Callable[[Sequence[bytes]], Sequence[bytes]],
) -> list[bytes]:
    """The stored keys of the blocks with these hashes, empty where there is none.

    Most are among those that the call names itself, whose keys are `known`; `keys` makes others.
    """
    others = list({one for one in before if one and one not in known})
    found = {b"": b"", **known, **dict(zip(others, keys(others), strict=True))}
    return [found[one] for one in before]


def joined_by(
    windows: Windows,
    tenant: str,
    writer_group: str,
    keyed: Sequence[Keyed],
    fragment: Fragment,
) -> dict[bytes, Slot]:
    """By key, the slots of these blocks that other members of the writer group are filling.

    Raises `Invalid` where they say another thing of a block, `AlreadyWritten` where they have part
    of the fragment.
    """
    joined: dict[bytes, Slot] = {}
    for key, parent, tokens in keyed:
        group = (tenant, writer_group, key)
        slot = windows.slot_of(group)
        if slot is None:
            continue
        if slot.tokens != tokens:
            raise Invalid(f"tokens {tokens}: this writer group fills a block of {slot.tokens}")
        if slot.parent != parent:
            raise Invalid("this writer group fills the block behind another parent")
        windows.check_free(group, fragment)
        joined[key] = slot
    return joined
