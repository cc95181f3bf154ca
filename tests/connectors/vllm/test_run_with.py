"""What vLLM runs a model with, beside the model, is in the name of its KV where it is another's, or
where it decides what inputs are rounded to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import envs, platforms
from vllm.config import KernelConfig, ModelConfig
from vllm.platforms.interface import DeviceCapability
from vllm.plugins import DEFAULT_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP, load_plugins_by_group
from vllm.utils import deep_gemm
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from kvstore.engine.connectors import plugins, vllm_kernels
from kvstore.engine.connectors.vllm.settings import Settings
from kvstore.engine.connectors.vllm_name import revision_of
from kvstore.engine.connectors.vllm_told import PLUGINS
from tests.connectors import untold
from tests.connectors.vllm.test_facts import engine, told_of

HOPPER, BLACKWELL, AMPERE, ADA = (9, 0), (10, 0), (8, 0), (8, 9)


class Theirs(Executor):
    """Runs workers in a way of its own."""


def named(**whole: Any) -> str:
    return revision_of(told_of({}, {}, whole), Settings(revision="r1"))


def run_by(**classes: Any) -> str:
    return named(parallel_config=SimpleNamespace(**untold.RUN | classes))


def test_what_a_model_is_run_with_has_no_name_where_it_is_vllm_s_own() -> None:
    assert named() == "r1"
    assert run_by(worker_cls="vllm.v1.worker.cpu_worker.CPUWorker") == "r1"
    assert run_by(distributed_executor_backend=MultiprocExecutor) == "r1"
    assert {run_by(distributed_executor_backend=one) for one in ("uni", "ray")} == {"r1"}
    assert load_plugins_by_group(DEFAULT_PLUGINS_GROUP), "vLLM brings some itself"


def test_classes_of_others_that_run_a_model_are_named() -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"worker_cls": "theirs.worker.Worker"},
        {"worker_cls": "theirs.worker.OtherWorker"},
        {"worker_extension_cls": "theirs.worker.Worker2"},
        {"distributed_executor_backend": "theirs.executor.Executor"},
        {"distributed_executor_backend": Theirs},
    ]
    assert len({run_by(**one) for one in ways}) == len(ways)


def test_plug_ins_that_vllm_loads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(PLUGINS) == {DEFAULT_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP}
    theirs = SimpleNamespace(
        name="steer", value="theirs:patch", dist=SimpleNamespace(name="theirs", version="1.0")
    )
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [theirs] if group == DEFAULT_PLUGINS_GROUP else []
    )
    names = {}
    for said in (None, "steer", "steer,log", "log"):
        if said is not None:
            monkeypatch.setenv("VLLM_PLUGINS", said)
        names[said] = named()
    assert names["log"] == "r1"
    assert names[None] == names["steer"] == names["steer,log"] != "r1"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(has: tuple[int, int] | None, name: str = "cuda", **gemm: bool) -> None:
        """`deep`: DeepGEMM is taken there, and for this model's weights unless it is `less`."""
        deep, less = gemm.get("deep", True), gemm.get("less", False)
        monkeypatch.setattr(deep_gemm, "is_deep_gemm_supported", lambda: deep)
        monkeypatch.setattr(deep_gemm, "should_auto_disable_deep_gemm", lambda model_type: less)
        version = DeviceCapability(*has) if has else None
        there = SimpleNamespace(
            device_name=name, get_device_capability=lambda: version, is_cuda=lambda: name == "cuda"
        )
        monkeypatch.setattr(platforms, "_current_platform", there)

    return of


def quantized(how: str | None = None, text: Any = None, **config: Any) -> str:
    found = SimpleNamespace(quantization_config=config or None)
    model = engine(quantization=how, model_arch_config=found, hf_text_config=text)
    return revision_of(model, Settings(revision="r1")).removeprefix(f"r1;quantization={how}")


@pytest.mark.parametrize("how", ["modelopt_fp4", "compressed-tensors", "gpt_oss_mxfp4"])
def test_devices_that_round_the_inputs_of_fp4_weights_otherwise_have_other_names(
    device: Any, how: str
) -> None:
    config = {"format": "nvfp4-pack-quantized"} if how == "compressed-tensors" else {}
    names = []
    for one in (AMPERE, HOPPER, BLACKWELL, (12, 0)):
        device(one)
        names.append(quantized(how, **config))
    device((9, 5), "rocm")
    assert len({*names, quantized(how, **config)}) == 5


