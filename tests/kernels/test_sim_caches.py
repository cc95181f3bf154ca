"""Simulated hosts keep what nodes keep, whose own ranking and lanes are driven beside them."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block import Miss
from kvstore.core.index import Index
from kvstore.core.lanes import Lanes
from kvstore.core.lifecycle import Slot, State, Tier
from kvstore.core.placement import TierView, Waiting, plan
from kvstore.kernels.fleet import nothing
from kvstore.kernels.keeping import STARTS
from kvstore.kernels.sim_caches import empty_host, keep, use
from kvstore.kernels.sim_known import COMING, DRAM, NONE, SSD, Caches, caches, expect
from kvstore.kernels.sim_look import leading, look

PROVEN = settings(derandomize=True, deadline=None, max_examples=60)  # the machine may be busy
HOSTS = 70  # more than bits of a word
USED = (0, 1, 63, 64, 69)
# Prompts: paths of a tree, so that every block has one parent.
PATHS = ((0, 1, 2, 3), (0, 1, 4, 5, 6), (0, 7), (8, 9, 10, 11, 12, 13), (8, 9, 14))
BLOCKS = 15
OWNER = (b"n" * 32, 0)

Path = tuple[int, ...]


class OneSize:
    """Slabs of which `Lanes` asks nothing but how large a slot is."""

    slot_bytes = 1

    def slab_of(self, slot: Slot) -> OneSize:
        return self


def key_of(block: int) -> bytes:
    return b"%016d" % block


class Node:
    """One host's tiers, of the parts that a node decides by, with no bytes in them."""

    def __init__(self, dram: int, ssd: int) -> None:
        self.dram, self.ssd = dram, ssd
        self.index = Index()
        self.copied = Lanes(self.index, OneSize())

    def held(self, tier: int) -> set[int]:
        """Numbers of the blocks that are in a tier."""
        here = [slot for slot in self.index if tier in (slot.tier, slot.twin and slot.twin.tier)]
        return {int(slot.key) for slot in here}

    def use(self, path: Path) -> None:
        keys = [key_of(block) for block in path]
        touched = self.index.touch(keys[: self.index.longest(keys)])
        for slot in touched:
            self.copied.touch(slot)
        for slot in touched:
            self._write(slot)

    def keep(self, path: Path) -> int:
        if not self.dram:
            return 0
        keys = [key_of(block) for block in path]
        there = [slot for slot in map(self.index.held, keys) if slot is not None]
        read = [slot for slot in there if slot.tier is Tier.SSD]
        wanted = len(read) + len(keys) - len(there)
        room = self._make_room(wanted, set(keys))
        for slot in reversed(read[:room]):
            self._read(slot)
        new = []
        for place in range(len(there), len(there) + room - len(read)):
            slot = Slot(int(keys[place]), 0, OWNER, State.SEALED, key=keys[place], root=b"r" * 16)
            slot.parent = keys[place - 1] if place else b""
            new.append(slot)
        if new:
            self.index.add_all(new)
        for slot in new:
            self._write(slot)
        return room

    def _make_room(self, wanted: int, spared: set[bytes]) -> int:
        short = wanted - (self.dram - len(self.held(Tier.DRAM)))
        lost = self.index.coldest(OWNER, "", spared, Tier.DRAM)
        goes = list(islice(chain(self.copied.coldest(OWNER, "", spared), lost), max(0, short)))
        gone = [slot for slot in goes if slot.twin is None]
        for slot in goes:
            if slot.twin is not None:
                self.copied.discard(slot)
                self.index.replace(slot.twin)
                slot.twin.twin = slot.twin = None
        if gone:
            self.index.drop_all(gone, Miss.EVICTED)
        return min(wanted, self.dram - len(self.held(Tier.DRAM)))

    def _read(self, slot: Slot) -> None:
        target = Slot(slot.number, 0, OWNER, State.SEALED, key=slot.key, parent=slot.parent)
        slot.twin, target.twin = target, slot
        self.index.replace(target)
        self.copied.add(target)

    def _write(self, slot: Slot) -> None:
        if not self.ssd or slot.lowest is Tier.SSD or self.index.held(slot.key) is not slot:
            return
        displaced = None
        if len(self.held(Tier.SSD)) == self.ssd:
            gone = next(self.index.coldest(OWNER, "", (slot.key,), Tier.SSD), None)
            if gone is None:
                return
            displaced = self.index.worth(gone)[0]
        waits = Waiting(slot, False, self.index.worth(slot)[0], displaced)
        if not plan(TierView(False, [waits]))[0].write:
            return
        if displaced is not None:
            self.copied.discard(gone)
            self.index.drop(gone.key, Miss.EVICTED)
        slot.twin = Slot(slot.number, 0, OWNER, State.SEALED, key=slot.key, parent=slot.parent)
        slot.twin.tier, slot.twin.twin = Tier.SSD, slot
        self.copied.add(slot)
        self.index.moved(slot)


