"""The blocks of made-up prompts.

A prompt is the beginning of a text, and a text begins with a stem, which other texts may have too:

    tokens   0 .......... stem .................... input_tokens
    blocks   | stem | stem | text | text | text | short |
                           ^ the block the stem ends in is the text's own

Whole blocks are shared by all prompts that reach over them. The last block, if it is short, is its
prompt's alone: a longer prompt of the same text has other tokens in that place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstore.errors import ConfigError
from kvstore.planner import bounds, lineage, spans
from kvstore.planner.load import Load
from kvstore.planner.spans import Numbers, Seconds

STEMS_MAX = 1 << 20  # tables of stems stay small beside the load


@dataclass(frozen=True, slots=True)
class Stems:
    """The names of the whole blocks of each stem, one stem after another."""

    tokens: Numbers  # of each stem, with those that fill no block
    names: Numbers  # from 0; two stems that begin alike have names in common
    first: Numbers

    @classmethod
    def apart(cls, tokens: Numbers, block_tokens: int) -> Stems:
        """Stems of these lengths that have nothing in common."""
        first = spans.offsets(tokens // block_tokens)
        return cls(tokens, np.arange(first[-1]), first)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Columns, in any order. Prompts of one text differ in length and have one stem."""

    arrival: Seconds
    text: Numbers  # from 0
    stem: Numbers
    input_tokens: Numbers  # more than the stem's
    output_tokens: Numbers


def load(prompts: Prompts, stems: Stems, block_tokens: int) -> Load:
    """The prompts in the order of time. Raises ConfigError if they or a prompt are too large."""
    order = np.argsort(prompts.arrival, kind="stable")
    arrival, text, stem = prompts.arrival[order], prompts.text[order], prompts.stem[order]
    tokens = prompts.input_tokens[order]
    if (longest := int(tokens.max())) > bounds.TOKENS_MAX:
        raise ConfigError(
            f"input_tokens: a prompt of {longest:,} was drawn, at most {bounds.TOKENS_MAX:,} are"
            " planned with: make the prompts or what stands before them shorter"
        )
    first = spans.offsets(-(-tokens // block_tokens))
    if first[-1] > bounds.BLOCKS_MAX:
        raise ConfigError(
            f"block_tokens = {block_tokens}: the prompts have {first[-1]:,} blocks, at most"
            f" {bounds.BLOCKS_MAX:,} are held: make blocks larger or the load shorter"
        )
    return Load(
        block_tokens,
        arrival - arrival[0],
        tokens.astype(np.int32),
        prompts.output_tokens[order].astype(np.int32),
        lineage.by_appearance(_names(text, stem, tokens, stems, first, block_tokens)),
        first,
    )


def zipf(count: int, skew: float) -> NDArray[np.float64]:
    """Shares of the first, the second and so on, that fall with rank ** skew."""
    shares = np.arange(1.0, count + 1) ** -skew
    return np.asarray(shares / shares.sum())


def _names(
    text: Numbers, stem: Numbers, tokens: Numbers, stems: Stems, first: Numbers, block_tokens: int
) -> Numbers:
    # [0, stems)              by stem and place      whole, in the stem
    # [stems, shorts)         by text and place      whole, behind the stem
    # [shorts, ...)           by request             short
    whole = tokens // block_tokens
    of_stem = np.diff(stems.first)[stem]
    own = np.zeros(int(text.max()) + 1, np.int64)
    np.maximum.at(own, text, whole - of_stem)
    behind = int(stems.names.max(initial=-1)) + 1 + spans.offsets(own)
    lengths = np.diff(first)
    # A block's place in its prompt is its row less the row where the prompt begins.
    row = np.arange(first[-1])
    names = row + np.repeat(behind[text] - of_stem - first[:-1], lengths)
    inside = row < np.repeat(first[:-1] + of_stem, lengths)
    origin = np.repeat(stems.first[stem] - first[:-1], lengths)
    names[inside] = stems.names[(row + origin)[inside]]
    short = first[1:][whole < lengths] - 1
    names[short] = behind[-1] + np.arange(len(short))
    return names
