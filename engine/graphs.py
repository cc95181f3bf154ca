"""Decode steps that are recorded, and run again: one launch where there were hundreds.

A step in which each sequence has one token launches the same kernels whoever they are; all that
differs is read from memory (`DecodeInputs`). So it is recorded once for each of a few numbers of
rows, when the engine starts: nothing else runs on the device then, and what the recordings hold is
known before anybody is served. A step runs in the smallest recording that has a row for each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from .batch import Span
from .cache import PagedKV
from .decode_inputs import DecodeInputs
from .model import Model
from .recording import Recorded

log = logging.getLogger(__name__)


def sizes(rows_max: int) -> list[int]:
    """Rows of each recording: powers of two, and `rows_max`."""
    powers = [1 << n for n in range(rows_max.bit_length()) if 1 << n < rows_max]
    return [*powers, rows_max]


def rows_for(spans: Sequence[Span], rows_max: int) -> int | None:
    """Rows of the recording that these run in, or None where they are no such step. Pure."""
    if len(spans) > rows_max or not all(len(s.tokens) == 1 and s.wants_logits for s in spans):
        return None
    return next(size for size in sizes(rows_max) if size >= len(spans))


@dataclass(frozen=True, slots=True)
class Graphs:
    """Recordings of one model on one cache."""

    inputs: DecodeInputs
    recorded: dict[int, Recorded]  # by their rows

    @classmethod
    def of(cls, model: Model, cache: PagedKV, rows_max: int, positions_max: int) -> Graphs | None:
        """For steps of up to `rows_max` sequences of up to `positions_max` tokens. None where the
        device records nothing, where it cannot, which is logged, and for a rank of several: ranks
        meet between layers, outside of what a device can record."""
        device = model.device
        if device.recording is None or model.team.ranks > 1:
            return None
        try:
            inputs = DecodeInputs(cache, rows_max, positions_max)
            inputs.write([], rows_max)
            recorder = device.recording.recorder(device.place)
            recorded = {}
            for size in reversed(sizes(rows_max)):  # what the largest takes does for all
                rows = inputs.rows(size)
                attention = device.recording.attention(rows, model.config)
                recorded[size] = recorder.record(partial(model.compute, rows, attention, cache))
        except RuntimeError as error:
            log.warning("decode steps run without graphs: %s", error)
            return None
        return cls(inputs, recorded)

    def fit(self, spans: Sequence[Span]) -> bool:
        """Whether `run` takes these."""
        return rows_for(spans, max(self.recorded)) is not None

    def run(self, spans: Sequence[Span]) -> torch.Tensor:
        """Logits of each span, (spans, vocab), which hold until the next run. Of spans that fit."""
        rows = rows_for(spans, max(self.recorded))
        assert rows is not None, "these spans were never recorded"
        self.inputs.write(spans, rows)
        return self.recorded[rows].replay()[: len(spans)]
