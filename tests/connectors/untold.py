"""A model as vLLM's configuration has it where vLLM was told nothing but its name."""

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
}
