"""What a process looks through for garbage, and how soon."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from kvstore.garbage import keep_what_stands, look_seldom
from kvstore.limits import GARBAGE_MIDDLE, GARBAGE_OLD, GARBAGE_YOUNG


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
    keep_what_stands()
    assert len(gc.get_objects()) < objects / 100, "all of it is looked through each time"
    gone, later = weakref.ref(standing), Node()
    gone_later = weakref.ref(later)
    del standing, later
    gc.collect()
    assert gone() is not None and gone_later() is None


@pytest.mark.usefixtures("as_before")
def test_it_looks_for_garbage_before_there_is_much() -> None:
    look_seldom()
    keep_what_stands()
    gone = weakref.ref(Node())
    kept = [[number] for number in range(60_000)]
    assert gone() is None and len(kept) == 60_000


def test_every_command_looks_seldom_from_its_start() -> None:
    asked = "import gc, kvstore.__main__; print(*gc.get_threshold())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert tuple(map(int, told.stdout.split())) == (GARBAGE_YOUNG, GARBAGE_MIDDLE, GARBAGE_OLD)
