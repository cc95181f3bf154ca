from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor import refused
from kvstore.conductor.decision import Ask
from kvstore.conductor.refused import Refused
from kvstore.kernels.crowd import LATELY


def ask(request: str, *prints: int, tokens: int = 100, client: str = "") -> Ask:
    return Ask(request, np.array(prints, np.uint64), tokens, 0.0, client=client)


def test_a_prompt_that_comes_again_under_another_id_is_known() -> None:
    known = Refused()
    known.add(ask("a", 1, 2), 0.0)
    assert known.was(ask("b", 1, 2), 1.0)
    assert not known.was(ask("a", 1, 3), 1.0), "another prompt"
    assert not known.was(ask("a", 1, 2, tokens=101), 1.0), "a longer one"
    assert not known.was(ask("a", 1, 2, client="c"), 1.0), "another's"


def test_one_of_less_than_a_block_is_known_by_its_id_alone() -> None:
    known = Refused()
    known.add(ask("a"), 0.0)
    assert known.was(ask("a"), 1.0) and not known.was(ask("b"), 1.0)


def test_after_a_while_it_counts_anew() -> None:
    known = Refused()
    known.add(ask("a", 1), 0.0)
    assert known.was(ask("a", 1), LATELY - 1) and not known.was(ask("a", 1), LATELY + 1)


def test_what_was_refused_first_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "KEPT", 2)
    known = Refused()
    for number in range(3):
        known.add(ask("a", number), 0.0)
    assert len(known) == 2 and not known.was(ask("a", 0), 0.0) and known.was(ask("a", 2), 0.0)
