"""Blocks that several write together, and what becomes of them when one never comes."""

from __future__ import annotations

from kvstore.core.lifecycle import State
from kvstore.layout import Fragment
from kvstore.limits import PARTNERS_SECONDS
from kvstore.node.readers import Opened
from kvstore.node.store import Reserved
from tests.node.rig import SMALL, Rig, triples
from tests.nodes import SPEC, prompt

LEFT, RIGHT = Fragment(0, 2, 0, 1), Fragment(0, 2, 1, 1)  # a head each


def half(rig: Rig, name: str, fragment: Fragment, number: int = 1) -> tuple[object, Reserved]:
    """A rank of its own that has written and reserved its half of one block."""
    rank = rig.session(mapped=True)
    blocks = triples(prompt(number, spec=SPEC))
    (one,) = rig.store.reserve(rank, SMALL, blocks, fragment, name)
    assert one is not None
    rig.write(one.slot, SMALL, fragment)
    return rank, one


def test_a_half_whose_partner_never_comes_is_given_up_in_time() -> None:
    rig = Rig()
    rank, one = half(rig, "step-1", LEFT)
    assert rig.store.seal(rank, [one.handle]) == ["waiting"]
    rig.pass_time(PARTNERS_SECONDS - 0.1)
    rig.store.expire()
    assert one.slot.state is State.FILLING
    rig.pass_time(0.2)
    rig.store.expire()
    rig.store.check()
    assert one.slot.state is State.EMPTY, "nobody can write it: its memory is free"


def test_a_partner_that_may_still_write_keeps_the_memory_though_the_block_is_lost() -> None:
    rig = Rig()
    rank, one = half(rig, "step-1", LEFT)
    late, other = half(rig, "step-1", RIGHT)
    assert rig.store.seal(rank, [one.handle]) == ["waiting"]
    rig.pass_time(PARTNERS_SECONDS + 0.1)
    rig.store.expire()
    rig.store.check()
    assert other.slot.state is State.DOOMED
    rig.process_gone(late)
    rig.store.check()
    assert other.slot.state is State.EMPTY


def test_partners_that_come_in_time_make_the_block_whole() -> None:
    rig = Rig()
    rank, one = half(rig, "step-1", LEFT)
    assert rig.store.seal(rank, [one.handle]) == ["waiting"]
    rig.pass_time(PARTNERS_SECONDS / 2)
    other, two = half(rig, "step-1", RIGHT)
    assert rig.store.seal(other, [two.handle]) == ["sealed"]
    rig.pass_time(PARTNERS_SECONDS)
    rig.store.expire()
    rig.store.check()
    assert rig.hits(SMALL, prompt(1, spec=SPEC)) == 1


def test_who_knows_a_group_s_name_may_follow_what_it_is_filling() -> None:
    rig, blocks = Rig(), prompt(1, spec=SPEC)
    reader = rig.session()
    (early,) = rig.store.open(reader, SMALL, blocks.hashes, writer_group="meet here")
    _, one = half(rig, "meet here", LEFT)
    (found,) = rig.store.open(reader, SMALL, blocks.hashes, writer_group="meet here")
    assert not isinstance(early, Opened), "not reserved yet: ask again"
    assert isinstance(found, Opened) and found.slot is one.slot
    (other,) = rig.store.open(reader, SMALL, blocks.hashes, writer_group="elsewhere")
    assert not isinstance(other, Opened)


def test_another_tenant_cannot_follow_by_the_same_name() -> None:
    rig, blocks = Rig(), prompt(1, spec=SPEC)
    half(rig, "meet here", LEFT)
    stranger = rig.session(tenant="other")
    (found,) = rig.store.open(stranger, SMALL, blocks.hashes, writer_group="meet here")
    assert not isinstance(found, Opened)


def test_the_origin_a_writer_names_stays_with_the_block() -> None:
    rig = Rig()
    rank = rig.session()
    (one,) = rig.store.reserve(
        rank, SMALL, triples(prompt(1, spec=SPEC)), SMALL.layout.whole, origin=77
    )
    assert one is not None
    rig.write(one.slot, SMALL)
    rig.store.seal(rank, [one.handle])
    rig.blocks.heads.check(one.slot)
    assert one.slot.origin == 77
