"""What SGLang runs a model with, beside the model, is in the name of its KV where it is another's,
or where it decides what inputs are rounded to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.plugins import load_plugins_by_group

from kvstore.engine.connectors import plugins
from kvstore.engine.connectors.sglang import kernels as module
from kvstore.engine.connectors.sglang import told as of_server
from kvstore.engine.connectors.sglang.told import told
from tests.connectors.sglang.published import server

HOPPER, BLACKWELL, AMPERE, ADA = (9, 0), (10, 0), (8, 0), (8, 9)
MXFP4 = {"quant_method": "mxfp4"}
NVFP4 = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = {**FP8, "weight_block_size": [128, 128]}
Device = Callable[..., None]


def named(**args: Any) -> dict[str, str]:
    """Beside the server's version, which always is."""
    with server(model_path="m", **args):
        said = dict(told())
    assert said.pop("sglang") == sglang.__version__
    return said


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    def of(major: int | None, minor: int | None, hip: str | None = None) -> None:
        monkeypatch.setattr(module, "get_device_capability", lambda: (major, minor))
        monkeypatch.setattr(module.torch.version, "hip", hip)

    return of


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One plug-in of each group that SGLang looks through."""

    def of(group: str) -> list[Any]:
        name = group.split(".")[-1]
        dist = SimpleNamespace(name=name, version="1.0")
        return [SimpleNamespace(name=name, value="theirs:patch", dist=dist, load=lambda: print)]

    monkeypatch.setattr(plugins, "entry_points", of)
    monkeypatch.setattr("sglang.srt.plugins.entry_points", of)


def test_a_server_that_has_no_plug_in_is_named_as_it_was() -> None:
    assert named() == {}


@pytest.mark.parametrize(
    ("variable", "said", "left"),
    [
        ("SGLANG_PLUGINS", "", ["platforms", "plugins"]),
        ("SGLANG_PLUGINS", "plugins", ["plugins"]),
        ("SGLANG_PLUGINS", "log, platforms", ["platforms"]),
        ("SGLANG_PLUGINS", "log", []),
        ("SGLANG_PLUGINS", ",", []),
        ("SGLANG_PLATFORM", "platforms", ["platforms", "plugins"]),
        ("SGLANG_PLATFORM", "of-another", ["plugins"]),
    ],
)
@pytest.mark.usefixtures("installed")
def test_plug_ins_that_sglang_loads_are_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str, left: list[str]
) -> None:
    monkeypatch.setenv(variable, said)
    found = [one.split()[0].split(".")[-1] for one in of_server._plugins()]
    assert sorted(found) == left
    if variable == "SGLANG_PLUGINS":
        groups = (of_server.GENERAL_PLUGINS_GROUP, of_server.PLATFORM_PLUGINS_GROUP)
        assert {name for one in groups for name in load_plugins_by_group(one)} == set(left)
    assert ("plugins" in named()) == bool(left)


@pytest.mark.parametrize("quantized", [MXFP4, NVFP4, {**BLOCKS, **MXFP4}])
def test_devices_that_round_the_inputs_of_fp4_weights_otherwise_have_other_names(
    device: Device, quantized: dict[str, Any]
) -> None:
    names = []
    for one in (AMPERE, HOPPER, BLACKWELL, (12, 0)):
        device(*one)
        names.append(named(quantized=quantized)["kernels"])
    device(9, 5, "7.0")
    names.append(named(quantized=quantized)["kernels"])
    device(None, None)
    assert len({*names, named(quantized=quantized)["kernels"]}) == 6


def test_of_models_that_are_computed_alike_everywhere_a_device_is_not_named(
    device: Device,
) -> None:
    for one in (AMPERE, HOPPER, BLACKWELL):
        device(*one)
        assert named() == named(quantized={"quant_method": "gptq", "bits": 4}) == {}
    for one in (ADA, HOPPER, BLACKWELL):
        device(*one)
        assert named(quantized=FP8) == {}
    device(*AMPERE)
    assert named(quantized=FP8).keys() == {"kernels"}


@pytest.mark.parametrize(
    "said",
    [
        {"fp4_gemm_runner_backend": "marlin"},
        {"fp8_gemm_runner_backend": "triton"},
        {"moe_runner_backend": "marlin"},
    ],
)
def test_kernels_that_sglang_takes_for_fp4_are_named(said: dict[str, Any]) -> None:
    assert named(quantized=NVFP4, **said) != named(quantized=NVFP4)
    for quantized in (FP8, {}):
        assert named(quantized=quantized, **said) == {}, "of these KV differs by rounding"


def test_blocks_whose_scales_become_powers_of_two_have_other_names(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0 is False, "SGLang has another name for it"
    for one in (ADA, HOPPER):
        device(*one)
        assert named(quantized=BLOCKS) == named(quantized=FP8) == {}
    device(*BLACKWELL)
    names = [{}, named(quantized=BLOCKS)]
    monkeypatch.setattr(deep_gemm_wrapper, "DEEPGEMM_SCALE_UE8M0", True)
    names.append(named(quantized=BLOCKS))
    assert [one for index, one in enumerate(names) if one in names[:index]] == []
    assert named(quantized=FP8) == {}, "which has no blocks"


@pytest.mark.parametrize("which", ["fp8_gemm_runner_backend", "moe_runner_backend"])
def test_kernels_that_sglang_takes_for_blocks_are_named(which: str) -> None:
    """Some have powers of two for their scales, and some of those weights quantized anew."""
    names = [named(quantized=BLOCKS, **{which: one}) for one in ("deep_gemm", "triton", "auto")]
    assert names[0] != names[1] != names[2] == {}


def test_sglang_says_how_a_model_is_quantized_where_it_is_read(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "quantized")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "quantized" / "config.json").write_text(json.dumps(config))
    for folder, how in ((model, None), (tmp_path / "quantized", "fp8")):
        real = ModelConfig(str(folder))
        assert real.quantization == real.hf_quant_config.get("quant_method") == how
