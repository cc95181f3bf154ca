"""Rotary position embedding: the same angles as the checkpoint was trained with.

It computes angles in float32 and only then rounds to the model's dtype, as `transformers` does:
rounding positions first would lose them beyond 256 in bfloat16.
"""

from __future__ import annotations

import math

import torch

from .config import RopeConfig


def frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position of each rotated pair: float32 (head_dim / 2,)."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponent)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Slow pairs are stretched by `factor`, fast ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    slow = rope.original_positions / rope.low_freq_factor
    fast = rope.original_positions / rope.high_freq_factor
    share = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(wavelength > slow, plain / rope.factor, plain)
    between = (wavelength >= fast) & (wavelength <= slow)
    return torch.where(between, blended, stretched)


def angles(
    positions: torch.Tensor, freqs: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each (tokens, 1, head_dim), of int64 positions (tokens,)."""
    half = positions[:, None].float() * freqs
    whole = torch.cat((half, half), dim=-1)[:, None]
    return whole.cos().to(dtype), whole.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (tokens, heads, head_dim) turned by its positions; pairs are (i, i + head_dim / 2)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
