"""Engines that differ in anything that changes KV share nothing; what cannot be kept is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang.srt
import torch
from sglang.srt.configs.model_config import ModelImpl
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.version import __version__

from kvstore.engine.connectors.sglang import facts, fleet
from kvstore.engine.connectors.sglang.told import _ENVIRONMENT
from tests.connectors.sglang.engine import Engine, fill, mha_pool, mla_pool
from tests.connectors.sglang.published import checkpoint, server

Engines = Callable[..., Engine]
KEYS = ["a" * 64, "b" * 64]
# Of the environment, what SGLang reads by itself and has not among its own list.
READ_IN = {
    "SGLANG_AITER_FP8_PREFILL_ATTN": "layers/attention/aiter_backend.py",
    "SGLANG_GFX1250_W4A8_MOE": "layers/quantization/quark/schemes/quark_w4a8_mxfp4_moe.py",
    "AITER_FORCE_A8W4": "layers/quantization/fp8.py",
    "AITER_SITUV2_A8W4": "layers/quantization/mxfp4.py",
    "AITER_SITUV2_A4W4": "layers/quantization/mxfp4.py",
    "ROCM_QUICK_REDUCE_QUANTIZATION": "distributed/device_communicators/quick_all_reduce.py",
    "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16": "distributed/device_communicators/quick_all_reduce.py",
    "VIDEO_MAX_PIXELS": "multimodal/processors/qwen_vl.py",
}


@pytest.fixture
def stored(engine_of: Engines) -> Engine:
    ours = engine_of(mha_pool("page_first"))
    fill(ours.pool, 1)
    assert ours.store(KEYS, 0, 1) == [True, True]
    return ours


@pytest.mark.parametrize(
    "other",
    [
        {"revision": "r2"},
        {"model_name": "another"},
        {"namespace_extra": "rope scaled twice"},
        {"tp": (0, 2)},
        {"tp": (1, 2)},
    ],
)
def test_another_engine_never_hits(stored: Engine, engine_of: Engines, other: Any) -> None:
    theirs = engine_of(mha_pool("page_first"), **other)
    assert theirs.storage.batch_exists(KEYS) == 0
    assert theirs.load(KEYS, 0, 1) == [False, False]
    assert engine_of(mha_pool("page_first")).storage.batch_exists(KEYS) == 2


@pytest.mark.parametrize(
    "args",
    [
        {"quantization": "fp8"},
        {"kv_cache_dtype": "bfloat16"},
        {"json_model_override_args": json.dumps({"rope_theta": 1})},
        {"modelopt_quant": "fp8"},
        {"modelopt_quant": {"quant_cfg": {}}},
        {"impl": ModelImpl.TRANSFORMERS},
        {"impl": ModelImpl.MINDSPORE},
        {"model_config_parser": "mistral"},
        {"quantize_and_serve": True},
        {"kv_cache_dtype": "bfloat16", "dtype": "float32"},
        {"model_loader_extra_config": {"pattern": "of-another-{rank}-{part}.safetensors"}},
        {"enable_quant_communications": True},
        {"flashinfer_mxfp4_moe_precision": "fp8"},
        {"deepep_dispatcher_output_dtype": "fp8"},
        {"flashinfer_a2a_dispatch_type": "nvfp4"},
        {"enable_w4a4_mxfp4_megamoe": True},
        {"enforce_shared_experts_fusion": True},
        {"ep_dispatch_algorithm": "fake"},
        {"enable_tf32_matmul": True},
        {"rl_on_policy_target": "fsdp"},
        {"forward_hooks": [{"hook_factory": "theirs:steer", "target_modules": ["*"]}]},
        {"mm_process_config": {"image": {"max_pixels": 50_176}}},
        {"mm_process_config": {"video": {"fps": 1}}},
        {"image_processor_backend": "pil"},
        {"enable_precise_embedding_interpolation": True},
    ],
)
def test_what_a_server_is_told_about_its_kv_is_in_the_namespace(
    stored: Engine, engine_of: Engines, args: Any
) -> None:
    with server(model_path="m"):
        assert engine_of(mha_pool("page_first")).storage.batch_exists(KEYS) == 2
    with server(model_path="m", **args):
        assert engine_of(mha_pool("page_first")).storage.batch_exists(KEYS) == 0


@pytest.mark.parametrize(
    "args",
    [
        {"model_impl": "sglang"},
        {"ep_dispatch_algorithm": "static"},
        {"ep_dispatch_algorithm": "dynamic", "ep_num_redundant_experts": 2},
        {"init_expert_location": "trivial", "enable_eplb": True},
        {"attention_backend": "torch_native"},
    ],
)
def test_what_changes_no_kv_keeps_no_servers_apart(
    stored: Engine, engine_of: Engines, args: Any
) -> None:
    with server(model_path="m", **args):
        assert engine_of(mha_pool("page_first")).storage.batch_exists(KEYS) == 2


def test_two_ways_to_say_the_same_of_images_have_one_name(engine_of: Engines) -> None:
    names = set()
    for said in ({"image_processor_backend": "pil"}, {"disable_fast_image_processor": True}):
        with server(model_path="m", **said):
            names.add(engine_of(mha_pool("page_first")).storage._client.space.spec.revision)
    assert len(names) == 1


def test_whose_code_computes_is_named_however_it_came_to_be(engine_of: Engines) -> None:
    """SGLang takes Transformers' code if told so, and by itself for a model that it has none of."""
    names = set()
    for asked in ("auto", "transformers"):
        with server(model_path="m", impl=ModelImpl.TRANSFORMERS, model_impl=asked):
            names.add(engine_of(mha_pool("page_first")).storage._client.space.spec.revision)
    assert names == {f"r1;sglang={__version__};code=transformers"}


