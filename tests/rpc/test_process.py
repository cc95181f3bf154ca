"""How many files a process may open: what it keeps for itself, and connections beside it. And what
it looks through for garbage."""

from __future__ import annotations

import gc
import resource
import weakref
from collections.abc import Iterator

import pytest

from kvstore.errors import ConfigError
from kvstore.rpc.process import files_bound, look_seldom_for_garbage

CONNECTIONS = 4_096


@pytest.mark.parametrize("most", [resource.RLIM_INFINITY, 1_000_000])
def test_the_files_that_it_keeps_leave_connections_theirs(most: int) -> None:
    for kept in (0, 400, 4_096, 30_000):
        assert files_bound(kept, most) == kept + CONNECTIONS


def test_it_makes_do_with_fewer_and_says_where_there_are_too_few() -> None:
    assert files_bound(0, 100) == 100
    assert files_bound(700, 1_024) == 1_024
    with pytest.raises(ConfigError, match=r"900 files .* may open 1024 here: .*LimitNOFILE="):
        files_bound(900, 1_024)


class Node:
    """One that refers to itself: only a look for garbage ends it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_what_stands_is_not_looked_through_again_and_what_comes_later_is() -> None:
    standing, objects = Node(), len(gc.get_objects())
    look_seldom_for_garbage()
    assert len(gc.get_objects()) < objects / 100, "all of it is looked through each time"
    gone, later = weakref.ref(standing), Node()
    gone_later = weakref.ref(later)
    del standing, later
    gc.collect()
    assert gone() is not None and gone_later() is None


@pytest.mark.usefixtures("as_before")
def test_it_looks_for_garbage_before_there_is_much() -> None:
    look_seldom_for_garbage()
    gone = weakref.ref(Node())
    kept = [[number] for number in range(60_000)]
    assert gone() is None and len(kept) == 60_000
