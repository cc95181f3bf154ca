"""Three nodes in networks of their own, by certificate; links are cut, and nobody is told.

a ──✂── b        c reaches both, and both reach c          a ──✂── etcd        links at random
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable

import pytest

from kvstore.limits import LEASE_MS_DEFAULT
from tests.cluster.apart import Apart
from tests.cluster.three import ANSWER_SECONDS, SOON_SECONDS
from tests.hosts import Host, Network
from tests.nodes import eventually

CONVERGED_SECONDS = 30.0
CLOG_SEEDS = int(os.environ.get("MOONPOOL_TEST_CLOG_SEEDS", "3"))  # a night takes thousands


Cut = Callable[[Network, Host, Host], None]


def both_ways(net: Network, one: Host, other: Host) -> None:
    net.cut(one, other)


def there_only(net: Network, one: Host, other: Host) -> None:
    net.lose(one, other)


def back_only(net: Network, one: Host, other: Host) -> None:
    net.lose(other, one)


cuts = pytest.mark.parametrize("cut", [both_ways, there_only, back_only])


@cuts
def test_a_link_that_is_cut_costs_no_failed_read_and_is_used_again_once_it_is_well(
    apart: Apart, cut: Cut
) -> None:
    alone, shared = [apart.stored("a") for _ in range(8)], [apart.stored("ac") for _ in range(8)]
    one, other = apart.hosts["a"], apart.hosts["b"]
    cut(apart.net, one, other)
    try:
        for single, both in zip(alone, shared, strict=True):
            found, seconds = apart.read("b", single)  # raises where a read fails
            assert found == 0 and seconds < ANSWER_SECONDS * 2
            found, seconds = apart.read("b", both)
            assert seconds < ANSWER_SECONDS * 2
        eventually(lambda: apart.read("b", both)[0] == 2, SOON_SECONDS)  # node c is asked by now
        # Who is not cut off notices nothing.
        eventually(lambda: apart.read("c", alone[0])[0] == 2, SOON_SECONDS)
        ends = time.monotonic() + 5.0
        while time.monotonic() < ends:
            apart.read("b", apart.stored("a"))
    finally:
        apart.net.heal(one, other)
    apart.reads("b", "a", CONVERGED_SECONDS)
    apart.reads("a", "b", CONVERGED_SECONDS)


def test_a_link_of_ten_kilobytes_a_second_costs_no_failed_read(apart: Apart) -> None:
    slow = apart.hosts["a"]
    apart.net.limit(slow, 10_000)
    try:
        for _ in range(3):
            both = apart.stored("c")
            _, seconds = apart.read("b", both)
            assert seconds < ANSWER_SECONDS * 2
            eventually(lambda both=both: apart.read("b", both)[0] == 2, SOON_SECONDS)
    finally:
        apart.net.unlimit(slow)
    apart.reads("b", "a")


@cuts
def test_a_node_cut_off_from_etcd_serves_on_asks_those_it_knows_and_is_named_no_more(
    apart: Apart, cut: Cut
) -> None:
    old = apart.stored("a")
    cut(apart.net, apart.hosts["a"], apart.beside)
    try:
        eventually(lambda: apart.announced() == 2, SOON_SECONDS)
        eventually(lambda: apart.read("b", apart.stored("a"))[0] == 0, SOON_SECONDS)
        assert apart.read("a", old)[0] == 2
        for name in "bc":
            apart.reads("a", name)
        apart.reads("b", "c")
        _, seconds = apart.read("b", apart.stored("a"))
        assert seconds < ANSWER_SECONDS, "who is named no more is waited for by nobody"
    finally:
        apart.net.heal(apart.hosts["a"], apart.beside)
    eventually(lambda: apart.announced() == 3, CONVERGED_SECONDS)
    apart.reads("b", "a", CONVERGED_SECONDS)


def test_what_a_node_did_not_hear_and_etcd_has_forgotten_it_knows_soon_after(apart: Apart) -> None:
    """Row 15: the watch is cut, and the changes are compacted away."""
    apart.net.cut(apart.hosts["a"], apart.beside)
    try:
        eventually(lambda: apart.announced() == 2, SOON_SECONDS)
        apart.restart("c")
        eventually(lambda: apart.announced() == 2, SOON_SECONDS)
        apart.etcd.compact()
        apart.restart_etcd()
    finally:
        apart.net.heal(apart.hosts["a"], apart.beside)
    apart.reads("a", "c")  # where it is now
    apart.reads("c", "a")
    eventually(lambda: apart.announced() == 3, SOON_SECONDS)


@pytest.mark.parametrize("seed", range(CLOG_SEEDS))
def test_links_clogged_one_by_one_and_cleared_in_another_order_cost_no_failed_read(
    apart: Apart, seed: int
) -> None:
    dice, everybody = random.Random(seed), (*apart.hosts.values(), apart.beside)
    links = list(itertools.permutations(everybody, 2))  # each way by itself, etcd's too
    clogged = dice.sample(links, dice.randint(3, len(links)))

    def some_reads() -> None:
        for _ in range(2):
            holder, reader = dice.choices("abc", k=2)
            found, seconds = apart.read(reader, apart.stored(holder))  # raises where one fails
            assert seconds < ANSWER_SECONDS * 2
            assert found == 2 or reader != holder, "what a node has it gives, whoever is cut off"

    try:
        for link in clogged:
            apart.net.lose(*link)
            some_reads()
        ends = time.monotonic() + dice.choice((0.0, 2 * LEASE_MS_DEFAULT / 1e3))
        while time.monotonic() < ends:  # until leases are over
            some_reads()
        for link in dice.sample(clogged, len(clogged)):
            apart.net.deliver(*link)
            some_reads()
    finally:
        for link in links:
            apart.net.deliver(*link)
    ends = time.monotonic() + CONVERGED_SECONDS
    for holder, reader in itertools.product("abc", repeat=2):
        apart.reads(reader, holder, ends - time.monotonic())
    eventually(lambda: apart.announced() == 3, ends - time.monotonic())
