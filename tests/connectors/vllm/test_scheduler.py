"""The scheduler's half by itself: what it makes of what workers and lookups say."""

from __future__ import annotations

from kvstore.engine.connectors.vllm.messages import Loaded, Report
from kvstore.engine.connectors.vllm.scheduler import SchedulerSide
from kvstore.engine.connectors.vllm.settings import Settings


def side(**settings: object) -> SchedulerSide:
    said = Settings.of(settings)
    return SchedulerSide(said, 16, reads=True, writes=True, may_cut=True, place=None)


def test_a_load_counts_once_when_all_ranks_have_ended_it_and_as_the_worst_of_them_did() -> None:
    here = side()
    here.heard(Report(loaded={"a": Loaded(64, 64, 128, 0.25)}), set())
    assert here.stats.is_empty(), "another rank is still loading"
    here.heard(Report(loaded={"a": Loaded(128, 128, 128, 0.5)}), {"a"})
    assert here.taken().data == {"loaded_tokens": 64, "load_seconds": [0.25]}
    here.heard(Report(loaded={"a": Loaded(128, 128, 128, 0.5)}), {"a"})
    assert here.taken().data == {"loaded_tokens": 128, "load_seconds": [0.5]}, "of another time"