class Model:
    """Every host, and how many prompts compute a block there."""

    def __init__(self, hosts: int, dram: int, ssd: int) -> None:
        self.tiers = dram, ssd
        self.nodes = [Node(dram, ssd) for _ in range(hosts)]
        self.coming: list[Counter[int]] = [Counter() for _ in range(hosts)]

    def found(self, path: Path) -> dict[str, list[int]]:
        told: dict[str, list[int]] = {"dram": [], "local": [], "coming": []}
        for node, coming in zip(self.nodes, self.coming, strict=True):
            dram, ssd = (node.held(tier) if len(node.index) else set() for tier in (DRAM, SSD))
            told["dram"].append(leads(path, dram))
            told["local"].append(leads(path, dram | ssd))
            told["coming"].append(leads(path, dram | set(+coming)))
        return told


def leads(path: Path, some: set[int]) -> int:
    return next((i for i, one in enumerate(path) if one not in some), len(path))


def blocks(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(path, np.int32)


def check(made: Caches, model: Model) -> None:
    """Both hold the same; what is known and what is free is all there is."""
    words = np.where((made.row_of != NONE)[:, None, None], made.bits[made.row_of], np.uint64(0))
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    for host, node in enumerate(model.nodes):
        for tier in (DRAM, SSD):
            held = node.held(tier)
            assert made.sizes[host, tier] == len(held) <= model.tiers[tier]
            assert set(np.flatnonzero(bits[:, tier, host])) == held
        assert made.hosts["held"][host] == len(node.index)
        ranking = node.index._ranking
        assert made.lives.worth[host].tolist() == pytest.approx(
            np.array(ranking._worth[:-1]), rel=1e-12
        )
        assert made.hosts["credit"][host] == pytest.approx(ranking._rival._credit)
        assert made.hosts["pays"][host] == ranking._rival.pays
        assert made.lists["size"][host] == len(ranking._rival.held)
    assert made.sizes[:, COMING].tolist() == [len(+one) for one in model.coming]
    known = int((made.entries["state"][: made.numbers[2]] != 0).sum())
    assert (made.table != 0).sum() == known
    assert known + made.numbers[1] == made.numbers[2], "entries are lost"
    assert len(made.users) - made.numbers[0] == (made.row_of != NONE).sum()
    assert int(made.users.sum()) == int(made.sizes.sum())


ACTS = st.tuples(
    st.sampled_from(["use", "keep", "expect", "done", "empty"]),
    st.sampled_from(USED),
    st.sampled_from(PATHS),
    st.integers(1, 6),
)


@PROVEN
@given(st.lists(ACTS, max_size=60), st.integers(0, 7), st.integers(0, 9))
def test_they_find_what_nodes_find(
    acts: list[tuple[str, int, Path, int]], dram: int, ssd: int
) -> None:
    made = empty_caches(BLOCKS, HOSTS, dram, ssd)
    model = Model(HOSTS, dram, ssd)
    computed: list[tuple[int, Path]] = []
    on, found = np.zeros((3, -(-HOSTS // 64)), np.uint64), nothing(HOSTS, HOSTS)
    for what, host, path, count in acts:
        some = path[:count]
        if what == "use":
            use(made, host, blocks(some))
            model.nodes[host].use(some)
        elif what == "keep":
            assert keep(made, host, blocks(some)) == model.nodes[host].keep(some)
        elif what == "expect":
            expect(made, host, blocks(some), 1)
            model.coming[host].update(some)
            computed.append((host, some))
        elif what == "done" and computed:
            where, gone = computed.pop(count % len(computed))
            expect(made, where, blocks(gone), -1)
            model.coming[where].subtract(gone)
        elif what == "empty":
            empty_host(made, host)
            model.nodes[host] = Node(dram, ssd)
        look(made, blocks(path), on, found)
        told = model.found(path)
        assert found.dram.tolist() == told["dram"]
        assert found.local.tolist() == told["local"]
        assert found.coming.tolist() == told["coming"]
        assert leading(made, host, blocks(path)) == told["dram"][host]
    check(made, model)


def empty_caches(blocks: int, hosts: int, dram: int, ssd: int) -> Caches:
    many = np.full(hosts, 1, np.int64)
    return caches(blocks, dram * many, ssd * many, 1_000, 1 << 20)


@pytest.mark.parametrize(("dram", "ssd"), [(40, 0), (25, 60), (60, 40)])
def test_they_learn_what_nodes_learn(dram: int, ssd: int) -> None:
    dice = np.random.default_rng(dram)
    paths = tree_of_prompts(dice)
    numbered = 1 + max(max(path) for path in paths)
    made, model = empty_caches(numbered, 2, dram, ssd), Model(2, dram, ssd)
    turns = set()
    for step in range(3_000):
        # Few are asked for often, and some that are new only once.
        path = paths[int(len(paths) * dice.random() ** 3)] if dice.random() < 0.8 else paths[step]
        host = int(dice.integers(2))
        use(made, host, blocks(path))
        model.nodes[host].use(path)
        if dice.random() < 0.9:
            assert keep(made, host, blocks(path)) == model.nodes[host].keep(path)
        if step % 100 == 99:
            check(made, model)
        turns.add(bool(made.hosts["pays"][host]))
    assert made.lives.worth.max() > 0, "nothing was learned"
    assert (made.lives.tick > 100).all()


def tree_of_prompts(dice: np.random.Generator) -> list[Path]:
    """Three thousand, each some blocks behind the start of one before it, or behind nothing."""
    paths: list[Path] = [tuple(range(4))]
    numbered = 4
    while len(paths) < 3_000:
        base = paths[int(dice.integers(len(paths)))]
        start = base[: int(dice.integers(0, len(base) + 1))][:12]
        more = int(dice.integers(1, 6))
        paths.append((*start, *range(numbered, numbered + more)))
        numbered += more
    return paths


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    made = empty_caches(10, 1, 4, 0)
    assert keep(made, 0, np.arange(10, dtype=np.int32)) == 4
    assert leading(made, 0, np.arange(10, dtype=np.int32)) == 4


def test_more_that_is_coming_than_there_is_place_for_is_not_noted() -> None:
    made = caches(10, np.array([0]), np.array([0]), 3, 10)
    on, found = np.zeros((3, 1), np.uint64), nothing(1, 1)
    some = np.arange(10, dtype=np.int32)
    expect(made, 0, some, 1)
    look(made, some, on, found)
    assert found.coming[0] == 3
    expect(made, 0, some, -1)
    assert made.sizes.sum() == 0


def test_what_is_gone_is_forgotten_before_there_is_no_place_for_what_is_held() -> None:
    made = caches(1_000, np.array([4, 4]), np.array([0, 0]), 0, 1_000)
    for start in range(0, 1_000, 4):
        for host in (0, 1):
            assert keep(made, host, np.arange(start, start + 4, dtype=np.int32)) == 4
    assert made.sizes[:, DRAM].tolist() == [4, 4]
    assert made.sizes[:, SSD].tolist() == [0, 0]


def test_waits_longer_than_are_remembered_are_not_learned_from() -> None:
    made = caches(1_000, np.array([10]), np.array([0]), 0, 1)
    for block in range(1_000):
        keep(made, 0, np.array([block], np.int32))
    ticks = made.lives.waiting.shape[1]
    known = np.array(STARTS) < ticks
    assert made.lives.tick[0] > 2 * ticks
    assert (made.lives.came[0, 0, known] > 0).all() and not made.lives.came[0, :, ~known].any()


def test_a_host_that_has_room_for_more_blocks_than_are_numbered_has_room_for_all() -> None:
    made = caches(BLOCKS, np.array([1 << 31]), np.array([(1 << 33) + 5]), 0, 100)
    assert keep(made, 0, blocks(PATHS[0])) == len(PATHS[0])
