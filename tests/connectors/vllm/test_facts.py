"""What makes two engines' KV different, though they have the same weights."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from vllm import envs
from vllm.config import (
    CacheConfig,
    LoadConfig,
    ModelConfig,
    MultiModalConfig,
    ParallelConfig,
    VllmConfig,
    get_current_vllm_config_or_none,
)
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kvstore.engine.connectors.unsupported import Unsupported
from kvstore.engine.connectors.vllm import facts as module
from kvstore.engine.connectors.vllm.settings import Settings
from kvstore.engine.connectors.vllm.usable import window_start
from kvstore.engine.connectors.vllm_name import (
    OF_TOKENS,
    check_steady,
    revision_of,
    rope_of,
    tuning_of,
    turned_by,
)
from kvstore.engine.connectors.vllm_told import ENVIRONMENT
from tests.connectors import untold

LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 4_096,
    "short_factor": [1.0, 1.1],
    "long_factor": [1.0, 9.5],
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 4.0}


@pytest.mark.parametrize("rope", [LONG, {"full_attention": LONG, "sliding_attention": {}}])
def test_an_engine_of_longer_prompts_has_other_keys_where_vllm_takes_other_factors(
    rope: dict[str, Any],
) -> None:
    text = SimpleNamespace(rope_parameters=rope)
    assert rope_of(text, 4_096) == rope_of(text, 512)
    assert rope_of(text, 4_097) == rope_of(text, 131_072)
    assert rope_of(text, 4_096) != rope_of(text, 4_097)


@pytest.mark.parametrize("said", [DYNAMIC, LONG], ids=["dynamic", "longrope"])
def test_transformers_code_turns_a_prompt_s_keys_by_what_else_is_in_its_batch(said: Any) -> None:
    """Which is why both are refused with it: see the next test."""
    text = LlamaConfig(hidden_size=4, num_attention_heads=1, max_position_embeddings=4_096)
    text.rope_parameters = {"rope_theta": 10_000.0, "factor": 4.0} | said
    rope = LlamaRotaryEmbedding(text)

    def turns(*positions: int) -> torch.Tensor:
        return rope(torch.ones(1), torch.tensor([positions]))[0][0, :2].clone()

    alone = turns(3, 4)
    assert torch.equal(alone, turns(3, 4, 4_095))
    assert not torch.equal(alone, turns(3, 4, 5_000))


@pytest.mark.parametrize("said", [DYNAMIC, LONG, {"full_attention": DYNAMIC}])
def test_rope_that_goes_by_the_batch_is_refused_where_prompts_may_be_long(said: Any) -> None:
    text = SimpleNamespace(rope_parameters=said, max_position_embeddings=4_096)
    check_steady(text, 4_096)
    with pytest.raises(Unsupported, match="--max-model-len 4096 is right"):
        check_steady(text, 4_097)


@pytest.mark.parametrize("said", [{"rope_type": "default"}, {"rope_type": "yarn", "factor": 4.0}])
def test_other_rope_is_taken_at_any_length(said: Any) -> None:
    check_steady(SimpleNamespace(rope_parameters=said, max_position_embeddings=4_096), 131_072)


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4_096},
        {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}},
    ],
)
def test_the_length_of_prompts_parts_no_other_engines(rope: dict[str, Any]) -> None:
    text = SimpleNamespace(rope_parameters=rope)
    assert rope_of(text, 512) == rope_of(text, 131_072)


def engine(load_format: str = "auto", transformers: bool = False, **model: Any) -> Any:
    return told_of({"load_format": load_format}, {}, {}, transformers, **model)


def told_of(
    load: dict[str, Any],
    cache: dict[str, Any],
    whole: dict[str, Any],
    transformers: bool = False,
    **model: Any,
) -> Any:
    """vLLM's configuration, as far as the name of its weights is made of it."""
    facts = {"model": "weights/of-this", "using_transformers_backend": lambda: transformers}
    loading = {
        "load_format": "auto",
        "ignore_patterns": LoadConfig().ignore_patterns,
        "model_loader_extra_config": {},
    }
    parts: dict[str, Any] = {
        "load_config": SimpleNamespace(**loading | load),
        "cache_config": SimpleNamespace(**{"cache_dtype": "auto"} | cache),
        "model_config": SimpleNamespace(**untold.MODEL | untold.FOUND | facts | model),
        "parallel_config": SimpleNamespace(**untold.RUN),
        "kernel_config": SimpleNamespace(**untold.KERNELS),
        "additional_config": {},
    }
    return SimpleNamespace(**parts | whole)


