"""A vLLM around LMCache, as far as it is asked what it was told; in this environment is none.

That a real one has all of this, tests/connectors/vllm/test_facts.py says, where there is one.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.connectors import untold
from tests.connectors.lmcache.engine import LAYERS, MODEL

ENVS: Any = ModuleType("vllm.envs")  # one for all tests: it is imported once
ENVS.VLLM_FLOAT32_MATMUL_PRECISION, ENVS.VLLM_USE_DEEP_GEMM_E8M0 = "highest", True
ENVS.VLLM_PLUGINS = None


def vllm(
    monkeypatch: pytest.MonkeyPatch,
    *,
    load: dict[str, Any] | None = None,
    cache_dtype: str = "auto",
    additional_config: dict[str, Any] | None = None,
    rope: dict[str, Any] | None = None,
    transformers: bool = False,
    layers: tuple[int, int] = (0, LAYERS),
    parallel: dict[str, Any] | None = None,
    kernels: dict[str, Any] | None = None,
    lora: Any = None,
    prefixes: bool = True,
    layers_of: dict[str, Any] | None = None,
    weight_transfer: Any = None,
    **model: Any,
) -> None:
    """Be in a worker of vLLM's, for which LMCache makes the plug-in."""
    text = SimpleNamespace(
        rope_parameters=rope or {}, max_position_embeddings=4_096, model_type="llama"
    )
    about: dict[str, Any] = {
        "model": MODEL,
        "max_model_len": 4_096,
        "original_max_model_len": 4_096,
        "hf_text_config": text,
        "using_transformers_backend": lambda: transformers,
        "is_prefix_caching_supported": True,
        "enable_prompt_embeds": False,
        "get_layers_start_end_indices": lambda parallel: layers,
    }
    loading = {
        "load_format": "auto",
        "ignore_patterns": ["original/**/*"],
        "model_loader_extra_config": {},
    }
    whole = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1}
    told = SimpleNamespace(
        model_config=SimpleNamespace(**untold.MODEL | untold.FOUND | about | model),
        load_config=SimpleNamespace(**loading | (load or {})),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, enable_prefix_caching=prefixes),
        parallel_config=SimpleNamespace(**untold.RUN | whole | (parallel or {})),
        kernel_config=SimpleNamespace(**untold.KERNELS | (kernels or {})),
        additional_config=additional_config or {},
        compilation_config=SimpleNamespace(static_forward_context=layers_of or {}),
        lora_config=lora,
        weight_transfer_config=weight_transfer,
    )
    shown(monkeypatch, told)


def shown(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    """Be in a process of vLLM's where its configuration is this; None: where it is not at hand."""
    package: Any = ModuleType("vllm")
    package.envs, package.config = ENVS, ModuleType("vllm.config")
    package.config.get_current_vllm_config_or_none = lambda: config
    package.platforms = ModuleType("vllm.platforms")
    package.platforms.current_platform = SimpleNamespace(
        device_name="cpu", get_device_capability=lambda: None, is_cuda=lambda: False
    )
    package.utils = ModuleType("vllm.utils")
    package.utils.deep_gemm = SimpleNamespace(is_deep_gemm_supported=lambda: False)
    for one in (package, package.envs, package.config, package.platforms, package.utils):
        monkeypatch.setitem(sys.modules, one.__name__, one)
