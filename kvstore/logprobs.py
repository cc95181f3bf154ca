"""What a model says of one token of an answer: how likely it was, and which were likeliest there.

All are natural logarithms of the softmax of the model's logits as they come, before a temperature,
`top_p` or penalties change them, whoever computes the model.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of one token."""

    logprob: float  # of the token that was taken
    top: tuple[tuple[int, float], ...] = ()  # ids of the likeliest and theirs, the likeliest first
