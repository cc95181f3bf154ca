"""config.json is read as transformers 4 and 5 write it; what is not computed is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.engine.config import ModelConfig, RopeConfig
from kvstore.engine.errors import UnsupportedModel
from kvstore.errors import ConfigError

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def test_a_plain_config_is_read_with_its_head_dim_derived() -> None:
    config = ModelConfig.read(PLAIN)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert (config.rms_eps, config.dtype, config.tied_embeddings) == (1e-5, "float32", False)


def test_rope_theta_is_read_from_where_old_and_new_configs_keep_it() -> None:
    new = PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    old = PLAIN | {"rope_theta": 5e5, "rope_scaling": None}
    assert ModelConfig.read(new) == ModelConfig.read(old)
    assert ModelConfig.read(old).rope.theta == 5e5


def test_rope_scaling_is_read_from_where_old_and_new_configs_keep_it() -> None:
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    expected = RopeConfig(5e5, "llama3", 8.0, 1.0, 4.0, 1024)
    old = PLAIN | {"rope_theta": 5e5, "rope_scaling": scaling | {"rope_type": "llama3"}}
    new = PLAIN | {"rope_parameters": scaling | {"rope_theta": 5e5, "rope_type": "llama3"}}
    assert ModelConfig.read(old).rope == ModelConfig.read(new).rope == expected
    linear = PLAIN | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    assert ModelConfig.read(linear).rope.kind == "linear"


def test_what_ends_an_answer_is_read_of_the_whole_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | {"eos_token_id": 9}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    assert ModelConfig.load(tmp_path).eos_ids == (7, 9)


def test_the_dtype_is_read_under_its_old_and_new_name() -> None:
    assert ModelConfig.read(PLAIN | {"torch_dtype": "bfloat16"}).dtype == "bfloat16"
    assert ModelConfig.read(PLAIN | {"dtype": "float16"}).dtype == "float16"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*LlamaForCausalLM"),
        ({"architectures": None}, "none is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'.*llama3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks low_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "one RoPE"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"sliding_window": 4096}, "sliding_window: 4096"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization"),
        ({"dtype": "float64"}, "'float64'"),
        ({"num_key_value_heads": 3}, "4 attention heads do not divide over 3"),
        ({"head_dim": 15}, "odd"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(
    setting: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        ModelConfig.read(PLAIN | setting)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json is not there"):
        ModelConfig.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))
    assert ModelConfig.load(tmp_path) == ModelConfig.read(PLAIN)


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"])
def test_a_config_that_is_no_json_object_is_refused_by_its_name(
    text: bytes, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config\.json is no JSON"):
        ModelConfig.load(tmp_path)
