"""What a Reserve asks for, as stored keys: what stands before each block, who fills it.

Decisions only: nothing is changed here, so a refused call changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvstore.core.lifecycle import Slot
from kvstore.core.windows import Windows
from kvstore.errors import Invalid
from kvstore.layout import Fragment

Keyed = tuple[bytes, bytes, int]  # stored key, that of the block before or nothing, tokens


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
