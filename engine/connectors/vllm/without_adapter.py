"""Whether a vLLM that has LoRA adapters computes prompts without one as the model alone would.

On a CPU vLLM 0.32 does not where one runs in the same step: it takes the last adapter's weights for
no adapter's (its pull request 48421 is to mend that). So the KV of such a prompt depends on what
else is in its batch.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

log = logging.getLogger("vllm.moonpool")

MIXED = "no LoRA adapter, which this vLLM computes by that of another request in the same step,"


def why_not(config: Any) -> str:
    """Why prompts without an adapter are not kept, or nothing."""
    if config.lora_config is None:
        return ""
    from vllm.platforms import current_platform

    return MIXED if current_platform.is_cpu() and not _leaves_alone() else ""


def _leaves_alone() -> bool:
    """Whether vLLM's own code adds nothing to a row that has none."""
    row, weights, none = torch.zeros(1, 1), torch.ones(1, 1, 1, 1), torch.tensor([-1])
    try:
        from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_expand_slice

        bgmv_expand(torch.ones(1, 1), weights, row, none, add_inputs=True)
        bgmv_expand_slice(torch.ones(1, 1), weights, row, none, 0, 1, add_inputs=True)
    except Exception as error:
        log.warning("Moonpool: whether a LoRA adapter leaves others alone is not known: %s", error)
        return False
    return not row.any()
