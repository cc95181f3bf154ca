"""What the kernels here must do, in a few lines of torch: slow, and plainly right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from ..shapes import Geometry, Pages
from ..strips import Blocks
from .attention import Span


def places(
    memory: torch.Tensor, geometry: Geometry, blocks: Blocks, pages: Pages,
    block_table: NDArray[np.integer],
    layer_first: int, layer_count: int, head_first: int, head_count: int,
) -> Iterator[tuple[int, slice, torch.Tensor]]:  # fmt: skip
    """Of each strip: where in the arena its entry is, and its bytes; and its bytes' indices in
    `memory` (uint8), which holds all of the engine's pages."""
    table = torch.from_numpy(block_table.astype(np.int64))
    parts = pages.part_stride * torch.arange(geometry.parts)[:, None]
    run = parts + torch.arange(geometry.run_bytes)
    for payload, entries, tokens, start in zip(*(c.tolist() for c in blocks.columns), strict=True):
        position = start + torch.arange(tokens)
        token = table[position // pages.page_tokens] * pages.page_stride
        token += position % pages.page_tokens * pages.token_stride
        strip = (token[:, None, None] + run).reshape(-1)
        for layer in range(layer_count):
            base = int(pages.layer_addresses[layer]) - memory.data_ptr()
            for head in range(head_count):
                row = (layer_first + layer) * geometry.kv_heads + head_first + head
                first = payload + row * geometry.strip_stride
                where = slice(first, first + geometry.strip_bytes(tokens))
                yield entries + 8 * row, where, base + head * pages.head_stride + strip


def gather(arena: torch.Tensor, memory: torch.Tensor, *about: Any) -> torch.Tensor:
    """The arena as a gather leaves its strips; `about` is what follows `memory` in `places`."""
    made, engine = arena.cpu().clone(), memory.cpu()
    for _, where, index in places(memory, *about):
        made[where] = engine[index]
    return made


def entered(arena: torch.Tensor, memory: torch.Tensor, *about: Any) -> torch.Tensor:
    """The arena with an entry for each strip: the XXH3-64 of its bytes, with 0 told as 1."""
    made = arena.cpu().clone()
    for entry, where, _ in places(memory, *about):
        digest = xxhash.xxh3_64_intdigest(made[where].numpy().tobytes()) or 1
        made[entry : entry + 8] = torch.tensor(list(digest.to_bytes(8, "little")))
    return made


def scatter(arena: torch.Tensor, memory: torch.Tensor, *about: Any) -> torch.Tensor:
    """The engine's memory as a scatter of good blocks leaves it."""
    made, slots = memory.cpu().clone(), arena.cpu()
    for _, where, index in places(memory, *about):
        made[index] = slots[where]
    return made


def attend(
    q: torch.Tensor, layer: torch.Tensor, block_tables: torch.Tensor, spans: Sequence[Span]
) -> torch.Tensor:
    """As `attention.Step.attend`, in float64."""
    out, first = torch.empty_like(q, dtype=torch.float64), 0
    for span, table in zip(spans, block_tables.long(), strict=True):
        end, rows = span.prefix + span.tokens, slice(first, first + span.tokens)
        kv = layer[table[: -(-end // layer.shape[2])]].double()  # (pages, heads, tokens, 2, dim)
        kv = kv.permute(3, 1, 0, 2, 4).flatten(2, 3)[:, :, :end]
        k, v = kv.repeat_interleave(q.shape[1] // layer.shape[1], dim=1)
        score = q[rows].double().transpose(0, 1) @ k.transpose(1, 2) * q.shape[2] ** -0.5
        later = torch.ones(span.tokens, end, dtype=torch.bool, device=q.device).triu(
            span.prefix + 1
        )
        weight = score.masked_fill(later, -torch.inf).softmax(-1)
        out[rows] = (weight @ v).transpose(0, 1)
        first += span.tokens
    return out
