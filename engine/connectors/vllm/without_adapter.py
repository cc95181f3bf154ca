"""Whether a vLLM that has LoRA adapters computes prompts without one as the model alone would.

On a CPU vLLM 0.32 does not where one runs in the same step: it takes the last adapter's weights for
no adapter's (its issue 48421). So the KV of such a prompt depends on what else is in its batch.
"""

from __future__ import annotations

from typing import Any

import torch

MIXED = "no LoRA adapter, which this vLLM computes by that of another request in the same step,"


def why_not(config: Any) -> str:
    """Why prompts without an adapter are not kept, or nothing."""
    if config.lora_config is None:
        return ""
    from vllm.platforms import current_platform

    return MIXED if current_platform.is_cpu() and not _leaves_alone() else ""


def _leaves_alone() -> bool:
    """As vLLM's own code does what it is asked to for a row that has none."""
    try:
        from vllm.lora.ops.torch_ops import bgmv_expand

        row, weights = torch.zeros(1, 1), torch.ones(1, 1, 1, 1)
        bgmv_expand(torch.ones(1, 1), weights, row, torch.tensor([-1]), add_inputs=True)
    except Exception:  # whatever a later vLLM has there: nobody knows then
        return False
    return not row.any()
