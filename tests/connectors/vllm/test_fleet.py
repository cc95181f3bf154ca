"""What an engine says of itself to conductors; no engine runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PretrainedConfig
from vllm.config import KVTransferConfig
from vllm.platforms import current_platform

from kvstore.engine.connectors.vllm.fleet import Place, place_of


def place(
    engine_id: str,
    index: int = 0,
    external_lb: bool = False,
    max_model_len: int = 512,
    kv_role: str = "kv_producer",
    fleet_role: str = "both",
) -> Place:
    """Of an engine that vLLM configures so."""
    config: Any = SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            kv_connector="ours", engine_id=engine_id, kv_role=kv_role
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
    return place_of(config, caches, fleet_role)


def test_an_engine_has_room_for_what_its_pages_hold_of_all_its_groups() -> None:
    found = place("a")
    assert (found.engine_id, found.room_tokens) == ("a", 50 * 16)
    assert (found.prefills, found.decodes, found.events) == (True, False, None)


@pytest.mark.parametrize(
    ("kv_role", "fleet_role", "does"),
    [
        ("kv_producer", "both", (True, False)),
        ("kv_producer", "prefill", (True, False)),
        ("kv_consumer", "both", (False, True)),
        ("kv_consumer", "decode", (False, True)),
        ("kv_both", "both", (True, True)),
        ("kv_both", "prefill", (True, False)),
        ("kv_both", "decode", (False, True)),
    ],
)
def test_an_engine_does_what_it_is_there_for_of_what_vllm_lets_it(
    kv_role: str, fleet_role: str, does: tuple[bool, bool]
) -> None:
    found = place("a", kv_role=kv_role, fleet_role=fleet_role)
    assert (found.prefills, found.decodes) == does


@pytest.mark.parametrize(
    ("kv_role", "fleet_role"), [("kv_producer", "decode"), ("kv_consumer", "prefill")]
)
def test_an_engine_that_could_do_nothing_says_which_settings_would_let_it(
    kv_role: str, fleet_role: str
) -> None:
    with pytest.raises(ValueError, match=f"fleet_role is '{fleet_role}'.* a {kv_role}: .*kv_both"):
        place("a", kv_role=kv_role, fleet_role=fleet_role)


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
