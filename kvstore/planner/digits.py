"""Amounts as a person reads them."""

from __future__ import annotations


def digits(value: float) -> str:
    """To three digits, or to whole ones where these are more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def gigabytes(size_bytes: float) -> str:
    return f"{digits(size_bytes / 1e9)} GB"
