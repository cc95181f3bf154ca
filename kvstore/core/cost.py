"""What a step of an engine, or a transfer, is expected to cost in seconds: three formulas.

Pure arithmetic on coefficients that somebody else found: `kvstore.core.priors` from a data sheet,
`kvstore.core.fit` from what engines report. No coefficient is negative, NaN or infinite, so more
work never costs less. Arguments are not looked at: whoever asks has checked them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import overload

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import Invalid

Floats = NDArray[np.float64]

BATCH_MAX = 1 << 16  # no engine runs more at once, however little a cost says that one more takes


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds to prefill n new tokens behind p cached ones: a + b n + c n (n + 2 p).

    a is what a step costs whatever its size, b what weights do to a token, and c attention: each
    new token looks at all before it, so pairs are a causal trapezoid of area n (n + 2 p) / 2. The
    form is that of least squares fits in the field, such as a + b n + c n^2 for whole prompts.
    Raises `Invalid` naming the field that is negative, NaN or infinite.
    """

    a: float  # seconds
    b: float  # seconds a token
    c: float  # seconds a token squared

    def __post_init__(self) -> None:
        _check(self)

    @overload
    def seconds(self, new_tokens: float, prefix_tokens: float) -> float: ...
    @overload
    def seconds(self, new_tokens: Floats, prefix_tokens: float | Floats) -> Floats: ...
    def seconds(self, new_tokens: float | Floats, prefix_tokens: float | Floats) -> float | Floats:
        """Of one prompt, or of many: arrays of float64 of one shape, or that broadcast."""
        # Times c before times n: whole numbers would overflow at n^2.
        return self.a + new_tokens * (self.b + self.c * (new_tokens + 2.0 * prefix_tokens))


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Seconds of one decode step: a + b batch + c context, the context summed over the batch.

    a is the reading of the weights, b the work for one sequence, c the reading of KV. Raises
    `Invalid` naming the field that is negative, NaN or infinite.
    """

    a: float  # seconds
    b: float  # seconds a sequence
    c: float  # seconds a token of context

    def __post_init__(self) -> None:
        _check(self)

    @overload
    def seconds(self, batch: float, context_tokens: float) -> float: ...
    @overload
    def seconds(self, batch: Floats, context_tokens: float | Floats) -> Floats: ...
    def seconds(self, batch: float | Floats, context_tokens: float | Floats) -> float | Floats:
        """Of one step, or of many: arrays of float64 of one shape, or that broadcast."""
        return self.a + self.b * batch + self.c * context_tokens

    def batch_max(self, tpot_seconds: float, context_tokens_each: float) -> int:
        """Sequences in the largest batch whose step is within the target; 0 if none is."""
        spare = tpot_seconds - self.a
        each = self.b + self.c * context_tokens_each
        if not spare >= each:
            return 0
        found = BATCH_MAX if each * BATCH_MAX <= spare else int(spare / each)
        # The division rounds, and the sum does: what `seconds` says of the answer decides.
        while found and self.seconds(found, found * context_tokens_each) > tpot_seconds:
            found -= 1
        while found < BATCH_MAX and (
            self.seconds(found + 1, (found + 1) * context_tokens_each) <= tpot_seconds
        ):
            found += 1
        return found


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Seconds to move bytes over one link. Raises `Invalid` naming the field that is negative, NaN
    or infinite, and for a link that moves nothing.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        _check(self)
        if not self.bytes_per_second:
            raise Invalid("TransferCost.bytes_per_second must be more than 0")

    @overload
    def seconds(self, size_bytes: float, queued_bytes: float = 0) -> float: ...
    @overload
    def seconds(self, size_bytes: Floats, queued_bytes: float | Floats = 0) -> Floats: ...
    def seconds(self, size_bytes: float | Floats, queued_bytes: float | Floats = 0) -> object:
        """Until the last byte is there, behind what is queued on the link before it."""
        return self.latency_seconds + (size_bytes + queued_bytes) / self.bytes_per_second


def _check(cost: PrefillCost | DecodeCost | TransferCost) -> None:
    for item in fields(cost):
        value = getattr(cost, item.name)
        if not (math.isfinite(value) and value >= 0):
            name = f"{type(cost).__name__}.{item.name}"
            raise Invalid(f"{name} must be a finite number of 0 or more, not {value!r}")
