"""Blocks behind a hole make room for those whose they are, and cost nobody else anything."""

from __future__ import annotations

from kvstore.block import Miss
from kvstore.core.index import Index
from tests.core.test_index import OWNERS, keys_of, sealed


class Looked(set[bytes]):
    """Spares nothing, and has what it was asked for."""

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, bytes)
        self.add(key)
        return False


def behind_a_hole(index: Index, name: str, count: int, owner: int, tenant: str) -> list[bytes]:
    keys = [f"{name} {number:05}".encode() for number in range(count)]
    slots = [sealed(key, keys[i - 1] if i else b"", owner) for i, key in enumerate(keys)]
    for slot in slots:
        slot.tenant = tenant
    index.add_all(slots)
    index.drop(keys[0], Miss.DAMAGED)
    index.check()
    return keys[1:]


def test_what_is_unlisted_of_others_is_not_looked_at() -> None:
    index, looked = Index(), Looked()
    behind_a_hole(index, "of its", 20, owner=0, tenant="other")
    behind_a_hole(index, "theirs", 20, owner=1, tenant="mine")
    mine = behind_a_hole(index, "mine..", 3, owner=0, tenant="mine")
    assert keys_of(index.coldest(OWNERS[0], "mine", looked)) == mine
    assert set(looked) == set(mine)


def test_what_is_unlisted_of_several_goes_as_it_came_to_be() -> None:
    index = Index()
    order = [b"block %02d" % number for number in range(5)]
    for key, owner in zip(order, (0, 1, 1, 0, 1), strict=True):
        index.add(sealed(key, b"absent..", owner))
    index.check()
    assert keys_of(index.coldest()) == order and list(index.recent()) == order[::-1]
    assert keys_of(index.coldest(OWNERS[1])) == [order[1], order[2], order[4]]


def test_what_is_listed_again_or_gone_leaves_no_line_behind() -> None:
    index = Index()
    healed = behind_a_hole(index, "healed", 3, owner=0, tenant="a")
    gone = behind_a_hole(index, "gone..", 3, owner=1, tenant="b")
    hole = sealed(b"healed 00000")
    hole.tenant = "a"
    index.add(hole)
    for key in gone:
        index.drop(key, Miss.EVICTED)
        index.check()
    assert index.unlisted == 0 and not index._unlisted._lines, "an empty line is kept"
    assert index.longest([hole.key, *healed]) == 3
