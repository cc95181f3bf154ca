"""Loads made from prompts whose tokens are all there: what is shared can be seen, not only told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from kvstore.planner import spans
from kvstore.planner.load import Load

Prompt = tuple[int, ...]
PROVEN = settings(derandomize=True, deadline=None)  # the machine may be busy


@dataclass(frozen=True)
class Told:
    """A load, and the tokens it stands for."""

    load: Load
    prompts: Sequence[Prompt]


def load_of(
    prompts: Sequence[Prompt],
    arrival: Sequence[float] | None = None,
    block_tokens: int = 2,
    output_tokens: Sequence[int] | None = None,
) -> Load:
    """A block's id is by the tokens up to its end, and by nothing else."""
    ids: dict[Prompt, int] = {}
    blocks = [
        ids.setdefault(prompt[: start + block_tokens], len(ids))
        for prompt in prompts
        for start in range(0, len(prompt), block_tokens)
    ]
    lengths = np.array([len(prompt) for prompt in prompts])
    return Load(
        block_tokens,
        np.array(arrival if arrival is not None else range(len(prompts)), np.float64),
        lengths.astype(np.int32),
        np.array(output_tokens or [1] * len(prompts), np.int32),
        np.array(blocks, np.int64),
        spans.offsets(-(-lengths // block_tokens)),
    )


def hit_tokens_by_tokens(prompts: Sequence[Prompt], block_tokens: int) -> int:
    """Tokens of the whole blocks at the start of each prompt that an earlier one has whole too."""
    found = 0
    for place, prompt in enumerate(prompts):
        common = 0
        for earlier in prompts[:place]:
            same = 0
            while same < min(len(prompt), len(earlier)) and prompt[same] == earlier[same]:
                same += 1
            common = max(common, same)
        found += common // block_tokens * block_tokens
    return found


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@st.composite
def told(draw: st.DrawFn, block_tokens: int | None = None, each: int = 1) -> Told:
    """Few kinds of tokens and many common beginnings, so that prompts share, and nearly share.

    For large blocks prompts are as long with each token there so many times.
    """
    stems = draw(st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=3))
    endings = st.lists(st.integers(0, 1), min_size=1, max_size=12)
    prompts = [
        tuple(np.repeat(draw(st.sampled_from(stems)) + draw(endings), each).tolist())
        for _ in range(draw(st.integers(1, 15)))
    ]
    gaps = st.floats(0, 1e6) | st.sampled_from([0.0, 3.0])
    arrival = np.cumsum([0.0] + [draw(gaps) for _ in prompts[1:]])
    answers = [draw(st.integers(1, 1_000)) for _ in prompts]
    size = block_tokens or draw(st.integers(1, 6))
    return Told(load_of(prompts, arrival.tolist(), size, answers), prompts)
