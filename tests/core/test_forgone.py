"""Which writer groups are over, of each tenant the last ones."""

from __future__ import annotations

import pytest

from kvstore.core import forgone as module
from kvstore.core.forgone import Forgone


def test_a_group_is_over_until_it_reserves_again_and_for_its_own_tenant_alone() -> None:
    forgone = Forgone()
    forgone.goes_on("ours", "never heard of")
    forgone.add("ours", "g")
    assert forgone.holds("ours", "g")
    assert not forgone.holds("ours", "other") and not forgone.holds("theirs", "g")
    forgone.goes_on("theirs", "g")
    assert forgone.holds("ours", "g")
    forgone.goes_on("ours", "g")
    assert not forgone.holds("ours", "g")


def test_what_ended_the_longest_ago_is_forgotten_first_and_no_other_tenant_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 2)
    forgone = Forgone()
    forgone.add("theirs", "g")
    for group in ("a", "b", "a", "c"):  # a again
        forgone.add("ours", group)
    assert [group for group in "abc" if forgone.holds("ours", group)] == ["a", "c"]
    assert forgone.holds("theirs", "g")
