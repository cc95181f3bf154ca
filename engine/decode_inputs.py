"""What a decode step reads, at addresses that never change: one token each of some sequences.

A recorded step reads its inputs where they lay when it was recorded, so they are written in place,
in one copy. Rows behind a step's sequences stand for nobody: they see nothing, and what they write
goes to the page that is nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .batch import Span
from .cache import PagedKV

WIDE, FACTS = 4, 3  # int64 and int32 numbers of a row, beside its block table


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The first rows of `DecodeInputs`, where a step of as many reads them.

    tokens, positions, pages, offsets and logit_rows are int64 (rows,); facts is int32 (rows, 3) and
    block_tables int32 (rows, most pages), as `kernels.gpu.attention.Step.kept` reads them.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    pages: torch.Tensor
    offsets: torch.Tensor
    logit_rows: torch.Tensor
    facts: torch.Tensor
    block_tables: torch.Tensor
    page_tokens: int
    positions_max: int  # of any sequence


class DecodeInputs:
    """Of `rows_max` sequences at most, of `positions_max` tokens each at most; beside the pages."""

    def __init__(self, cache: PagedKV, rows_max: int, positions_max: int) -> None:
        self._cache, self._positions_max = cache, positions_max
        self._pages_max = cache.pages_for(positions_max)
        head, place = 2 * WIDE * rows_max, cache.storage.device
        self._tables_at = head + FACTS * rows_max
        words = self._tables_at + self._pages_max * rows_max
        here = np.zeros(words, np.int32)
        self._wide = here[:head].view(np.int64).reshape(WIDE, -1)
        self._facts = here[head : self._tables_at].reshape(-1, FACTS)
        self._tables = here[self._tables_at :].reshape(-1, self._pages_max)
        self._here = torch.from_numpy(here)
        self._there = torch.zeros(words, dtype=torch.int32, device=place)
        self._every_row = torch.arange(rows_max, device=place)

    def rows(self, count: int) -> DecodeRows:
        """The first `count`."""
        head, tables = 2 * WIDE * len(self._every_row), self._there[self._tables_at :]
        wide = self._there[:head].view(torch.int64).view(WIDE, -1)
        tokens, positions, pages, offsets = wide[:, :count]
        return DecodeRows(
            tokens=tokens,
            positions=positions,
            pages=pages,
            offsets=offsets,
            logit_rows=self._every_row[:count],
            facts=self._there[head : self._tables_at].view(-1, FACTS)[:count],
            block_tables=tables.view(-1, self._pages_max)[:count],
            page_tokens=self._cache.page_tokens,
            positions_max=self._positions_max,
        )

    def write(self, spans: Sequence[Span], count: int) -> None:
        """Put spans of one token each in the first rows, and nobody in the others of `count`."""
        size, filled = self._cache.page_tokens, len(spans)
        starts = np.array([span.start for span in spans], np.int64)
        self._wide[:, :count] = [[0], [0], [self._cache.nobodys], [0]]
        self._wide[0, :filled] = [token for span in spans for token in span.tokens]
        self._wide[1, :filled] = starts
        self._wide[2, :filled] = [span.pages[span.start // size] for span in spans]
        self._wide[3, :filled] = starts % size
        self._facts[:count] = 0
        self._facts[:filled, 0] = np.arange(filled)
        self._facts[:filled, 1] = 1
        self._facts[:filled, 2] = starts
        for row, span in zip(self._tables, spans, strict=False):
            row[: len(span.pages)] = span.pages
        # In one piece: each that is sent takes as long as all together.
        used = self._tables_at + count * self._pages_max
        self._there[:used].copy_(self._here[:used])
