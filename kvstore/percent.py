"""A share as a person reads it, who takes 100 % for all and 0 % for none."""

from __future__ import annotations

_ALL = 1 - 1e-9  # sums of shares are rounded


def percent(share: float, digits: int = 1) -> str:
    """'92.5%'. What is not all is '>99.9%' at most, and what is not nothing '<0.1%' at least."""
    text, step = f"{100 * share:.{digits}f}", 10.0**-digits
    if share < _ALL and text == f"{100:.{digits}f}":
        return f">{100 - step:.{digits}f}%"
    if share > 0 and text == f"{0:.{digits}f}":
        return f"<{step:.{digits}f}%"
    return f"{text}%"