def test_how_weights_are_quantized_is_part_of_their_name() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"hf_overrides": {"rope_theta": 1}},
        {"quantization": "online"},
        {"quantization": "online", "quantization_config": {"linear": "fp8_per_tensor"}},
        {"quantization": "online", "quantization_config": {"linear": "mxfp8"}},
    ]
    names = {revision_of(engine(**one), Settings(revision="r1")) for one in ways}
    assert len(names) == len(ways)


def test_what_computes_the_kv_is_part_of_its_name() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"model_class_overrides": {"LlamaForCausalLM": "ours:Llama"}},
        {"model_class_overrides": {"LlamaForCausalLM": "ours:OtherLlama"}},
        {"transformers": True},
        {"transformers": True, "code_revision": "v2"},
        {"config_format": "mistral"},
    ]
    names = {revision_of(engine(**one), Settings(revision="r1")) for one in ways}
    assert len(names) == len(ways)


def test_what_else_vllm_was_told_that_changes_kv_is_part_of_its_name() -> None:
    ways = [
        told_of({}, {}, {}),
        told_of({}, {"cache_dtype": "bfloat16"}, {}, dtype=torch.float16),
        told_of({}, {"cache_dtype": "bfloat16"}, {}, dtype=torch.float32),
        told_of({}, {}, {"additional_config": {"of a platform": 1}}),
        told_of({"ignore_patterns": ["*.safetensors"]}, {}, {}),
        told_of({"model_loader_extra_config": {"pattern": "other-{rank}-{part}"}}, {}, {}),
    ]
    names = [revision_of(one, Settings(revision="r1")) for one in ways]
    assert names[0] == "r1" and len(set(names)) == len(ways)
    same = told_of({}, {"cache_dtype": "bfloat16"}, {}, dtype=torch.bfloat16)
    assert revision_of(same, Settings(revision="r1")) == "r1"


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_what_the_environment_says_of_fewer_bits_is_part_of_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert name in envs.environment_variables, "vLLM has another name for it"
    monkeypatch.setenv(name, "1")
    assert revision_of(engine(), Settings(revision="r1")) != "r1"


@pytest.mark.parametrize(
    ("name", "usual", "other"),
    [
        ("VLLM_FLOAT32_MATMUL_PRECISION", "highest", "high"),
        ("VLLM_USE_DEEP_GEMM_E8M0", "1", "0"),
    ],
)
def test_what_vllm_does_anyhow_is_no_part_of_its_name_where_it_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str, usual: str, other: str
) -> None:
    monkeypatch.setenv(name, usual)
    assert revision_of(engine(), Settings(revision="r1")) == "r1"
    monkeypatch.setenv(name, other)
    assert revision_of(engine(), Settings(revision="r1")) != "r1"


def test_weights_from_beside_the_model_are_not_named_by_its_folder(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    theirs = engine(model=str(tmp_path), model_weights="s3://elsewhere/weights")
    with pytest.raises(Unsupported, match="model_weights 's3://elsewhere/weights'"):
        revision_of(theirs, Settings())
    assert revision_of(theirs, Settings(revision="r1")) == "r1"


def test_which_of_a_model_s_files_are_loaded_is_part_of_their_name(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "model.pt"):
        (tmp_path / name).write_text(name)
    ways = ("auto", "mistral", "pt", "runai_streamer_sharded")
    for model in ("weights/of-this", str(tmp_path)):
        names = {revision_of(engine(one, model=model), Settings()) for one in ways}
        assert len(names) == len(ways)
    before = revision_of(engine("pt", model=str(tmp_path)), Settings())
    (tmp_path / "model.pt").write_text("trained further")
    assert revision_of(engine("pt", model=str(tmp_path)), Settings()) != before


@pytest.mark.parametrize("load_format", ["tensorizer", "ipc_cache", "modelexpress", "a-plugin-s"])
def test_weights_that_may_come_from_elsewhere_are_not_named_by_the_model(load_format: str) -> None:
    with pytest.raises(Unsupported, match=f"load_format '{load_format}' may load other weights"):
        revision_of(engine(load_format), Settings())
    assert revision_of(engine(load_format), Settings(revision="r1")) == "r1"


def test_a_config_from_elsewhere_does_not_name_the_weights() -> None:
    assert revision_of(engine(), Settings()) == "commit:c0ffee"
    apart = engine(hf_config_path="config/of-another")
    with pytest.raises(Unsupported, match="hf_config_path 'config/of-another'"):
        revision_of(apart, Settings())
    assert revision_of(apart, Settings(revision="r1")) == "r1"


def llama4(length: int, generation: dict[str, Any], override: dict[str, Any]) -> Any:
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(model_type="llama4_text"),
        max_model_len=length,
        original_max_model_len=length,
        try_get_generation_config=lambda: dict(generation),
        override_generation_config=override,
    )