def test_of_models_that_are_computed_alike_everywhere_a_device_is_not_named(device: Any) -> None:
    for how in (None, "awq", "gptq_marlin"):
        for one in (AMPERE, HOPPER, BLACKWELL):
            device(one)
            assert quantized(how) == ("r1" if how is None else "")
    for one in (ADA, HOPPER, BLACKWELL):
        device(one)
        assert quantized("fp8") == ""
    device(AMPERE)
    assert quantized("fp8") != ""


def test_blocks_whose_scales_become_others_have_other_names(device: Any) -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    text = SimpleNamespace(model_type="qwen3_5_text")

    def of(*where: Any, **how: Any) -> str:
        device(*where, **how)
        return quantized("fp8", text, **blocks)

    assert of(HOPPER) == quantized("fp8") == "", "as before"
    assert of(HOPPER, deep=False) == of(ADA, deep=False) == of(None, "cpu", deep=False) != ""
    others = [of(HOPPER), of(ADA, deep=False), of(BLACKWELL), of(BLACKWELL, less=True)]
    others += [of(BLACKWELL, deep=False), of((12, 0)), of(AMPERE, deep=False)]
    assert len({*others}) == len(others)
    device(BLACKWELL, deep=False)
    assert quantized("fp8") == "", "which has no blocks"


def test_vllm_says_whether_scales_of_blocks_become_powers_of_two() -> None:
    assert deep_gemm.is_deep_gemm_supported() is False
    assert deep_gemm.should_auto_disable_deep_gemm("qwen3_5_text") is False
    assert quantized("fp8_per_block", SimpleNamespace(model_type="llama")) != ""


@pytest.mark.parametrize(
    "said",
    [
        {"linear_backend": "marlin"},
        {"linear_backend_per_quant": {"nvfp4_w4a4": "marlin"}},
        {"moe_backend": "marlin"},
    ],
)
def test_kernels_that_vllm_was_told_to_take_for_few_bits_are_named(said: dict[str, Any]) -> None:
    def of(how: str | None, said: dict[str, Any]) -> str:
        config = engine(quantization=how)
        config.kernel_config = SimpleNamespace(**untold.KERNELS | said)
        return revision_of(config, Settings(revision="r1"))

    assert untold.KERNELS.keys() <= {one.name for one in fields(KernelConfig)}
    for how in ("modelopt_fp4", "fp8"):
        assert of(how, said) != of(how, {})
    for how in (None, "awq"):
        assert of(how, said) == of(how, {}), "of these KV differs by rounding"


OF_FEW_BITS = vllm_kernels.ENVIRONMENT + vllm_kernels.OF_SCALED + vllm_kernels.OF_BLOCKS


@pytest.mark.parametrize("name", OF_FEW_BITS)
def test_what_the_environment_says_of_kernels_for_few_bits_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert name in envs.environment_variables, "vLLM has another name for it"

    def names() -> list[str]:
        text = SimpleNamespace(model_type="llama")
        return [quantized(one, text) for one in ("modelopt_fp4", "fp8_per_block", "fp8", "awq")]

    before = names()
    monkeypatch.setenv(name, "1")
    of_scaled, of_blocks = name in vllm_kernels.OF_SCALED, name in vllm_kernels.OF_BLOCKS
    same = [one == other for one, other in zip(before, names(), strict=True)]
    assert same == [of_blocks, of_scaled, of_scaled or of_blocks, True]


def test_vllm_says_how_a_model_is_quantized_as_its_own_config_has_it(
    model: Callable[[str], Path],
) -> None:
    real = ModelConfig(str(model("llama")))
    assert real.model_arch_config.quantization_config is None
    real.hf_config.quantization_config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    real.model_arch_config = real.get_model_arch_config()
    kept = SimpleNamespace(model_config=real, kernel_config=SimpleNamespace(**untold.KERNELS))
    assert vllm_kernels.kernels(kept)["device"] == "cpu"
