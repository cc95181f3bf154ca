"""What conductors are told of an engine is what they take."""

from __future__ import annotations

import pytest

from kvstore.client.who import Runs, Who
from kvstore.conductor.reports import facts_of
from kvstore.config import Stands
from kvstore.core.hardware import H100
from kvstore.core.model_shape import LLAMA3_8B
from kvstore.core.priors import decode_prior, prefill_prior
from tests.core.test_published import LLAMA
from tests.nodes import SPEC


def who(stands: Stands) -> Who:
    return Who("e", "127.0.0.1:7500", SPEC.digest, 0, 4, 128, 1_000, True, False, None, stands)


def test_an_engine_says_what_it_does_and_where_its_host_stands() -> None:
    message = who(Stands("r7", 2e9, "d1", 7e11)).message()
    message.node_id = "n"
    facts = facts_of(message)
    assert facts.prefill is not None and facts.decode is None
    assert (facts.rack, facts.far_bytes_per_second) == ("r7", 2e9)
    assert (facts.domain, facts.domain_bytes_per_second) == ("d1", 7e11)


def test_what_nobody_says_is_not_told() -> None:
    message = who(Stands()).message()
    assert not message.rack and not message.nvlink_domain
    assert not message.domain_bytes_per_second and not message.cross_rack_bytes_per_second


def test_what_an_engine_costs_at_first_is_by_its_models_shape_and_its_gpus_data_sheet() -> None:
    costs = Runs(LLAMA, "NVIDIA H100 80GB HBM3", 2).costs()
    assert costs == (prefill_prior(LLAMA3_8B, H100, 2), decode_prior(LLAMA3_8B, H100, 2))


@pytest.mark.parametrize(
    "runs",
    [
        Runs(),
        Runs(LLAMA, "cpu"),
        Runs(LLAMA, "NVIDIA B300"),
        Runs({}, "NVIDIA H200"),
        Runs(LLAMA, "NVIDIA H200", 3),
        Runs(LLAMA | {"full_attention_interval": 4}, "NVIDIA H200"),
        Runs(LLAMA | {"model_type": "llama4_text"}, "NVIDIA H200"),
    ],
)
def test_where_no_sheet_or_shape_is_known_it_is_guessed(runs: Runs) -> None:
    assert runs.costs() == Runs().costs()
