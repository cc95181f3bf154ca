"""Of the leaves the one that is worth least goes; while nothing is known that is LRU's."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.leaves import SWEEP_MIN, Leaves
from kvstore.core.life_table import LifeTable
from kvstore.core.lifecycle import Slot, State
from kvstore.core.ranking import SHORT, Ranking, Seen
from kvstore.core.rival import Rival
from kvstore.kernels.keeping import LEARN_TICKS, TICK

OWNERS = [(b"a", 0), (b"b", 0)]


def sealed(key: bytes, parent: bytes = b"", owner: int = 0, short: bool = False) -> Slot:
    return Slot(0, 0, OWNERS[owner], State.SEALED, key=key, parent=parent, short=short)


def name(number: int) -> bytes:
    return b"%d" % number


@pytest.fixture
def always_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rival, "use", lambda self, key, found: setattr(self, "pays", True))


def slowly_coldest(index: Index, owner: object, spared: set[bytes]) -> Iterator[bytes]:
    """Look at all leaves for the two ends of each kind, let the worst go, look again."""
    ranking = index._ranking
    children = {slot.key: set(slot.children) for slot in index}
    while True:
        places: dict[object, list[Slot]] = {}
        for slot in index:
            ours = owner in (None, slot.owner) and not slot.held and slot.key not in spared
            if ours and slot.key in children and not children[slot.key]:
                kind = ranking.recency[slot.key].kind
                places.setdefault((slot.owner, kind), []).append(slot)
        ends = []
        for leaves in places.values():
            leaves.sort(key=lambda slot: ranking.recency[slot.key].stamp)
            ends += [leaves[0], leaves[-1]]
        if not ends:
            return
        worst = min(ends, key=lambda slot: (*ranking.worth(slot.key), slot.key))
        yield worst.key
        del children[worst.key]
        children.get(worst.parent, set()).discard(worst.key)


def a_pool_behaves_like_its_model(seed: int) -> None:
    dice = random.Random(seed)
    parents = {name(i): name(dice.randrange(i)) if i % 4 else b"" for i in range(1, 300)}
    parents[b"0"] = b""
    index = Index()
    for step in range(1_500):
        chain = [dice.choice(sorted(parents))]
        while parents[chain[0]]:
            chain.insert(0, parents[chain[0]])
        for key in chain:
            if key not in index:
                owner = int(chain[0]) % 3 == 1
                index.add(sealed(key, parents[key], owner, short=int(key) % 7 == 0))
        index.touch(chain)
        owner = dice.choice([None, *OWNERS])
        while len(index) > 60:
            index.drop(next(index.coldest()).key, Miss.EVICTED)
        if step % 25 == 0:
            index.check()
            pinned = [slot for slot in index if dice.random() < 0.03]
            for slot in pinned:
                slot.pins = 1
            spared = set(dice.sample(sorted(parents), 5))
            order = [slot.key for slot in index.coldest(owner, None, spared)]
            assert order == list(slowly_coldest(index, owner, spared))
            for slot in pinned:
                slot.pins = 0
    worth = index._ranking._worth
    assert len({one for kind in worth for one in kind}) > 10, "nothing was learned"


@pytest.mark.usefixtures("always_learning")
@pytest.mark.parametrize("seed", range(3))
def test_the_order_is_that_of_looking_at_all_leaves_each_time(seed: int) -> None:
    a_pool_behaves_like_its_model(seed)


@pytest.mark.usefixtures("always_learning")
def test_a_parent_that_is_not_looked_at_when_bared_turns_the_suite_red(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ranking, "bared", lambda self, slot: None)
    with pytest.raises((AssertionError, StopIteration)):
        a_pool_behaves_like_its_model(0)


def test_without_evidence_the_least_recently_used_goes() -> None:
    dice, index, recency = random.Random(1), Index(), list(map(name, range(50)))
    for key in recency:
        index.add(sealed(key))
    for _ in range(400):
        key = dice.choice(recency)
        recency.remove(key)
        recency.append(key)
        index.touch([key])
    assert [slot.key for slot in index.coldest()] == recency


@pytest.mark.usefixtures("always_learning")
def test_what_is_asked_for_again_outlives_what_came_later_and_once() -> None:
    index, scanned = Index(), 1_000
    for number in range(12_000):
        key = name(number % 40) if number % 2 else name(scanned := scanned + 1)
        if key not in index:
            index.add(sealed(key))
        index.touch([key])
        while len(index) > 60:
            index.drop(next(index.coldest()).key, Miss.EVICTED)
    assert sum(name(number) in index for number in range(1, 40, 2)) == 20


def test_a_kind_is_how_often_a_block_was_used_and_short_ones_are_apart() -> None:
    index = Index()
    index.add(sealed(b"often"))
    index.add(sealed(b"end", b"often", short=True))
    kinds = []
    for number in range(9):
        kinds.append(index._ranking.recency[b"often"].kind)
        index.add(sealed(name(3 * number)))
        index.add(sealed(name(3 * number + 1)))
        index.add(sealed(name(3 * number + 2)))
        index.touch([b"often"])
        index.touch([b"end"])
    assert kinds == [0, 1, 1, 2, 2, 2, 2, 3, 3]
    assert index._ranking.recency[b"end"].kind == SHORT


def test_asking_twice_for_one_request_is_one_use() -> None:
    index = Index()
    keys = [name(number) for number in range(20)]
    for number, key in enumerate(keys):
        index.add(sealed(key, keys[number - 1] if number else b""))
    for _ in range(5):
        index.touch(keys)
    assert {seen.uses for seen in index._ranking.recency.values()} == {1}
    for number in range(100, 200):
        index.add(sealed(name(number)))
    for _ in range(5):
        index.touch(keys)
    assert {index._ranking.recency[key].uses for key in keys} == {2}


def test_an_evicted_block_that_comes_back_is_remembered() -> None:
    index = Index()
    for _ in range(3):
        index.add(sealed(b"again"))
        index.drop(b"again", Miss.EVICTED)
    index.add(sealed(b"again"))
    assert index._ranking.recency[b"again"].uses == 4


def known_by(ranking: Ranking) -> object:
    """All that it has of blocks and has learned from them."""
    table, seen = ranking._table, ranking.recency.items()
    leaves = {
        lane: one.entries() for all_ in ranking._leaves.values() for lane, one in all_.items()
    }
    counts = [table.tick, table._fresh, table._came.tolist(), table._waiting[: table.tick].tolist()]
    return [*seen], leaves, counts, [*ranking._rival.held], ranking._worth


def blocks_that_nobody_knows_enter_as_any_others(
    monkeypatch: pytest.MonkeyPatch, *harm: object
) -> None:
    """`harm`: what is set otherwise while they do."""
    dice, together, singly = random.Random(5), {}, {}
    quick, slow = Ranking(together), Ranking(singly)
    for part in range(90):
        before = name(1_000 * part - 1)
        made = [
            (name(1_000 * part + i), before, i % 2, dice.random() < 0.2)
            for i in range(dice.choice([1, 2, 5, TICK - 1, TICK, 3 * TICK + 7]))
        ]
        both = [[sealed(*one) for one in made] for _ in range(2)]
        for slots, held in zip(both, (together, singly), strict=True):
            held.update((slot.key, slot) for slot in slots)
        with monkeypatch.context() as patch:
            if harm:
                patch.setattr(*harm)
            quick.enter(both[0], [None] * len(made))
        with monkeypatch.context() as patch:
            patch.setattr(Ranking, "_enter_new", None)  # so these are taken for known ones
            slow.enter(both[1], [Seen(0, 0, 0, 0) for _ in made])
        assert known_by(quick) == known_by(slow)
    assert quick._table.tick > 2 * LEARN_TICKS, "worth was worked out"


def test_blocks_that_nobody_knows_enter_as_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_that_nobody_knows_enter_as_any_others(monkeypatch)


_enter_new = Ranking._enter_new


@pytest.mark.parametrize(
    "harm",
    [
        (Ranking, "_pass_tick", lambda self: None),
        (LifeTable, "wait", lambda self, kind, count=1: None),
        (Ranking, "_enter_new", lambda self, slots: _enter_new(self, slots[::-1])),
        (Ranking, "_queue_leaves", lambda self, slots, seen: None),
        (Rival, "hold", lambda self, keys: None),
    ],
    ids=lambda harm: harm[1],
)
def test_new_blocks_that_enter_otherwise_turn_the_suite_red(
    monkeypatch: pytest.MonkeyPatch, harm: tuple[object, ...]
) -> None:
    with pytest.raises(AssertionError):
        blocks_that_nobody_knows_enter_as_any_others(monkeypatch, *harm)


def test_what_lru_would_hold_still_is_not_new() -> None:
    index = Index()
    index._ranking._rival.touch([b"known"])
    credit = index._ranking._rival._credit
    index.add(sealed(b"unknown"))
    assert index._ranking._rival._credit == credit
    index.add(sealed(b"known"))
    assert index._ranking._rival._credit < credit, "LRU would have found it"


def test_what_is_removed_waits_to_be_looked_at_no_more() -> None:
    index = Index()
    for number in range(10 * SWEEP_MIN):
        index.add(sealed(name(number)))
        index.drop(name(number), Miss.REMOVED)
    every = [one for lanes in index._ranking._leaves.values() for one in lanes.values()]
    assert not any(leaves.old or leaves.young or leaves.new for leaves in every)


def test_entries_that_are_no_leaves_any_more_are_swept_out() -> None:
    index = Index()
    index.add(sealed(b"a"))
    index.add(sealed(b"b"))
    for _ in range(20 * SWEEP_MIN):
        index.touch([b"a"])
        index.touch([b"b"])
    every = [one for lanes in index._ranking._leaves.values() for one in lanes.values()]
    heaps = [heap for leaves in every for heap in (leaves.old, leaves.young, leaves.new)]
    assert max(map(len, heaps)) <= SWEEP_MIN + 1
    index.check()


def test_entries_are_swept_out_too_where_room_is_looked_for_after_each_use() -> None:
    leaves, current = Leaves(), {}
    for stamp in range(20 * SWEEP_MIN):
        current[b"a" if stamp % 2 else b"b"] = stamp
        used = {b"a" if stamp % 2 else b"b": stamp}
        leaves.push(used, lambda one: current[one[1]] == abs(one[0]))
        old, young = leaves.ends(lambda one: current[one[1]] == abs(one[0]))
        if stamp:
            assert old.first(lambda _: True) == (stamp - 1, b"b" if stamp % 2 else b"a")
            assert young.first(lambda _: True) == (-stamp, b"a" if stamp % 2 else b"b")
    assert max(map(len, (leaves.old, leaves.young, leaves.new))) <= SWEEP_MIN


def test_a_use_waits_outside_the_heaps_until_somebody_looks_for_room() -> None:
    leaves = Leaves()
    for stamp in range(SWEEP_MIN // 2):
        leaves.push({b"a": stamp}, lambda _: True)
    assert (leaves.old, leaves.young, leaves.new) == ([], [], {b"a": SWEEP_MIN // 2 - 1})
    leaves.ends(lambda _: True)
    assert leaves.new == {} and len(leaves.old) == len(leaves.young) == 1


def test_learning_stops_where_lru_would_have_found_more_and_goes_on_when_it_pays() -> None:
    rival = Rival()
    rival.touch(map(name, range(100)))
    assert rival.pays, "a little is given"
    for _ in range(10_000):
        rival.use(b"5", found=True)
    assert rival.pays, "LRU's own hits pay for it"
    for _ in range(60):
        rival.use(b"5", found=False)
    assert not rival.pays
    for _ in range(80):
        rival.use(b"unknown to LRU", found=True)
    assert rival.pays


def test_what_lru_would_hold_is_as_much_as_is_held() -> None:
    rival = Rival()
    rival.touch(map(name, range(10)))
    rival.touch([b"0"])
    rival.fit(3)
    assert list(rival.held) == [b"8", b"9", b"0"]
    rival.lose(b"9")
    assert list(rival.held) == [b"8", b"0"]
