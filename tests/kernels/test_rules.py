from __future__ import annotations

import numpy as np
from numba import njit

from kvstore.kernels.decision import rules_of
from kvstore.kernels.rules import Rules


@njit
def read(row: np.ndarray) -> Rules:
    return rules_of(row)


def test_rules_are_what_their_row_says_in_order() -> None:
    rules = Rules(*(1.5 * number for number in range(len(Rules._fields))))
    assert read(np.array(rules)) == rules
