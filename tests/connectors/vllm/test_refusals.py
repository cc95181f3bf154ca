"""What cannot be kept right is refused by name as the engine starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MambaSpec

from kvstore.engine.connectors.unsupported import Unsupported
from kvstore.engine.connectors.vllm import MoonpoolConnector
from kvstore.engine.connectors.vllm import facts as module
from kvstore.engine.connectors.vllm.facts import SPLITS, _group, facts_of
from kvstore.engine.connectors.vllm.settings import Settings
from tests.connectors.vllm.engine import EngineFailed, engine
from tests.nodes import NodeProcess


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"block_token": 64}, "kv_connector_extra_config.block_token is unknown"),
        ({"block_tokens": 48}, "block_tokens 48"),
    ],
    ids=["unknown key", "blocks that do not fit"],
)
def test_an_engine_does_not_start_with(
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
    extra: dict[str, Any],
    named: str,
) -> None:
    with (
        pytest.raises(EngineFailed) as failed,
        engine(model("llama"), tmp_path / "e.log", node=node.address, extra=extra),
    ):
        pass
    assert named in str(failed.value)


def test_quantised_kv_is_refused() -> None:
    """vLLM itself has none on a CPU without AVX-512, so no engine is started for it."""
    sizes = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.uint8}
    quantised = FullAttentionSpec(**sizes, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR)
    config = SimpleNamespace(cache_config=SimpleNamespace(cache_dtype="fp8"))
    with pytest.raises(Unsupported, match="kv_cache_dtype 'fp8': use 'auto'"):
        _group(config, 0, quantised, ["model.layers.0.self_attn.attn"])


@pytest.mark.parametrize("split", SPLITS)
def test_a_model_split_in_a_way_the_pool_does_not_know_is_refused(split: str) -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(**dict.fromkeys(SPLITS, 1)))
    setattr(config.parallel_config, split, 2)
    with pytest.raises(Unsupported, match=f"{split} 2 is not supported; 1 is"):
        facts_of(config, SimpleNamespace(), Settings())


def test_a_model_of_which_vllm_itself_reuses_no_prefix_is_refused() -> None:
    """Its pooling wants every token of a prompt, and ends the engine where it has but some."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**dict.fromkeys(SPLITS, 1)),
        model_config=SimpleNamespace(is_prefix_caching_supported=False),
    )
    with pytest.raises(Unsupported, match="vLLM reuses no prefixes of this model"):
        facts_of(config, SimpleNamespace(), Settings())


def test_a_diffusion_model_is_refused() -> None:
    """What it has computed of an answer is of a canvas, which changes with every step."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**dict.fromkeys(SPLITS, 1)),
        model_config=SimpleNamespace(is_prefix_caching_supported=True, is_diffusion=True),
    )
    with pytest.raises(Unsupported, match="a diffusion model"):
        facts_of(config, SimpleNamespace(), Settings())


def test_a_model_whose_layers_differ_in_their_kv_heads_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_backend", lambda *_: ("FLASH_ATTN", ""))
    monkeypatch.setattr(module, "get_tensor_model_parallel_rank", lambda: 0)
    sizes = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: 8),
    )
    with pytest.raises(
        Unsupported, match=r"group 1 \(model.layers.5.* and 0 more\) has 2 KV heads"
    ):
        _group(config, 1, FullAttentionSpec(**sizes), ["model.layers.5.self_attn.attn"])


def test_rope_that_goes_by_the_batch_is_refused() -> None:
    """As Transformers' code has it of dynamic NTK RoPE; vLLM's own settles it once."""
    text = SimpleNamespace(
        rope_parameters={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=4_096
    )
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**dict.fromkeys(SPLITS, 1)),
        model_config=SimpleNamespace(
            is_prefix_caching_supported=True,
            using_transformers_backend=lambda: True,
            hf_text_config=text,
            max_model_len=16_384,
        ),
    )
    with pytest.raises(Unsupported, match=r"RoPE of type dynamic, .* --max-model-len 4096 is"):
        facts_of(config, SimpleNamespace(), Settings())


def test_attention_that_is_not_causal_is_refused() -> None:
    """As of HRM-Text, all of whose prompt every token of it sees: a prefix has no KV of its own."""
    sizes = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    both_ways = FullAttentionSpec(**sizes, non_causal=True)
    with pytest.raises(Unsupported, match="group 0 is not causal"):
        _group(SimpleNamespace(), 0, both_ways, ["model.layers.0.self_attn.attn"])


def test_a_cache_of_another_kind_is_refused() -> None:
    state = MambaSpec(block_size=32, shapes=((2, 3),), dtypes=(torch.float32,))
    with pytest.raises(Unsupported, match="is a MambaSpec"):
        _group(SimpleNamespace(), 0, state, ["model.layers.0.mixer", "model.layers.1.mixer"])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("nodes", "127.0.0.1:7410", "nodes is unknown; known are node, block_tokens"),
        ("block_tokens", "64", "block_tokens is '64'; int is wanted"),
        ("block_tokens", True, "block_tokens is True; int is wanted"),
        ("block_tokens", -1, "block_tokens is -1; 0 to"),
        ("reuse", "sometimes", "reuse is 'sometimes'; it may be priced or always"),
        ("fleet_role", "all", "fleet_role is 'all'; it may be prefill, decode, both"),
        ("audit_rate", 1.5, "audit_rate is 1.5; 0.0 to 1.0"),
        ("deadline_ms", 0, "deadline_ms is 0; 1 to"),
        ("conductors", "127.0.0.1:7420", "conductors is '127.0.0.1:7420'; list is wanted"),
        ("conductors", ["nowhere"], "conductors: 'nowhere' is no HOST:PORT"),
        ("conductors", ["127.0.0.1:74200"], "conductors: '127.0.0.1:74200' is no HOST:PORT"),
        ("conductors", [7420], "conductors: 7420 is no HOST:PORT"),
        ("conductors", ["127.0.0.1:7420"], "address: '' is no HOST:PORT; `address` is where"),
        ("nvlink_domain", "d1", "nvlink_domain, nvlink_bytes_per_second: say both"),
        ("cross_rack_bytes_per_second", 1e9, "cross_rack_bytes_per_second: say too which `rack`"),
        ("rack", 7, "rack is 7; str is wanted"),
    ],
)
def test_a_setting_that_is_not_right_is_named_with_its_value(
    key: str, value: object, said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        Settings.of({key: value})
    assert said in str(caught.value)


def test_on_a_gpu_what_is_not_right_is_named_before_a_model_is_loaded() -> None:
    assert MoonpoolConnector.requires_piecewise_for_cudagraph({"node": "127.0.0.1:7410"})
    with pytest.raises(ValueError, match="nodes is unknown"):
        MoonpoolConnector.requires_piecewise_for_cudagraph({"nodes": "127.0.0.1:7410"})
