"""A model, what runs it and by which kernels, as vLLM's configuration has them where vLLM was told
nothing but the model's name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

# As far as the name of its KV is made of it. Where there is a vLLM, a test looks that it has this.
MODEL: dict[str, Any] = {
    "model_weights": "",
    "dtype": torch.bfloat16,
    "hf_config_path": None,
    "hf_config": SimpleNamespace(_commit_hash="c0ffee"),
    "quantization": None,
    "quantization_config": None,
    "hf_overrides": {},
    "model_class_overrides": {},
    "code_revision": None,
    "config_format": "auto",
    "multimodal_config": None,
}
FOUND = {"model_arch_config": SimpleNamespace(quantization_config=None)}  # in the model's config
RUN = {
    "worker_cls": "vllm.v1.worker.gpu_worker.Worker",
    "worker_extension_cls": "",
    "distributed_executor_backend": "mp",
}
KERNELS = {"linear_backend": "auto", "linear_backend_per_quant": None, "moe_backend": "auto"}
# Of a model that is given images.
IMAGES: dict[str, Any] = {
    "language_model_only": False,
    "media_io_kwargs": {},
    "mm_processor_cache_gb": 4,
    "mm_processor_kwargs": None,
    "mm_encoder_attn_dtype": None,
    "mm_encoder_fp8_scale_path": None,
    "video_pruning_rate": None,
    "video_pruning_method": "evs",
}
