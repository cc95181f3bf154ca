"""Simulated caches hold what bounded LRU lists in Python hold, whatever is done to them."""

from __future__ import annotations

from collections import Counter, OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.kernels import sim_caches
from kvstore.kernels.fleet import nothing
from kvstore.kernels.sim_caches import COMING, DRAM, SSD, empty_host, expect, leading, look, touch

PROVEN = settings(derandomize=True, deadline=None, max_examples=60)  # the machine may be busy
HOSTS = 70  # more than bits of a word
USED = (0, 1, 63, 64, 69)
# Prompts: paths of a tree, so that every block has one parent.
PATHS = ((0, 1, 2, 3), (0, 1, 4, 5, 6), (0, 7), (8, 9, 10, 11, 12, 13), (8, 9, 14))
BLOCKS = 15


class Model:
    """For each host its blocks, the oldest first, and how many prompts compute a block there."""

    def __init__(self, dram: int, ssd: int) -> None:
        self.capacity = {DRAM: dram, SSD: ssd}
        self.held = {(host, plane): OrderedDict() for host in range(HOSTS) for plane in (DRAM, SSD)}
        self.coming = {host: Counter() for host in range(HOSTS)}

    def touch(self, host: int, plane: int, blocks: tuple[int, ...]) -> int:
        held, came = self.held[host, plane], 0
        for block in reversed(blocks):
            if not self.capacity[plane]:
                return 0
            came += block not in held
            if block not in held and len(held) == self.capacity[plane]:
                held.popitem(last=False)
            held[block] = True
            held.move_to_end(block)
        return came

    def leading(self, host: int, path: tuple[int, ...], *kinds: object) -> int:
        return next(
            (i for i, one in enumerate(path) if not any(one in kind for kind in kinds)), len(path)
        )

    def found(self, path: tuple[int, ...]) -> dict[str, list[int]]:
        told = {"dram": [], "local": [], "coming": []}
        for host in range(HOSTS):
            dram, ssd = self.held[host, DRAM], self.held[host, SSD]
            told["dram"].append(self.leading(host, path, dram))
            told["local"].append(self.leading(host, path, dram, ssd))
            told["coming"].append(self.leading(host, path, dram, +self.coming[host]))
        return told


ACTS = st.tuples(
    st.sampled_from(["dram", "ssd", "expect", "done", "empty"]),
    st.sampled_from(USED),
    st.sampled_from(PATHS),
    st.integers(1, 6),
)


@PROVEN
@given(st.lists(ACTS, max_size=60), st.integers(0, 7), st.integers(0, 9))
def test_they_hold_what_lists_in_python_hold(
    acts: list[tuple[str, int, tuple[int, ...], int]], dram: int, ssd: int
) -> None:
    caches = sim_caches.caches(
        BLOCKS, np.full(HOSTS, dram, np.int64), np.full(HOSTS, ssd, np.int64), 1_000
    )
    model, computed = Model(dram, ssd), []
    on, found = np.zeros((3, -(-HOSTS // 64)), np.uint64), nothing(HOSTS, HOSTS)
    for what, host, path, count in acts:
        some = path[:count]
        blocks = np.array(some, np.int32)
        if what in ("dram", "ssd"):
            plane = DRAM if what == "dram" else SSD
            came = touch(caches, host, plane, blocks)
            assert came == model.touch(host, plane, some)
        elif what == "expect":
            expect(caches, host, blocks, 1)
            model.coming[host].update(some)
            computed.append((host, some))
        elif what == "done" and computed:
            where, gone = computed.pop(count % len(computed))
            expect(caches, where, np.array(gone, np.int32), -1)
            model.coming[where].subtract(gone)
        elif what == "empty":
            empty_host(caches, host)
            model.held[host, DRAM].clear()
            model.held[host, SSD].clear()
        check(caches, model)
        look(caches, np.array(path, np.int32), on, found)
        told = model.found(path)
        assert found.dram.tolist() == told["dram"]
        assert found.local.tolist() == told["local"]
        assert found.coming.tolist() == told["coming"]
        assert leading(caches, host, np.array(path, np.int32)) == told["dram"][host]


def check(caches: sim_caches.Caches, model: Model) -> None:
    """Sizes are those of the model and within capacity; what is taken and what is free is all."""
    sizes = caches.lists["size"].reshape(sim_caches.PLANES, HOSTS)
    capacity = caches.lists["capacity"].reshape(sim_caches.PLANES, HOSTS)
    assert (sizes <= capacity).all()
    for (host, plane), held in model.held.items():
        assert sizes[plane, host] == len(held)
    assert sizes[COMING].tolist() == [len(+one) for one in model.coming.values()]
    taken = int(sizes.sum())
    assert taken + caches.tops[1] == len(caches.entries), "entries are lost"
    assert (caches.table != sim_caches.NONE).sum() == taken
    assert len(caches.users) - caches.tops[0] == (caches.row_of != sim_caches.NONE).sum()
    assert int(caches.users.sum()) == taken


def test_a_prompt_longer_than_the_cache_leaves_its_beginning() -> None:
    caches = sim_caches.caches(10, np.array([4]), np.array([0]), 10)
    touch(caches, 0, DRAM, np.arange(10, dtype=np.int32))
    assert leading(caches, 0, np.arange(10, dtype=np.int32)) == 4


def test_more_that_is_coming_than_there_is_place_for_is_not_noted() -> None:
    caches = sim_caches.caches(10, np.array([0]), np.array([0]), 3)
    on, found = np.zeros((3, 1), np.uint64), nothing(1, 1)
    blocks = np.arange(10, dtype=np.int32)
    expect(caches, 0, blocks, 1)
    look(caches, blocks, on, found)
    assert 3 <= found.coming[0] < 10
    expect(caches, 0, blocks, -1)
    assert caches.lists["size"].sum() == 0


def test_a_host_that_has_room_for_more_blocks_than_are_numbered_has_room_for_all() -> None:
    made = sim_caches.caches(BLOCKS, np.array([1 << 31]), np.array([(1 << 33) + 5]), 0)
    assert touch(made, 0, DRAM, np.array(PATHS[0], np.int32)) == len(PATHS[0])
    assert (made.lists["capacity"] >= BLOCKS).all()
