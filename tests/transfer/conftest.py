"""What tests of data connections share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transfer.pairs import Pair, connected


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A stream that allows a standstill, and the bare socket of its peer."""
    with connected(20.0) as both:
        yield both
