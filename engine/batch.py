"""One step's work, flattened: the tokens of all its spans, side by side.

Prefill chunks and decode tokens are the same thing here: a span is the next tokens of a sequence,
and everything before them is in its pages. That is why a cached prefix needs no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class Span:
    """`tokens` at positions start.. of one sequence, whose block table is `pages`."""

    tokens: Sequence[int]
    start: int
    pages: npt.NDArray[Any]  # integers, (>= pages that hold `end` tokens,)
    wants_logits: bool

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Inputs(Protocol):
    """What the model indexes with; int64, and each (tokens,) but logit_rows, (spans that want,)."""

    @property
    def tokens(self) -> torch.Tensor: ...

    @property
    def positions(self) -> torch.Tensor: ...

    @property
    def pages(self) -> torch.Tensor: ...

    @property
    def offsets(self) -> torch.Tensor: ...

    @property
    def logit_rows(self) -> torch.Tensor: ...


Send = Callable[[npt.NDArray[Any]], torch.Tensor]
"""Brings an array to where it is computed."""


class Batch:
    """Spans, and their `Inputs`."""

    def __init__(
        self, spans: Sequence[Span], page_tokens: int, send: Send = torch.from_numpy
    ) -> None:
        assert all(len(span.tokens) for span in spans)
        self.spans, self.page_tokens = tuple(spans), page_tokens
        flat = [token for span in spans for token in span.tokens]
        position = np.concatenate([np.arange(span.start, span.end) for span in spans])
        owned = [span.pages[np.arange(span.start, span.end) // page_tokens] for span in spans]
        ends = np.cumsum([len(span.tokens) for span in spans])
        self.rows = tuple(
            slice(int(end) - len(span.tokens), int(end))
            for end, span in zip(ends, spans, strict=True)
        )
        wanting = [int(e) - 1 for e, s in zip(ends, spans, strict=True) if s.wants_logits]
        pages, offsets = np.concatenate(owned), position % page_tokens
        parts = [np.array(one, np.int64) for one in (flat, position, pages, offsets, wanting)]
        # In one piece: to another device each that is sent takes as long as all together.
        split = send(np.concatenate(parts)).split([len(one) for one in parts])
        self.tokens, self.positions, self.pages, self.offsets, self.logit_rows = split
