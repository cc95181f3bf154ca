"""What carries KV of a host is as was said of it last, and as was measured since."""

from __future__ import annotations

import numpy as np
import pytest

from kvstore.conductor.carries import Carries
from kvstore.core.cost import TransferCost
from kvstore.kernels.fleet import HOST
from tests.conductor.crews import facts


def seconds_of_ssd(carries: Carries) -> float:
    """Of a byte, as decisions see it."""
    row = np.zeros(1, HOST)
    carries.price(row[0])
    return float(row["ssd_seconds"][0])


def test_a_host_has_an_ssd_once_it_is_said_so_and_none_once_it_is_not() -> None:
    carries = Carries(facts("a", ssd=None))
    assert seconds_of_ssd(carries) == np.inf
    carries.stand(facts("a", ssd=TransferCost(1e-4, 2e9)))
    assert seconds_of_ssd(carries) == pytest.approx(1 / 2e9)
    carries.stand(facts("a", ssd=None))
    assert seconds_of_ssd(carries) == np.inf


def test_what_was_measured_of_an_ssd_stays_known_when_the_host_is_described_anew() -> None:
    carries = Carries(facts("a"))
    assert carries.ssd is not None
    for size in range(1, 60):
        carries.ssd.observe(size * 1e7, size * 1e7 / 5e8)
    learned = seconds_of_ssd(carries)
    assert learned > 2 / 3e9
    carries.stand(facts("a"))
    assert seconds_of_ssd(carries) == learned
