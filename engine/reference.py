"""What `transformers` says: the oracle the engine's tokens are compared with.

It shares no code with the engine, loads only local files, and decodes greedily with
`transformers`' own cache, so an error common to both is unlikely.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


class Reference:
    """A `transformers` model kept loaded."""

    def __init__(self, model_dir: str | Path, place: torch.device | str = "cpu") -> None:
        # Imported here: the engine runs without transformers, and the import takes seconds.
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # its caller has a bar of its own

        model: Any = AutoModelForCausalLM.from_pretrained(
            str(model_dir), attn_implementation="sdpa", dtype="auto", local_files_only=True
        )
        self._model, self._place = model.to(place).eval(), place

    @torch.inference_mode()
    def tokens(self, prompt_tokens: Sequence[int], max_new: int) -> list[int]:
        """Exactly max_new greedy tokens, end tokens ignored."""
        out: list[int] = []
        fed, past = torch.tensor([list(prompt_tokens)], device=self._place), None
        while len(out) < max_new:
            result = self._model(fed, past_key_values=past, use_cache=True, logits_to_keep=1)
            past = result.past_key_values
            out.append(int(result.logits[0, -1].argmax()))
            fed = torch.tensor([[out[-1]]], device=self._place)
        return out

    @torch.inference_mode()
    def logits(self, prompt_tokens: Sequence[int]) -> torch.Tensor:
        """Logits of every position, in one pass: (tokens, vocab)."""
        fed = torch.tensor([list(prompt_tokens)], device=self._place)
        logits: torch.Tensor = self._model(fed).logits[0]
        return logits


def reference_tokens(
    model_dir: str | Path, prompt_tokens: Sequence[int], max_new: int
) -> list[int]:
    """Exactly max_new greedy tokens of the model in a folder, end tokens ignored."""
    return Reference(model_dir).tokens(prompt_tokens, max_new)
