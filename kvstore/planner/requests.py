"""The requests of a trace while it is read; `load()` makes one of them when all are there.

A file whose lines are not in the order of time is sorted, and of one time the line that comes first
stays first: traces gathered from several machines are like that, and nothing is lost by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from kvstore.errors import Invalid
from kvstore.planner import bounds, lineage, spans
from kvstore.planner.lines import Line
from kvstore.planner.load import Load
from kvstore.planner.spans import Numbers


class Requests:
    """Grows by a request a line. Compact: a week of a large service is read in one piece."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._lines = array("q")
        self._stamps = array("d")
        self._input_tokens = array("i")
        self._output_tokens = array("i")
        self._ids = array("Q")
        self._blocks = 0

    def blocks(self, tokens: int) -> int:
        """How many blocks a prompt of so many tokens has; the last may be short."""
        return -(-tokens // self._block_tokens)

    def add(
        self, line: Line, stamp_s: float, input_tokens: int, output_tokens: int, ids: Sequence[int]
    ) -> None:
        """Answers of 0 tokens are taken for 1: what a prefill ends with is a token."""
        self._blocks += self.blocks(input_tokens)
        if self._blocks > bounds.BLOCKS_MAX or len(self._lines) == bounds.REQUESTS_MAX:
            raise line.unreadable(
                f"a trace of more than {bounds.REQUESTS_MAX:,} requests or"
                f" {bounds.BLOCKS_MAX:,} blocks: plan with its first lines"
            )
        self._lines.append(line.number)
        self._stamps.append(stamp_s)
        self._input_tokens.append(input_tokens)
        self._output_tokens.append(max(1, output_tokens))
        self._ids.extend(ids)

    def without_reuse(self) -> Load:
        """Every block is another one; no ids were given."""
        return self._load(np.arange(self._blocks))

    def by_prefix(self) -> Load:
        """Ids are of what is in a block: those behind other blocks are of other KV."""
        return self._load(lineage.by_prefix(self._names(), self._first()))

    def by_id(self, where: str, field: str) -> Load:
        """Ids are of a block and all before it. Raises Invalid where one has two parents."""
        names, first = self._names(), self._first()
        if found := lineage.stray(names, first):
            row, before = found
            request, earlier = np.searchsorted(first, found, side="right") - 1
            place, met = row - int(first[request]), before - int(first[earlier])
            raise Invalid(
                f"{where}:{self._lines[request]}: {field}[{place}] = {self._ids[row]}: stands"
                f" behind other blocks than {field}[{met}] of line {self._lines[earlier]};"
                " an id must be of a block and all before it"
            )
        return self._load(names)

    def _names(self) -> Numbers:
        """The ids made dense."""
        _, names = np.unique(np.array(self._ids, np.uint64), return_inverse=True)
        return names.astype(np.int64)

    def _first(self) -> Numbers:
        tokens = np.array(self._input_tokens, np.int64)
        return spans.offsets(-(-tokens // self._block_tokens))

    def _load(self, names: Numbers) -> Load:
        stamps, first = np.array(self._stamps), self._first()
        order = np.argsort(stamps, kind="stable")
        arrival = stamps[order]
        return Load(
            self._block_tokens,
            arrival - arrival[0],
            np.array(self._input_tokens, np.int32)[order],
            np.array(self._output_tokens, np.int32)[order],
            lineage.by_appearance(names[spans.rows(first, order)]),
            spans.offsets(np.diff(first)[order]),
        )
