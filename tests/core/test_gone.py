"""What is remembered of blocks that went: why, and how they were used, of the last ones."""

from __future__ import annotations

import pytest

from kvstore.block import Miss
from kvstore.core import gone as gone_module
from kvstore.core.gone import Gone
from kvstore.core.index import Index
from kvstore.core.ranking import Seen
from tests.core.test_index import sealed


def test_who_went_is_known_until_it_comes_back() -> None:
    gone, seen = Gone(), Seen(1, 2, 3, 0)
    gone.add([b"a", b"b"], Miss.EVICTED, [seen, None])
    assert gone.why(b"a") is gone.why(b"b") is Miss.EVICTED
    assert gone.why(b"never") is Miss.ABSENT
    assert gone.back_all([b"a", b"b"]) == [seen, None]
    assert gone.why(b"a") is Miss.ABSENT and gone.back_all([b"never"]) == [None]


def test_what_another_node_lists_and_did_not_give_is_unreachable_until_that_changes() -> None:
    gone = Gone()
    gone.add([b"went", b"taken away"], Miss.EVICTED, [None, None])
    gone.add([b"taken away"], Miss.REMOVED, [None])
    gone.elsewhere([b"never", b"went", b"taken away", b"back"])
    assert gone.why(b"never") is gone.why(b"went") is Miss.UNREACHABLE
    assert gone.why(b"taken away") is Miss.REMOVED, "that it is not to be had is known"
    gone.nowhere([b"went", b"other"])
    assert gone.why(b"went") is Miss.EVICTED and gone.why(b"never") is Miss.UNREACHABLE
    gone.back_all([b"back"])
    assert gone.why(b"back") is Miss.ABSENT


def test_of_what_others_list_the_last_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_module, "REMEMBERED_MAX", 2)
    gone = Gone()
    gone.elsewhere([b"1", b"2"])
    gone.elsewhere([b"1", b"3"])
    said = [gone.why(one) for one in (b"1", b"2", b"3")]
    assert said == [Miss.UNREACHABLE, Miss.ABSENT, Miss.UNREACHABLE]


def test_those_that_went_first_are_forgotten_first_and_what_was_known_of_them_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gone_module, "REMEMBERED_MAX", 3)
    gone, seen = Gone(), [Seen(i, 0, 0, 0) for i in range(6)]
    gone.add([b"%d" % i for i in range(6)], Miss.REMOVED, [seen[0], None, *seen[2:]])
    assert list(gone.fit(held=5)) == [seen[0]]
    assert list(gone.fit(held=0)) == [seen[2]], "of the one before it nothing was known"
    assert [gone.why(b"%d" % i) for i in range(6)] == [Miss.ABSENT] * 3 + [Miss.REMOVED] * 3


def test_the_memory_of_forgotten_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_module, "REMEMBERED_MAX", 10)
    index = Index()
    keys = [bytes([i]) for i in range(30)]
    for key in keys:
        index.add(sealed(key))
        index.drop(key, Miss.EVICTED)
    known = [key for key in keys if index.why_not(key) is Miss.EVICTED]
    assert known == keys[-10:], "the longest forgotten are forgotten first"
    index.add(sealed(keys[-1]))
    index.drop(keys[-1], Miss.REMOVED)
    assert index.why_not(keys[-1]) is Miss.REMOVED and index.why_not(keys[-10]) is Miss.EVICTED
