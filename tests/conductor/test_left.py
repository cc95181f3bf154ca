from __future__ import annotations

import pytest

from kvstore.conductor import left as module
from kvstore.conductor.left import LEFT_SECONDS, Left


def test_one_has_left_for_its_own_tenant_until_it_is_back_or_long_gone() -> None:
    left = Left()
    left.add("t", "h:1", 0.0)
    left.add("t", "h:2", 10.0)
    assert left.of("t", 10.0) == {"h:1", "h:2"} and not left.of("others", 10.0)
    assert left.of("t", LEFT_SECONDS) == {"h:2"}
    left.discard("t", "h:2")
    left.discard("others", "h:1")
    assert left.of("t", 10.0) == {"h:1"}


def test_of_too_many_those_are_forgotten_of_whoever_has_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REPORTS_MAX", 3)
    left = Left()
    left.add("few", "h:0", 0.0)
    for number in range(5):
        left.add("many", f"h:{number}", 0.0)
    assert left.of("few", 1.0) == {"h:0"} and left.of("many", 1.0) == {"h:3", "h:4"}