def test_an_engine_of_longer_prompts_has_other_kv_of_llama_4_unless_it_is_told() -> None:
    tuned, not_tuned = {"attn_temperature_tuning": True}, {"attn_temperature_tuning": False}
    short, long = tuning_of(llama4(32_768, {}, {})), tuning_of(llama4(32_769, {}, {}))
    assert short != long
    assert tuning_of(llama4(512, tuned, {})) == tuning_of(llama4(32_769, {}, tuned)) == long
    assert tuning_of(llama4(131_072, tuned, not_tuned)) == short


def test_an_engine_that_fits_its_prompts_to_memory_has_kv_as_of_all_that_its_model_can() -> None:
    """vLLM builds the model before it knows of how much memory is left."""
    fitted = llama4(20_000, {}, {})
    fitted.original_max_model_len = -1
    fitted.get_and_verify_max_len = lambda told: 131_072 if told == -1 else told
    assert (
        tuning_of(fitted) == tuning_of(llama4(131_072, {}, {})) != tuning_of(llama4(20_000, {}, {}))
    )
    fitted.hf_text_config = SimpleNamespace(model_type="phi3", rope_parameters=LONG)
    fitted.max_model_len = 4_096
    assert turned_by(fitted) == rope_of(fitted.hf_text_config, 131_072)


def test_other_models_are_named_as_they_were() -> None:
    model = llama4(131_072, {}, {})
    model.hf_text_config.model_type = "llama"
    assert tuning_of(model) == {}


def test_pages_that_vllm_keeps_below_a_window_are_loaded_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafts of several modules compute the last tokens anew, and vLLM takes what it keeps for
    them for good: it finds these pages again, and we would store them."""
    monkeypatch.setattr(module, "_backend", lambda *_: ("FLASH_ATTN", ""))
    monkeypatch.setattr(module, "_heads", lambda *_: (0, 2, 2, True))
    sizes: dict[str, Any] = {"block_size": 16, "num_kv_heads": 2, "head_size": 64}
    spec = SlidingWindowSpec(
        **sizes, dtype=torch.float32, sliding_window=64, extra_retained_tokens=3
    )
    config: Any = SimpleNamespace()
    facts, group = module._group(config, 0, spec, ["model.layers.0.self_attn.attn"])
    for end in range(16, 256, 16):
        skipped = SlidingWindowManager.get_num_skipped_tokens(spec, end)  # asks no more of itself
        assert window_start(end, facts.window_tokens) == skipped
    assert group.window_tokens == 64, "of an engine without drafts, with which it shares blocks"


def test_what_lmcache_s_plug_in_asks_of_vllm_beside_this_is_there() -> None:
    assert callable(get_current_vllm_config_or_none)
    assert callable(ModelConfig.get_layers_start_end_indices)
    assert callable(ModelConfig.get_and_verify_max_len)
    assert VllmConfig().lora_config is None, "and where there are adapters it is something"
    assert VllmConfig().weight_transfer_config is None
    said = {one.name for one in fields(ModelConfig)}
    assert untold.MODEL.keys() | {"enable_prompt_embeds"} <= said
    assert {name: getattr(MultiModalConfig(), name) for name in untold.IMAGES} == untold.IMAGES
    assert VllmConfig().compilation_config.static_forward_context == {}
    assert "non_causal" in {one.name for one in fields(FullAttentionSpec)}
    assert "enable_prefix_caching" in {one.name for one in fields(CacheConfig)}
    assert untold.RUN.keys() | set(OF_TOKENS) <= {one.name for one in fields(ParallelConfig)}