def test_what_a_server_computes_in_is_named_where_it_keeps_kv_in_something_else(
    engine_of: Engines,
) -> None:
    names = set()
    for dtype in ("float16", "bfloat16"):
        with server(model_path="m", kv_cache_dtype="bfloat16", dtype=dtype):
            names.add(engine_of(mha_pool("page_first")).storage._client.space.spec.revision)
    assert len(names) == 2


@pytest.mark.parametrize("name", _ENVIRONMENT)
def test_what_the_environment_says_of_kv_is_in_the_namespace(
    stored: Engine, engine_of: Engines, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in READ_IN:
        source = (Path(sglang.srt.__path__[0]) / READ_IN[name]).read_text()
        assert f'"{name}"' in source, "SGLang has another name for it"
    else:
        assert hasattr(envs, name), "SGLang has another name for it"
    monkeypatch.setenv(name, "1")
    with server(model_path="m"):
        assert engine_of(mha_pool("page_first")).storage.batch_exists(KEYS) == 0


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_of_kv_in_eight_bits_it_is_named_who_puts_it_there(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch, hip: str | None
) -> None:
    """As this host's SGLang says it, where it is told that its GPU is AMD's."""
    monkeypatch.setattr(torch.version, "hip", hip)
    names = set()
    for backend in ("triton", "torch_native"):
        with server(model_path="m", kv_cache_dtype="fp8_e4m3", attention_backend=backend):
            pool = mha_pool("page_first", dtype=torch.float8_e4m3fn)
            names.add(engine_of(pool).storage._client.space.spec.revision)
    assert len(names) == 2
    assert all(("fp8=float8_e4m3" in one) == (hip is not None) for one in names)


def test_a_commit_that_the_server_was_started_with_names_the_weights(engine_of: Engines) -> None:
    with server(model_path="org/model", revision="0" * 40):
        spec = engine_of(mha_pool("page_first"), revision="").storage._client.space.spec
    assert (spec.model, spec.revision) == ("org/model", f"commit:{'0' * 40};sglang={__version__}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"moonpol": "x"}, "moonpol is unknown; known are moonpool, revision, namespace_extra"),
        ({"deadline_ms": "1s"}, "deadline_ms is '1s'; int is wanted"),
        ({"deadline_ms": True}, "deadline_ms is True; int is wanted"),
        ({"deadline_ms": 0}, "deadline_ms is 0; 1 to 4000 is right"),
        ({"conductors": "127.0.0.1:7420"}, "conductors is '127.0.0.1:7420'; list is wanted"),
        ({"conductors": ["here"], "address": "h:1"}, "conductors: 'here' is no HOST:PORT"),
        ({"conductors": ["127.0.0.1:7420"]}, "address: '' is no HOST:PORT; `address` is where"),
        ({"rack": "a\nb"}, "extra-config: rack"),
        ({"moonpool": ""}, "moonpool is empty"),
        ({"revision": ""}, "the revision of 'model' is not known: set revision in"),
        (
            {"config": {"pp_size": 2}, "conductors": ["h:1"], "address": "h:2"},
            "pp_size 2 is not supported beside conductors",
        ),
        ({"config": {"attn_cp_size": 2}}, "attn_cp_size 2 is not supported; 1 is"),
        ({"config": {"tp_lcm_size": 4}}, "tp_lcm_size 4 is not supported"),
        ({"config": {"is_mla_model": True}}, "MHATokenToKVPoolHost; MLATokenToKVPoolHost is supp"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(
    engine_of: Engines, options: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        engine_of(mha_pool("page_first"), **options)


def told(**more: Any) -> dict[str, Any]:
    return {"conductors": ["127.0.0.1:7420"], "address": "h:1", **more}


def test_a_server_that_is_no_one_engine_is_refused_beside_conductors_and_not_else(
    engine_of: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = SimpleNamespace(num_dp_ranks=1), SimpleNamespace(disaggregation_mode="null")
    ranks = SimpleNamespace(num_dp_ranks=2), whole[1]
    apart = whole[0], SimpleNamespace(disaggregation_mode="prefill")
    for (parallel, disagg), said in (
        (ranks, "data-parallel ranks: 2 is not supported beside conductors"),
        (apart, "--disaggregation-mode prefill beside conductors"),
        (whole, ""),
    ):
        monkeypatch.setattr(fleet, "get_parallel", lambda one=parallel: one)
        monkeypatch.setattr(fleet, "get_disagg", lambda one=disagg: one)
        if said:
            with pytest.raises(ValueError, match=said):
                engine_of(mha_pool("page_first"), **told())
        else:
            engine_of(mha_pool("page_first"), **told())
        engine_of(mha_pool("page_first"))


def test_the_keys_that_sglang_reads_itself_are_no_concern_of_ours(engine_of: Engines) -> None:
    more = {"prefetch_threshold": 16, "hicache_storage_pass_prefix_keys": True}
    engine_of(mha_pool("page_first"), **more)


@pytest.mark.parametrize("make", [mha_pool, mla_pool])
def test_a_layout_that_is_not_known_is_refused_by_name(engine_of: Engines, make: Any) -> None:
    with pytest.raises(ValueError, match="--hicache-mem-layout page_unified of an M"):
        engine_of(make("page_unified"))


def test_a_second_host_pool_is_refused_by_name(stored: Engine) -> None:
    with pytest.raises(ValueError, match="'swa' beside the KV pool is not supported"):
        stored.storage.register_mem_host_pool_v2(mha_pool("page_first"), PoolName.SWA)
    # SGLang does not close what it asked to attach, and serves on without it.
    assert not stored.storage.exists(KEYS[0])


def test_layers_of_a_draft_model_are_refused(engine_of: Engines) -> None:
    pool = mha_pool("page_first")
    pool.target_layer_num -= 1
    with pytest.raises(ValueError, match="1 layers of a draft model"):
        engine_of(pool)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"enable_lora": True}, "LoRA"),
        ({"quantization_param_path": "scales.json"}, "quantization_param_path"),
        ({"modelopt_checkpoint_restore_path": "q.pth"}, "modelopt_checkpoint_restore_path"),
        ({"decrypted_config_file": "config.json"}, "decrypted_config_file"),
        ({"kt_weight_path": "/experts"}, "kt_weight_path"),
        (
            {"model_loader_extra_config": json.dumps({"qlora_adapter_name_or_path": "a/lora"})},
            "qlora_adapter_name_or_path",
        ),
    ],
)
def test_what_sglang_does_not_name_is_refused(engine_of: Engines, args: Any, said: str) -> None:
    with (
        server(model_path="m", **args),
        pytest.raises(ValueError, match=said),
    ):
        engine_of(mha_pool("page_first"))


def test_random_weights_have_no_name_of_their_own(engine_of: Engines, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "folder", 1)
    with (
        server(model_path=str(folder), load_format="dummy"),
        pytest.raises(ValueError, match="load_format dummy"),
    ):
        engine_of(mha_pool("page_first"), revision="")


@pytest.mark.parametrize("load_format", ["remote_instance", "remote", "ipc_cache", "presharded"])
def test_weights_that_come_from_elsewhere_are_not_named_by_the_folder(
    engine_of: Engines, tmp_path: Path, load_format: str
) -> None:
    folder = checkpoint(tmp_path / "folder", 1)
    with server(model_path=str(folder), load_format=load_format):
        with pytest.raises(ValueError, match=f"load_format {load_format} may load other weights"):
            engine_of(mha_pool("page_first"), revision="")
        engine_of(mha_pool("page_first"), revision="r1")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"weight_cache_mode": "client"}, "weight_cache_mode client"),
        ({"weight_cache_mode": "daemon"}, "weight_cache_mode daemon"),
        (
            {"checkpoint_engine_wait_weights_before_ready": True},
            "checkpoint_engine_wait_weights_before_ready",
        ),
    ],
)
def test_weights_that_another_process_holds_or_brings_are_not_named_by_the_folder(
    engine_of: Engines, tmp_path: Path, args: Any, said: str
) -> None:
    folder = checkpoint(tmp_path / "folder", 1)
    with server(model_path=str(folder), **args):
        with pytest.raises(ValueError, match=f"{said}: weights are then not read from"):
            engine_of(mha_pool("page_first"), revision="")
        engine_of(mha_pool("page_first"), revision="r1")


