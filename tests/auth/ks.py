"""Whether two samples come from one distribution: Kolmogorov and Smirnov's test of two samples.

The p-value is the asymptotic one, Q(x) = 2 sum (-1)^(k-1) exp(-2 k^2 x^2), at Stephens' argument
for finite samples, x = (sqrt(n) + 0.12 + 0.11 / sqrt(n)) D with n = n1 n2 / (n1 + n2) (M. A.
Stephens, J. R. Stat. Soc. B 32, 1970; also Numerical Recipes, section 14.3).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The largest difference of the two samples' cumulative shares."""
    a, b = sorted(first), sorted(second)
    return max(abs(bisect_right(a, x) / len(a) - bisect_right(b, x) / len(b)) for x in (*a, *b))


def p_value(first: Sequence[float], second: Sequence[float]) -> float:
    n = len(first) * len(second) / (len(first) + len(second))
    return tail((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance(first, second))


def tail(x: float) -> float:
    """Q(x). Below 0.2 it is 1 to within 1e-12, and the series converges no more."""
    if x < 0.2:
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * sum(terms)))
