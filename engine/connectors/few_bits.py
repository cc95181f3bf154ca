"""Models whose weights have few bits: what their layers' inputs are rounded to depends on more.

Where a device multiplies numbers of so few bits a kernel rounds inputs to as many. Where it does
not, or another kernel is taken (Marlin's), they keep their 16. KV then differs by much more than
kernels' rounding does, so of such a model what decides it is named.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import Any

# Floats with a scale for each few of them: NVFP4, MXFP4, MXFP6, MXFP8. Engines have many kernels
# for them, and devices are few that multiply them.
SCALED = "scaled"
FP8 = "fp8"
# With a scale for each block of weights. On some devices DeepGEMM has powers of two for them: then
# weights are quantized anew, and inputs otherwise.
BLOCKS = "blocks"
# As engines, quantizers and model families call them, or say what they are made of.
_SCALED = re.compile(
    r"fp_?4|mx_?fp|nv_?fp|fp_?6|e2m1|modelopt_mixed|deepseek_v4|humming"
    r'|"num_bits": 4,[^{}]*"type": "float"'
)
_FP8 = re.compile(r'fp_?8|float8|e4m3|"modelopt"|"type": "float"')
_BLOCKS = re.compile(r'"weight_block_size": \[|"strategy": "block"|per_block|fp8_block|fp8_pb')
FP8_SINCE = (8, 9)  # of CUDA's compute capability
BLACKWELL = (10, 0)  # whose experts have kernels of their own, and scales as these have them
# Kernels that both engines take where they are installed, for some models before their own.
LIBRARIES = ("aiter", "b12x", "deep_gemm", "fbgemm_gpu", "flashinfer", "humming")


def few_bits(*said: Any) -> str:
    """`SCALED`, `BLOCKS` or `FP8` by what is said of a model's quantization, or nothing: whole
    numbers of few bits have inputs of their own or of 16 bits on any device."""
    text = json.dumps(said, sort_keys=True, default=str).lower()
    if _SCALED.search(text):
        return SCALED
    if not _FP8.search(text):
        return ""
    return BLOCKS if _BLOCKS.search(text) else FP8


def device_of(bits: str, cuda: tuple[int, int] | None, other: str = "") -> str:
    """What of a device decides about inputs: its `cuda` capability, or what `other` it is."""
    if bits == SCALED or (bits == BLOCKS and cuda and cuda >= BLACKWELL):
        return f"cuda {cuda[0]}" if cuda else other
    return "without fp8" if bits and cuda and cuda < FP8_SINCE else ""


def libraries(bits: str) -> list[str]:
    """Which of the libraries that decide about inputs are installed."""
    return [name for name in LIBRARIES if find_spec(name)] if bits == SCALED else []
