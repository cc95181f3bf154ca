"""What decides how vLLM rounds the inputs of layers whose weights have few bits: which kernels it
was told to take, and the device, whose kernels it takes by itself.
"""

from __future__ import annotations

import os
from typing import Any

from .few_bits import BLOCKS, SCALED, device_of, few_bits, libraries

SETTINGS = ("linear_backend", "linear_backend_per_quant", "moe_backend")
ENVIRONMENT = (
    *("VLLM_DISABLED_KERNELS", "VLLM_BATCH_INVARIANT"),
    *("VLLM_USE_DEEP_GEMM", "VLLM_MOE_USE_DEEP_GEMM"),  # whose scales are powers of two
)
OF_SCALED = (  # kernels of FP8 have the same inputs with these and without
    *("VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_LINEAR", "VLLM_ROCM_USE_AITER_MOE"),
    *("VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD", "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD"),
)
OF_BLOCKS = ("VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER",)  # which rounds inputs of small batches itself


def kernels(config: Any) -> dict[str, Any]:
    """By a short name each; nothing of a model whose KV does not depend on them."""
    model, told = config.model_config, config.kernel_config
    found = model.model_arch_config.quantization_config
    bits = few_bits(model.quantization, model.quantization_config, found)
    if not bits:
        return {}
    said: dict[str, Any] = {name: getattr(told, name) for name in SETTINGS}
    variables = ENVIRONMENT + {SCALED: OF_SCALED, BLOCKS: OF_BLOCKS}.get(bits, ())
    said |= {name: os.environ.get(name) for name in variables}
    if bits == BLOCKS:
        said["scales"] = _scales(model)
    said |= {"device": _device(bits), "libraries": libraries(bits)}
    return {name: value for name, value in said.items() if value and value != "auto"}


def _scales(model: Any) -> str:
    """Which of the blocks' scales do not become powers of two, as DeepGEMM has them. Whether it can
    be loaded is not tried, which would take a GPU's memory in a process that computes nothing."""
    from vllm.utils import deep_gemm

    if not deep_gemm.is_deep_gemm_supported():
        return "as they are"
    excluded = deep_gemm.should_auto_disable_deep_gemm(model.hf_text_config.model_type)
    return "of weights as they are" if excluded else ""


def _device(bits: str) -> str:
    from vllm.platforms import current_platform  # finds out what it is in once it is asked

    has = current_platform.get_device_capability()
    version = (has.major, has.minor) if has else None
    other = " ".join([current_platform.device_name, *map(str, version or ())])
    return device_of(bits, version if current_platform.is_cuda() else None, other)
