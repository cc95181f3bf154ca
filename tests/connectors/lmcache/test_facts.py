"""Engines that differ in anything that changes KV share nothing; what cannot be kept is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvstore.engine.connectors.lmcache import MoonpoolBackend
from kvstore.engine.connectors.lmcache.facts import Unsupported, facts_of
from kvstore.engine.connectors.lmcache.settings import Settings
from tests.connectors.lmcache.engine import CHUNK, DIM, HEADS, LAYERS, PLUGIN, Engine, settings
from tests.nodes import NodeProcess

Engines = Callable[..., Engine]
TOKENS = [1] * 2 * CHUNK
OF_FOUR = {"world_size": 4, "worker_id": 1}


@pytest.fixture
def stored(engine_of: Engines) -> Engine:
    ours = engine_of(metadata=OF_FOUR)
    ours.kv.fill(1)
    ours.store(TOKENS)
    assert engine_of(metadata=OF_FOUR).lookup(TOKENS) == len(TOKENS)
    return ours


@pytest.mark.parametrize(
    ("metadata", "more"),
    [
        ({}, {"revision": "r2"}),
        ({"model_name": "another"}, {}),
        ({"worker_id": 2}, {}),
        ({"world_size": 2}, {}),
        ({"kv_dtype": torch.float16}, {}),
        ({"kv_shape": (LAYERS, 2, CHUNK, DIM, HEADS)}, {}),
        ({"kv_shape": (LAYERS - 1, 2, CHUNK, HEADS, DIM)}, {}),
    ],
    ids=str,
)
def test_another_engine_never_hits(
    stored: Engine, engine_of: Engines, metadata: Any, more: Any
) -> None:
    theirs = engine_of(metadata={**OF_FOUR, **metadata}, **more)
    assert theirs.lookup(TOKENS) == theirs.retrieve(TOKENS) == 0


def test_a_key_s_tags_are_in_its_name(stored: Engine) -> None:
    theirs = {"lmcache.tag.user": "another"}
    assert stored.engine.lookup(torch.tensor(TOKENS), request_configs=theirs) == 0


def test_a_local_model_is_named_by_its_weights(engine_of: Engines, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    about = {"metadata": {"model_name": str(folder)}, "revision": None}
    save_file({"w": torch.zeros(4)}, folder / "model.safetensors")
    ours = engine_of(**about)
    ours.store(TOKENS)
    assert engine_of(**about).lookup(TOKENS) == len(TOKENS)
    save_file({"w": torch.ones(4)}, folder / "model.safetensors")
    assert engine_of(**about).lookup(TOKENS) == 0


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}},
        {"text_config": {"rope_parameters": {"rope_type": "longrope"}}},
        {"text_config": {"model_type": "llama4_text"}},
    ],
)
def test_a_model_whose_kv_the_longest_prompt_changes_needs_a_name_that_says_it(
    engine_of: Engines, heard: list[str], tmp_path: Path, config: Any
) -> None:
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert engine_of(metadata={"model_name": str(tmp_path)}, revision=None).plugin is None
    [refused] = heard
    assert "pool.revision' to something that changes with the weights and with max_m" in refused
    named = engine_of(metadata={"model_name": str(tmp_path)}, revision="r1, 4096 tokens")
    assert named.plugin is not None


@pytest.mark.parametrize(
    ("load_format", "told"),
    [
        ("auto", {"quantization": "fp8"}),
        ("auto", {"quantization_config": {"linear": "mxfp8"}}),
        ("auto", {"hf_overrides": {"rope_theta": 1}}),
        ("auto", {"hf_config_path": "config/of-another"}),
        ("auto", {"model_class_overrides": {"LlamaForCausalLM": "ours:Llama"}}),
        ("auto", {"model_weights": "s3://elsewhere"}),
        ("dummy", {}),
    ],
)
def test_what_the_vllm_around_it_was_told_needs_a_name_that_says_it(
    engine_of: Engines,
    heard: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load_format: str,
    told: Any,
) -> None:
    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    about: dict[str, Any] = {"metadata": {"model_name": str(tmp_path)}, "revision": None}

    def within(load_format: str, **told: Any) -> None:
        """As in a worker of vLLM's, for which LMCache makes the plug-in."""
        plain: dict[str, Any] = dict.fromkeys(
            ("quantization", "quantization_config", "hf_overrides", "hf_config_path")
        ) | {"model": str(tmp_path), "model_class_overrides": {}, "model_weights": ""}
        config = SimpleNamespace(
            model_config=SimpleNamespace(**plain | told),
            load_config=SimpleNamespace(load_format=load_format),
            additional_config={},
        )
        vllm: Any = ModuleType("vllm.config")
        vllm.get_current_vllm_config_or_none = lambda: config
        monkeypatch.setitem(sys.modules, "vllm.config", vllm)

    within("auto")
    assert engine_of(**about).plugin is not None
    within(load_format, **told)
    assert engine_of(**about).plugin is None
    [refused] = heard
    assert "vLLM was told " in refused and "pool.revision' to something that changes" in refused
    assert engine_of(**about | {"revision": "r1, and that"}).plugin is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"config": {"use_layerwise": True}}, "use_layerwise is not supported"),
        ({"revision": None}, "the revision of 'a/model' is not known: set extra_config "
         "'storage_plugin.pool.revision'"),
        ({"revison": "r1"}, "extra_config 'storage_plugin.pool.revison' is unknown; known after"),
        ({"deadline_ms": "100"}, "'storage_plugin.pool.deadline_ms' is '100'; int is wanted"),
        ({"deadline_ms": 0}, "'storage_plugin.pool.deadline_ms' is 0; 1 to 60000 is right"),
        ({"pin_ms": True}, "'storage_plugin.pool.pin_ms' is True; int is wanted"),
        ({"metadata": {"kv_dtype": torch.float64}}, "dtype 'float64' is not one of"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name_and_lmcache_serves_without(
    engine_of: Engines, heard: list[str], options: Any, said: str
) -> None:
    ours = engine_of(**options)
    assert ours.plugin is None
    [refused] = heard
    assert refused.startswith(f"Failed to create backend {PLUGIN}: ") and said in refused


@pytest.mark.parametrize("name", ["enable_pd", "enable_blending"])
def test_what_lmcache_itself_does_on_a_gpu_alone_is_refused_by_name(
    engine_of: Engines, name: str
) -> None:
    ours = engine_of()
    setattr(ours.engine.config, name, True)
    with pytest.raises(Unsupported, match=f"{name} is not supported; set it to false"):
        facts_of(ours.engine.config, ours.metadata, Settings("pool", revision="r1"))


def test_two_of_them_in_one_engine_are_refused(
    shared_node: NodeProcess, make: Engines, heard: list[str]
) -> None:
    extra = settings(shared_node.address)
    extra |= {one.replace(".pool.", ".pool.two."): value for one, value in extra.items()}
    ours = make(extra, config={"storage_plugins": ["pool", "pool.two"]})
    assert ours.plugin is None
    assert sum("names this plug-in 2 times; once is right" in one for one in heard) == 2


def test_a_plug_in_of_another_kind_beside_it_is_let_be(
    shared_node: NodeProcess, make: Engines
) -> None:
    extra = settings(shared_node.address) | {"storage_plugin.pool.two.anything": 1}
    ours = make(extra, config={"storage_plugins": ["pool", "pool.two"]})
    ours.store(TOKENS)
    assert ours.lookup(TOKENS) == len(TOKENS)


def test_without_cpu_memory_it_is_refused(shared_node: NodeProcess, engine_of: Engines) -> None:
    ours = engine_of()
    with pytest.raises(ValueError, match="set max_local_cpu_size"):
        MoonpoolBackend(config=ours.engine.config, metadata=ours.metadata)


class Kinds:
    """What LMCache learns of the layers when an engine registers its KV, as far as it is asked."""

    num_kernel_groups = 2

    def __init__(self, ours: Engine) -> None:
        [dtype], [shape] = ours.metadata.get_dtypes(), ours.metadata.get_shapes()

        class One:
            num_layers, hidden_dim_size = 1, shape[3]

            class shape_desc:
                kv_size, nh, hs = 2, HEADS, DIM

        One.dtype = dtype
        self.kernel_groups = [One, One]


def test_layers_of_two_kinds_are_refused_also_when_they_show_late(
    engine_of: Engines, heard: list[str]
) -> None:
    ours = engine_of(revision="late")
    ours.store(TOKENS)
    assert ours.lookup(TOKENS) == len(TOKENS)
    ours.metadata.kv_layer_groups_manager = Kinds(ours)
    assert ours.lookup(TOKENS) == ours.retrieve(TOKENS) == 0
    one = ours.manager.allocate(ours.metadata.get_shapes(), ours.metadata.get_dtypes())
    ours.manager.batched_put(ours.keys([2] * CHUNK), [one])
    assert ours.memory_in_use == 0
    assert len(heard) == 1 and "they are not kept" in heard[0], heard
    with pytest.raises(Unsupported, match="2 kinds of layers; models of one are kept"):
        facts_of(ours.engine.config, ours.metadata, Settings("pool", revision="r1"))
