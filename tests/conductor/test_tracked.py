"""A node is believed what follows from what it said before; else all is asked for anew."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor.index import PoolIndex
from kvstore.conductor.table import Table
from kvstore.conductor.tracked import Tracked
from kvstore.core.carried import Carried
from kvstore.errors import Invalid, Overloaded
from kvstore.limits import CARRIED_KEPT
from kvstore.wire.prints import packed
from kvstore.wire.v1 import directory_pb2 as pb

CHAIN = [1, 2, 3, 4]


def begin(sequence: int, *, snapshot: bool = True, epoch: int = 7, node: str = "n") -> object:
    fields = {"node_id": node, "epoch": epoch, "sequence": sequence, "snapshot": snapshot}
    return pb.FollowReply(begin=pb.FollowReply.Begin(**fields))


def entries(sequence: int, blocks: dict[int, int]) -> pb.FollowReply.Entries:
    prints, tiers = np.array(list(blocks), np.uint64), np.array(list(blocks.values()), np.uint8)
    return packed(prints, tiers, sequence)


def part(blocks: dict[int, int]) -> pb.FollowReply:
    return pb.FollowReply(snapshot=entries(0, blocks))


def changes(sequence: int, blocks: dict[int, int] | None = None) -> pb.FollowReply:
    return pb.FollowReply(entries=entries(sequence, blocks or {}))


class Rig:
    def __init__(self, blocks_max: int = 1_000) -> None:
        self.table = Table(PoolIndex(0x9E3779B97F4A7C15))
        self.carried: list[tuple[str, Carried]] = []
        told = self.carried.append
        self.tracked = Tracked("n", self.table, blocks_max, lambda *one: told(one))

    def hear(self, *replies: object) -> None:
        for one in replies:
            self.tracked.take(one)  # type: ignore[arg-type]

    @property
    def known(self) -> int:
        """How many of the chain's blocks the table names."""
        return self.table.longest(np.array(CHAIN, np.uint64), ["n"]).get("n", 0)

    @property
    def stands(self) -> tuple[int, int]:
        request = self.tracked.request()
        return request.epoch, request.sequence


def caught_up() -> Rig:
    rig = Rig()
    rig.hear(begin(10), part({1: 1, 2: 3}), changes(10))
    assert (rig.known, rig.stands) == (2, (7, 10))
    return rig


def test_a_new_epoch_that_finds_no_more_room_goes_on_from_its_own_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.hear(begin(500), part({1: 1, 2: 1}), changes(500))
    assert rig.stands == (7, 500)
    rig.hear(begin(3, epoch=8), part({1: 1}))

    def full(*_: object) -> int:
        raise Overloaded("the index has all that it may have", 1)

    monkeypatch.setattr(rig.table, "change", full)
    with pytest.raises(Overloaded):
        rig.hear(changes(4, {2: 1}))
    assert rig.stands == (8, 3), "by its old epoch's number it would miss what came since"


def test_nothing_is_known_before_the_snapshot_is_whole_and_then_all() -> None:
    rig = Rig()
    rig.hear(begin(10), part({1: 1}), part({2: 2, 3: 3}))
    assert "n" not in rig.table and rig.tracked.epoch == 0
    rig.hear(changes(12, {3: 0, 9: 1}))
    assert rig.known == 2 and (rig.tracked.epoch, rig.tracked.sequence) == (7, 12)


def test_a_stream_that_breaks_goes_on_where_it_stood() -> None:
    rig = caught_up()
    rig.hear(begin(10, snapshot=False), changes(11, {3: 2}), changes(11), changes(12, {4: 1}))
    assert (rig.known, rig.stands) == (4, (7, 12))


def test_what_was_known_stays_until_a_new_snapshot_is_whole() -> None:
    rig = caught_up()
    rig.hear(begin(3, epoch=8), part({1: 1}))
    assert rig.known == 2
    assert rig.stands == (7, 10), "a snapshot that broke off counts for nothing"
    rig.hear(begin(3, epoch=8), part({1: 1}), changes(3))
    assert (rig.known, rig.stands) == (1, (8, 3))


def test_a_new_snapshot_within_a_stream_replaces_what_was_known() -> None:
    rig = caught_up()
    rig.hear(begin(10, snapshot=False), begin(500), part({1: 1, 2: 1, 3: 1}), changes(500))
    assert (rig.known, rig.stands) == (3, (7, 500))


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        ([begin(10, node="m")], "another node answers there"),
        ([begin(10, epoch=0)], "epoch 0"),
        ([begin(11, snapshot=False)], "never was"),
        ([begin(10, snapshot=False, epoch=8)], "never was"),
        ([part({1: 1})], "was not begun"),
        ([begin(10, snapshot=False), part({1: 1})], "was not begun"),
        ([begin(10), part({1: 0})], "names listed blocks"),
        ([begin(10), part({})], "names listed blocks"),
        ([changes(11, {1: 1})], "before the beginning"),
        ([begin(10, snapshot=False), changes(12, {1: 1})], "change 12 after 10 and 1 changes"),
        ([begin(10), changes(9)], "change 9 after 10"),
        ([begin(10), part({1: 8})], "tiers 8"),
        ([pb.FollowReply()], "does not know"),
    ],
)
def test_what_cannot_be_is_refused_and_all_is_asked_for_anew(
    replies: list[object], why: str
) -> None:
    rig = caught_up()
    rig.tracked.request()
    with pytest.raises(Invalid, match=why):
        rig.hear(*replies)
    assert rig.known == 2, "what was known goes on being known"
    assert rig.stands == (0, 0)
    rig.hear(begin(1), part({1: 1}), changes(1))
    assert rig.known == 1


def test_fingerprints_without_their_tiers_are_refused() -> None:
    rig = caught_up()
    torn = pb.FollowReply.Entries(sequence=11, fingerprints=bytes(9), tiers=b"\1")
    rig.hear(begin(10, snapshot=False))
    with pytest.raises(Invalid, match="9 bytes of fingerprints"):
        rig.hear(pb.FollowReply(entries=torn))


def test_a_node_that_names_more_than_it_can_have_is_not_believed() -> None:
    rig = Rig(blocks_max=5)
    with pytest.raises(Invalid, match="one node is believed to have 5"):
        rig.hear(begin(1), part(dict.fromkeys(range(6), 1)))
    rig.tracked.request()
    rig.hear(begin(1), part({1: 1, 2: 1, 3: 1}), changes(1))
    with pytest.raises(Invalid, match="one node is believed to have 5"):
        rig.hear(changes(4, {5: 1, 6: 1, 7: 1}))
    assert "n" not in rig.table


def test_what_a_host_carried_is_passed_on() -> None:
    rig, said = caught_up(), changes(10)
    rig.hear(begin(10, snapshot=False))
    said.carried.add(bytes=100, seconds=0.5, source="m")
    said.carried.add(bytes=50, seconds=0.25, of_ssd=True)
    rig.hear(said)
    assert rig.carried == [
        ("n", Carried(100, 0.5, False, "m")),
        ("n", Carried(50, 0.25, True, "")),
    ]
    for _ in range(CARRIED_KEPT):
        said.carried.add(bytes=1, seconds=1.0)
    with pytest.raises(Invalid, match="one message has at most 8"):
        rig.hear(said)
    with pytest.raises(Invalid, match="name of 2000 characters"):
        said = changes(10)
        said.carried.add(bytes=1, seconds=1.0, source="x" * 2_000)
        rig.hear(begin(0), changes(0), begin(10), said)
