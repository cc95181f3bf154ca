"""How an answer's tokens are drawn, where it is not to be the likeliest ones: vLLM does that, and
engines of ours do not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """As OpenAI's API has it."""

    temperature: float
    top_p: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
