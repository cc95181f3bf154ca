"""What vLLM was told that changes its KV, beside which weights it has. Each is in their name, where
it says anything. Which kernels compute is among it where weights have few bits (vllm_kernels.py):
elsewhere they differ by rounding alone.
"""

from __future__ import annotations

import os
from typing import Any

from vllm import envs

from . import plugins
from .vllm_kernels import kernels

# Entry points that run in the processes that compute.
PLUGINS = ("vllm.general_plugins", "vllm.platform_plugins")
NOT_LOADED = ["original/**/*"]  # unless something else is set
# Of the environment: what is computed or exchanged in fewer bits, and what is not computed at all.
ENVIRONMENT = (
    *("VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_INPUT_QUANT_CONFIG"),
    *("VLLM_MARLIN_INPUT_DTYPE", "VLLM_CPU_INT4_W4A8", "VLLM_B12X_MOE_FP4_FORCE_A16"),
    *("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16"),
    *("VLLM_ROCM_USE_AITER_FP4BMM", "VLLM_ROCM_USE_AITER_FP8BMM"),
    *("VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4", "VLLM_DEEPEPLL_NVFP4_DISPATCH"),
    *("VLLM_ROCM_USE_AITER_MOE_SITUV2", "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE"),
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
)


def told(config: Any) -> dict[str, Any]:
    """By a short name each; what says nothing is false."""
    model, load = config.model_config, config.load_config
    computed, kept = str(model.dtype).removeprefix("torch."), config.cache_config.cache_dtype
    loading = load.model_loader_extra_config
    return {
        "how": model.quantization_config,
        "overrides": model.hf_overrides,
        # Of one model, vLLM's own code and others' may lay the numbers of a head out differently.
        "classes": model.model_class_overrides,
        "transformers": model.using_transformers_backend(),
        "code": model.code_revision,
        "config": model.config_format != "auto" and model.config_format,
        # A spec's dtype says of KV in fewer bits how many, not what they mean.
        "dtype": kept not in ("auto", computed) and [kept, computed],
        "platform": config.additional_config,  # of platforms that are not vLLM's own
        "plugins": plugins.loaded(PLUGINS, "vllm", envs.VLLM_PLUGINS),
        "workers": _workers(config.parallel_config),
        "kernels": kernels(config),
        # A folder or a commit may have weights in several forms, or several shardings of them.
        "not_loaded": load.ignore_patterns != NOT_LOADED and load.ignore_patterns,
        "pattern": isinstance(loading, dict) and loading.get("pattern"),
        "matmuls": envs.VLLM_FLOAT32_MATMUL_PRECISION != "highest"
        and envs.VLLM_FLOAT32_MATMUL_PRECISION,
        # Else scales of blocks in fp8, those of weights among them, become powers of two.
        "scales": not envs.VLLM_USE_DEEP_GEMM_E8M0 and "as they are",
        "environment": {name: os.environ[name] for name in ENVIRONMENT if os.environ.get(name)},
    }


def _workers(parallel: Any) -> list[str]:
    """Classes that run the model, and are not vLLM's own."""
    runs = parallel.distributed_executor_backend
    if isinstance(runs, type):
        runs = f"{runs.__module__}.{runs.__qualname__}"
    named = (parallel.worker_cls, parallel.worker_extension_cls, runs)
    return [one for one in named if one and "." in one and not one.startswith("vllm.")]