def test_which_of_a_folder_s_weights_are_loaded_is_in_the_namespace(
    engine_of: Engines, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "folder", 1)
    torch.save({"w": torch.zeros(4)}, folder / "model.pt")

    def named(load_format: str) -> str:
        with server(model_path=str(folder), load_format=load_format):
            ours = engine_of(mha_pool("page_first"), revision="")
        return str(ours.storage._client.space.spec.revision)

    before = [named(one) for one in ("auto", "mistral", "pt")]
    torch.save({"w": torch.ones(4)}, folder / "model.pt")
    facts._digest.cache_clear()  # as of another process
    after = [named(one) for one in ("auto", "mistral", "pt")]
    assert len({*before, *after}) == 4, "what is loaded by pt alone has changed"


def test_fp8_is_kept_only_where_it_is_said_which(engine_of: Engines) -> None:
    def pool() -> Any:
        return mha_pool("page_first", dtype=torch.float8_e4m3fn)

    assert pool().dtype is torch.uint8
    with pytest.raises(ValueError, match="does not say which fp8"):
        engine_of(pool())
    with server(model_path="m", kv_cache_dtype="fp8_e4m3"):
        ours = engine_of(pool())
    assert ours.store(KEYS, 0, 1) == [True, True]
    with server(model_path="m", kv_cache_dtype="fp8_e5m2"):
        assert engine_of(pool()).storage.batch_exists(KEYS) == 0
    engine_of(pool(), namespace_extra="kv fp8_e4m3")
