"""What the vLLM around it was told is in a chunk's namespace, as vLLM's own connector has it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvstore.engine.connectors.lmcache.host import Host, host_of
from kvstore.engine.connectors.lmcache.settings import Settings
from kvstore.engine.connectors.unsupported import Unsupported
from tests.connectors import untold
from tests.connectors.lmcache.around import ENVS, shown, vllm
from tests.connectors.lmcache.engine import CHUNK, LAYERS, MODEL, Engine
from tests.nodes import eventually

Engines = Callable[..., Engine]
TOKENS = [1] * 2 * CHUNK
LONG: dict[str, Any] = {"rope_type": "longrope", "original_max_position_embeddings": 4_096}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 4.0}
TOLD: list[dict[str, Any]] = [
    {"quantization": "fp8"},
    {"quantization": "fp8_per_block"},
    {"quantization_config": {"linear": "mxfp8"}},
    {"hf_overrides": {"rope_theta": 1}},
    {"model_class_overrides": {"LlamaForCausalLM": "ours:Llama"}},
    {"transformers": True},
    {"code_revision": "v2"},
    {"config_format": "mistral"},
    {"cache_dtype": "fp8_e4m3"},
    {"cache_dtype": "fp8_e5m2"},
    {"additional_config": {"of a platform": 1}},
    {"load": {"ignore_patterns": ["*.safetensors"]}},
    {"load": {"model_loader_extra_config": {"pattern": "other-{rank}-{part}"}}},
    {"rope": DYNAMIC},
    {"layers": (LAYERS, 2 * LAYERS)},
    {"parallel": {"worker_cls": "theirs:Worker.of"}},
    {"quantization": "fp8", "kernels": {"linear_backend": "marlin"}},
]


def host(revision: str = "r1", layers: int = LAYERS) -> Host:
    return host_of(MODEL, layers, Settings("pool", revision=revision))


def test_outside_of_vllm_a_revision_is_all_that_names_an_engine() -> None:
    assert host() == Host("r1")
    with pytest.raises(Unsupported, match=r"'storage_plugin\.pool\.revision' to something that ch"):
        host(revision="")


def test_what_vllm_was_told_is_named_beside_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm(monkeypatch)
    assert host() == Host("r1", {}, 0), "and nothing where it was told nothing"
    names = [host()]
    for told in TOLD:
        vllm(monkeypatch, **told)
        names.append(host())
    assert not [one for index, one in enumerate(names) if one in names[:index]]


def images(**told: Any) -> Any:
    return SimpleNamespace(**untold.IMAGES | told)


def test_what_images_are_to_a_model_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of(model: Path, told: Any) -> Host:
        vllm(monkeypatch, model=str(model), multimodal_config=told)
        return host()

    small, large, scales = tmp_path / "small", tmp_path / "large", tmp_path / "scales.json"
    for folder in (small, large):
        folder.mkdir()
        (folder / "preprocessor_config.json").write_text(folder.name)
    scales.write_text("{}")
    fp8 = images(mm_encoder_attn_dtype="fp8", mm_encoder_fp8_scale_path=str(scales))
    names = [
        of(small, None),
        of(small, images()),
        of(large, images()),
        of(small, images(mm_processor_kwargs={"max_pixels": 50_176})),
        of(small, images(media_io_kwargs={"video": {"num_frames": 8}})),
        of(small, images(mm_encoder_attn_dtype="fp8")),
        of(small, fp8),
        of(small, images(video_pruning_rate=0.5)),
        of(small, images(video_pruning_rate=0.5, video_pruning_method="vidcom2")),
    ]
    scales.write_text("of another calibration")
    names.append(of(small, fp8))
    assert not [one for index, one in enumerate(names) if one in names[:index]]
    assert names[0] == of(large, images(language_model_only=True)) == Host("r1"), "of text alone"
    assert of(small, images(mm_processor_kwargs={"device": "cuda"})) == names[1]
    assert of(Path("weights/of-this"), images()) == Host("r1"), "its commit says it"


def test_images_that_vllm_counts_instead_of_looking_at_them_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(told: Any, prefixes: bool) -> Host:
        vllm(monkeypatch, model="hub/model", multimodal_config=told, prefixes=prefixes)
        return host()

    counted = {"mm_processor_cache_gb": 0}
    with pytest.raises(Unsupported, match=r"by a count of its own.*; leave one of the two on"):
        of(images(**counted), prefixes=False)
    assert of(images(**counted), prefixes=True) == of(images(), prefixes=False)
    assert of(images(**counted, language_model_only=True), prefixes=False) == Host("r1")
    assert of(None, prefixes=False) == Host("r1"), "it is given none"


def test_a_model_one_of_whose_layers_looks_ahead_is_refused_by_that_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def layer(**spec: Any) -> Any:
        return SimpleNamespace(get_kv_cache_spec=lambda config: SimpleNamespace(**spec))

    others = {"layers.0.moe": object(), "layers.0.attn": layer(), "layers.1.attn": layer()}
    vllm(monkeypatch, layers_of={**others, "layers.2.attn": layer(non_causal=False)})
    assert host() == Host("r1")
    vllm(monkeypatch, layers_of={**others, "layers.2.attn": layer(non_causal=True)})
    with pytest.raises(Unsupported, match=r"attention of layer 'layers\.2\.attn' is not causal"):
        host()


def test_what_its_environment_says_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm(monkeypatch)
    monkeypatch.setenv("VLLM_MARLIN_INPUT_DTYPE", "fp8")
    marlin = host()
    monkeypatch.delenv("VLLM_MARLIN_INPUT_DTYPE")
    monkeypatch.setattr(ENVS, "VLLM_FLOAT32_MATMUL_PRECISION", "medium")
    medium = host()
    monkeypatch.undo()
    vllm(monkeypatch)
    assert len({one.revision for one in (marlin, medium, host())}) == 3


@pytest.mark.parametrize("told", [{"quantization": "fp8"}, {"rope": DYNAMIC}, {"layers": (1, 4)}])
def test_engines_that_were_told_otherwise_share_no_chunks(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    vllm(monkeypatch)
    engine_of(revision="both").store(TOKENS)
    assert engine_of(revision="both").lookup(TOKENS) == len(TOKENS)
    vllm(monkeypatch, **told)
    assert engine_of(revision="both").lookup(TOKENS) == 0


def test_where_there_are_adapters_a_chunk_is_kept_whose_key_says_of_which_it_is(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    def found(tags: dict[str, str] | None) -> int:
        return engine.lookup(TOKENS, tags=tags)

    vllm(monkeypatch, lora=SimpleNamespace(max_loras=2))
    engine = engine_of(revision="adapters")
    engine.store(TOKENS)  # nobody knows by which
    assert found(None) == 0
    [said] = heard
    assert "lmcache.tag.lora" in said
    one, other = {"lmcache.tag.lora": "one"}, {"lmcache.tag.lora": "other"}
    engine.engine.store(torch.tensor(TOKENS), request_configs=one)
    eventually(lambda: found(one) == len(TOKENS))
    assert found(other) == found(None) == found({"lmcache.tag.user": "one"}) == 0
    assert len(heard) == 1


def test_a_longer_prompt_parts_engines_where_vllm_then_takes_other_factors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(length: int) -> Host:
        vllm(monkeypatch, rope=LONG, max_model_len=length)
        return host()

    assert of(4_096) == of(512) != of(4_097) == of(131_072)


def test_a_local_model_is_named_by_its_weights(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    about = {"metadata": {"model_name": str(tmp_path)}, "revision": None}
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    vllm(monkeypatch, model=str(tmp_path))
    engine_of(**about).store(TOKENS)
    assert engine_of(**about).lookup(TOKENS) == len(TOKENS)
    save_file({"w": torch.ones(4)}, tmp_path / "model.safetensors")
    assert engine_of(**about).lookup(TOKENS) == 0


def test_a_published_model_is_named_by_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    vllm(monkeypatch)
    assert host(revision="").revision == "commit:c0ffee"


def test_in_tensorrt_llm_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", SimpleNamespace())
    with pytest.raises(Unsupported, match="LMCache in TensorRT-LLM looks prompts up"):
        host(revision="r1")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"load": {"load_format": "dummy"}}, "load_format 'dummy' draws weights at random; set "),
        ({"load": {"load_format": "tensorizer"}}, "load_format 'tensorizer' may load other"),
        ({"hf_config_path": "config/of-another"}, "hf_config_path 'config/of-another'"),
        ({"model_weights": "s3://elsewhere"}, "model_weights 's3://elsewhere'"),
    ],
)
def test_weights_that_vllm_does_not_name_need_a_name(
    monkeypatch: pytest.MonkeyPatch, told: Any, said: str
) -> None:
    vllm(monkeypatch, **told)
    with pytest.raises(Unsupported, match=f"{said}.*extra_config 'storage_plugin.pool.revision'"):
        host(revision="")
    assert host().revision == "r1"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"transformers": True, "rope": DYNAMIC, "max_model_len": 8_192}, "RoPE of type dynamic"),
        ({"transformers": True, "rope": LONG, "max_model_len": 8_192}, "RoPE of type longrope"),
        ({"is_prefix_caching_supported": False}, "vLLM reuses no prefixes of this model"),
        ({"is_diffusion": True}, "a diffusion model"),
        ({"enable_prompt_embeds": True}, "enable_prompt_embeds: LMCache names prompts by their"),
        ({"weight_transfer": SimpleNamespace(backend="nccl")}, "weight_transfer_config: weights"),
        ({"parallel": {"decode_context_parallel_size": 2}}, "decode_context_parallel_size 2 is"),
        ({"parallel": {"prefill_context_parallel_size": 2}}, "prefill_context_parallel_size 2 is"),
        ({"layers": (0, LAYERS - 1)}, "a chunk has 3 layers, and this rank's part of the model 2"),
    ],
)
def test_what_no_name_makes_right_is_refused(
    monkeypatch: pytest.MonkeyPatch, told: Any, said: str
) -> None:
    vllm(monkeypatch, **told)
    with pytest.raises(Unsupported, match=said):
        host()


def test_a_vllm_that_does_not_show_what_it_was_told_is_refused(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch, heard: list[str]
) -> None:
    shown(monkeypatch, None)
    assert engine_of().plugin is None
    [refused] = heard
    assert "vLLM does not show here what it was told" in refused
