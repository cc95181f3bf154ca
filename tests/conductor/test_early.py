from __future__ import annotations

import pytest

from kvstore.conductor import early
from kvstore.conductor.early import Early
from kvstore.limits import SENT_SECONDS


def test_a_request_is_known_for_as_long_as_the_other_word_may_take() -> None:
    known = Early()
    known.add("a", 0.0)
    assert known.has("a", SENT_SECONDS - 1) and not known.has("a", SENT_SECONDS)
    assert not known.has("b", 0.0)
    known.add("b", SENT_SECONDS)
    assert len(known) == 1, "what is over is kept no longer"
    known.forget("b")
    assert not known.has("b", SENT_SECONDS) and len(known) == 0


def test_what_was_said_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "KEPT", 2)
    known = Early()
    for request in ("a", "b", "a", "c"):
        known.add(request, 0.0)
    assert len(known) == 2 and known.has("a", 0.0) and not known.has("b", 0.0)
