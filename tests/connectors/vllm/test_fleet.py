"""What an engine says of itself to conductors; no engine runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PretrainedConfig
from vllm.platforms import current_platform

from kvstore.engine.connectors.vllm.fleet import Place, place_of


def place(
    engine_id: str, index: int = 0, external_lb: bool = False, max_model_len: int = 512
) -> Place:
    """Of an engine that vLLM configures so."""
    config: Any = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            engine_id=engine_id, is_kv_producer=True, is_kv_consumer=False
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=index, data_parallel_external_lb=external_lb, tensor_parallel_size=2
        ),
        model_config=SimpleNamespace(
            hf_config=PretrainedConfig(hidden_size=4096), max_model_len=max_model_len
        ),
        kv_events_config=None,
        cache_config=SimpleNamespace(block_size=16),
    )
    caches: Any = SimpleNamespace(num_blocks=100, kv_cache_groups=[None, None])
    return place_of(config, caches)


def test_an_engine_has_room_for_what_its_pages_hold_of_all_its_groups() -> None:
    found = place("a")
    assert (found.engine_id, found.room_tokens) == ("a", 50 * 16)
    assert (found.prefills, found.decodes, found.events) == (True, False, None)


def test_an_engine_has_room_for_the_longest_request_however_few_pages_each_group_has() -> None:
    assert place("a", max_model_len=1_200).room_tokens == 1_200, "windows need few of the pages"


def test_an_engine_says_which_model_it_runs_and_on_what() -> None:
    runs = place("a").runs
    assert runs.config["hidden_size"] == 4096 and runs.tensor_parallel == 2
    assert runs.device == current_platform.get_device_name()


@pytest.mark.parametrize("index", [0, 3])
def test_data_parallel_engines_behind_one_server_are_told_apart_by_their_ranks(index: int) -> None:
    assert place(f"a_dp{index}", index).rank == index


def test_an_engine_with_a_server_of_its_own_has_no_rank() -> None:
    assert place("a").rank is None
    assert place("a_dp1", 1, external_lb=True).rank is None
