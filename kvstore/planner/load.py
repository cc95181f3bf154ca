"""A load: which prompts arrive when, how long they and their answers are, and what they share.

It is held in columns, an entry a request in the order of arrival. What prompts share is told by
block ids: equal ids are equal KV from the start of the prompt up to and with that block. That a
replay may rely on it is what `check()` sees to: no block has two parents.

Nobody writes to the columns of a load: loads made from one another share them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import Invalid, InvariantError
from kvstore.planner import bounds, lineage, spans
from kvstore.planner.spans import Numbers, Seconds, Tokens

REQUESTS_MAX = 300_000  # of a load that is repeated
MOMENT = 1e-6  # seconds: what comes within so long comes at once


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Tokens a request."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What a load looks like from afar."""

    requests: int
    duration_s: float  # from the first arrival to the last
    rate: float  # requests a second in that time; 0 where all arrive at once
    input_tokens: Quantiles
    output_tokens: Quantiles
    hit_rate_max: float  # share of input tokens that a cache which forgets nothing would have had


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Requests in the order of arrival; at least one."""

    block_tokens: int
    arrival: Seconds  # seconds; ascends, from 0
    input_tokens: Tokens  # at least 1
    output_tokens: Tokens  # at least 1
    blocks: Numbers  # ids of the blocks of all requests, numbered from 0 by first appearance
    first: Numbers  # where each request's blocks begin in `blocks`, and the end of the last's
    client: Tokens | None = None  # whose each is, from 0; None: all are one client's

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def clients(self) -> int:
        return 1 if self.client is None else int(self.client.max()) + 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Load):
            return NotImplemented
        mine, theirs = self._columns(), other._columns()
        return (self.block_tokens, len(mine)) == (other.block_tokens, len(theirs)) and all(
            np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # equal by what is in the columns

    def scaled(self, rate_multiplier: float) -> Load:
        """The same requests, so many times as fast. Raises Invalid for what is no such number."""
        good = math.isfinite(rate_multiplier) and rate_multiplier > 0
        if not good or not math.isfinite(float(self.arrival[-1]) / rate_multiplier):
            raise Invalid(f"rate_multiplier = {rate_multiplier!r}: wants a number above 0, as in 2")
        return replace(self, arrival=self.arrival / rate_multiplier)

    def lasting(self, seconds: float, requests_max: int = REQUESTS_MAX) -> Load:
        """The same again and again, each time of other blocks, until requests have come for so
        long, or there are so many. One that lasts as long already, or no time, is itself."""
        span = float(self.arrival[-1])
        if span < MOMENT or span >= seconds:
            return self
        span += span / max(1, len(self) - 1)  # and the next first one comes as others do
        times = max(1, math.ceil(min(seconds / span, requests_max // len(self))))
        blocks, ends = int(self.blocks.max(initial=-1)) + 1, self.first[1:]
        again = np.arange(times, dtype=np.int64)[:, None]
        return Load(
            self.block_tokens,
            (again * span + self.arrival).ravel(),
            np.tile(self.input_tokens, times),
            np.tile(self.output_tokens, times),
            (again * blocks + self.blocks).ravel(),
            np.concatenate([self.first[:1], (again * len(self.blocks) + ends).ravel()]),
            None if self.client is None else np.tile(self.client, times),
        )

    def window(self, start_s: float, end_s: float) -> Load:
        """What arrives in [start_s, end_s); the first of it at 0. Raises Invalid if nothing does.

        Blocks used before the window are new in it: a replay of a window starts with a cold cache.
        """
        start, end = (int(np.searchsorted(self.arrival, one)) for one in (start_s, end_s))
        if not start < end:
            raise Invalid(
                f"no request in [{start_s:g} s, {end_s:g} s):"
                f" the load has them from 0 to {self.arrival[-1]:g} s"
            )
        some = slice(int(self.first[start]), int(self.first[end]))
        return Load(
            self.block_tokens,
            self.arrival[start:end] - self.arrival[start],
            self.input_tokens[start:end],
            self.output_tokens[start:end],
            lineage.by_appearance(self.blocks[some]),
            self.first[start : end + 1] - self.first[start],
            None if self.client is None else self.client[start:end],
        )

    @property
    def rate(self) -> float:
        """Requests a second from the first to the last; 0 where all arrive at once."""
        duration_s = float(self.arrival[-1])
        return (len(self) - 1) / duration_s if duration_s else 0.0

    def describe(self) -> Summary:
        duration_s = float(self.arrival[-1])
        return Summary(
            requests=len(self),
            duration_s=duration_s,
            rate=self.rate,
            input_tokens=_quantiles(self.input_tokens),
            output_tokens=_quantiles(self.output_tokens),
            hit_rate_max=self._hit_rate_max(),
        )

    def _hit_rate_max(self) -> float:
        tokens = int(self.input_tokens.sum(dtype=np.int64))
        return int(self.found_tokens_max().sum()) / tokens

    def check(self) -> None:
        """Raises InvariantError, which names the first request that is not as promised."""
        self._check_columns()
        _none("arrives before the one before it", np.append(False, np.diff(self.arrival) < 0))
        _none("has no token of input", self.input_tokens < 1)
        _none("has no token of output", self.output_tokens < 1)
        wanted = -(-self.input_tokens.astype(np.int64) // self.block_tokens)
        _none("has not as many blocks as its tokens fill", np.diff(self.first) != wanted)
        request = spans.owners(self.first)
        newest = np.maximum.accumulate(self.blocks)
        skips = np.diff(newest, prepend=-1) > 1
        _none("has an id that skips some", np.bincount(request, skips | (self.blocks < 0)) > 0)
        if found := lineage.stray(self.blocks, self.first):
            row, before = found
            raise InvariantError(
                f"request {request[row]}: block {self.blocks[row]} stands behind another block"
                f" than in request {request[before]}"
            )

    def _check_columns(self) -> None:
        kinds = (np.float64, np.int32, np.int32, np.int64, np.int64, np.int32)
        for column, kind in zip(self._columns(), kinds, strict=False):
            if column.dtype != kind or column.ndim != 1:
                raise InvariantError(f"a column is of {column.dtype}; {np.dtype(kind)} is wanted")
        count = len(self)
        lengths = (len(self.input_tokens), len(self.output_tokens), len(self.first) - 1)
        if count == 0 or lengths != (count, count, count):
            raise InvariantError(f"{count} arrivals, and columns for {lengths} requests")
        if not 1 <= self.block_tokens <= bounds.BLOCK_TOKENS_MAX:
            raise InvariantError(f"{self.block_tokens} tokens a block")
        if self.client is not None and (len(self.client) != count or self.client.min() < 0):
            raise InvariantError("not every request has a client, numbered from 0")
        if self.arrival[0] != 0:
            raise InvariantError(f"request 0: arrives at {self.arrival[0]} s, not at 0")
        _none("has no finite arrival", ~np.isfinite(self.arrival))
        if self.first[0] != 0 or self.first[-1] != len(self.blocks):
            raise InvariantError("the requests' blocks are not all there are")

    def whole(self) -> NDArray[np.bool_]:
        """For each block whether its prompt fills it. A short one, at a prompt's end, is computed
        with every prompt: engines store what is whole."""
        counts = self.input_tokens // self.block_tokens
        return np.asarray(spans.positions(self.first) < np.repeat(counts, np.diff(self.first)))

    def found_tokens_max(self) -> Numbers:
        """For each request, of its input those tokens that a cache which forgets nothing would
        have, from requests that arrived before it.

        Of blocks that are whole: a short one is not found again when the prompt grew.
        """
        whole = self.whole()
        request, block = spans.owners(self.first)[whole], self.blocks[whole]
        earliest = np.zeros(int(block.max(initial=-1)) + 1, np.int64)
        earliest[block[::-1]] = request[::-1]  # of equal ones the last written stays
        # What stands before a block was used whenever it was: the blocks found are the leading.
        found = np.bincount(request[earliest[block] < request], minlength=len(self))
        return np.asarray(found * self.block_tokens, np.int64)

    def _columns(self) -> tuple[NDArray[Any], ...]:
        some = self.arrival, self.input_tokens, self.output_tokens, self.blocks, self.first
        return some if self.client is None else (*some, self.client)


def _none(story: str, wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        raise InvariantError(f"request {int(np.argmax(wrong))}: {story}")


def _quantiles(tokens: Tokens) -> Quantiles:
    p50, p99 = np.percentile(tokens, (50, 99))
    return Quantiles(float(tokens.mean()), float(p50), float(p99))
