"""How large what a load is made of may be, and why. What is out of bounds is refused by name.

A wrong number in a trace is of another order of magnitude, or of another unit: the bounds are far
above what is served today, and low enough that nothing computed from a load overflows.
"""

from __future__ import annotations

import math

from kvstore.errors import ConfigError
from kvstore.limits import MiB

TOKENS_MAX = 1 << 24  # in a prompt or an answer: the longest context announced is 10 M
BLOCK_TOKENS_MAX = 1 << 16  # far above any engine's page
SECONDS_MAX = 10 * 366 * 86_400.0  # ten years: above, milliseconds were taken for seconds
REQUESTS_MAX = 1 << 26  # a load is held in memory whole: 24 bytes each, and its blocks
BLOCKS_MAX = 1 << 27  # of all requests: 1 GiB of numbers, several times that while they are made
ID_END = 1 << 64  # a block's id in a file is at most a 64-bit hash
LINE_BYTES_MAX = 32 * MiB  # a file without line ends must not fill the memory

_ID_CHARACTERS = 22  # 20 digits, a comma and a space
assert TOKENS_MAX // 16 * _ID_CHARACTERS < LINE_BYTES_MAX, "the longest prompt fits into a line"
assert TOKENS_MAX < 1 << 31, "tokens are int32"
assert TOKENS_MAX * REQUESTS_MAX < 1 << 63, "sums of tokens are int64"


def whole(name: str, value: int, least: int, most: int) -> None:
    """Raises ConfigError unless the setting is a whole number in [least, most]."""
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} = {value!r}: wants a whole number from {least:,} to {most:,}")


def number(name: str, value: float, least: float, most: float) -> None:
    """Raises ConfigError unless the setting is a finite number in [least, most]."""
    good = type(value) in (int, float) and math.isfinite(value) and least <= value <= most
    if not good:
        raise ConfigError(f"{name} = {value!r}: wants a number from {least:g} to {most:,g}")
