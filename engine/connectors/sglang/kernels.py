"""What decides how SGLang rounds the inputs of layers whose weights have few bits: the kernels that
it took, told to or not, and the device.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers import deep_gemm_wrapper
from sglang.srt.utils import get_device_capability

from ..few_bits import BLOCKS, SCALED, device_of, few_bits, libraries


def kernels(model: Any, config: Any, how: Any) -> dict[str, Any]:
    """By a short name each; nothing of a model whose KV does not depend on them."""
    family = config.hf_text_config.model_type  # DeepSeek V4's config says nothing of its FP4
    bits = few_bits(model.quantization, config.quantization, config.hf_quant_config, family)
    version = get_device_capability()
    cuda = None if version[0] is None or torch.version.hip else version
    other = "rocm {}.{}".format(*version) if torch.version.hip else "no GPU"
    said: dict[str, Any] = {"device": device_of(bits, cuda, other), "libraries": libraries(bits)}
    if bits in (SCALED, BLOCKS):
        said["fp8"] = how.kernel.fp8_gemm_runner_backend
        said["moe"] = how.moe.moe_runner_backend
    if bits == SCALED:
        said["fp4"] = how.kernel.fp4_gemm_runner_backend
    if bits == BLOCKS and deep_gemm_wrapper.DEEPGEMM_SCALE_UE8M0:  # some models take it back
        said["scales"] = "powers of two"
    return {name: value for name, value in said.items() if value and value != "auto"}
