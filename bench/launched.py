"""Programs of a GPU on shapes that engines have, each to be launched in any way: what `tune` times.

Of every class of shapes that launches are looked up by, its largest or its usual one. A class that
is not here is launched by default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bench.kernels import Problem
from bench.kernels import Sizes as Moved
from kvstore.codec import GROUP_TOKENS
from kvstore.kernels.gpu.attention import Heads, Span, Step
from kvstore.kernels.gpu.batch import Batch
from kvstore.kernels.gpu.launch import Launch, default
from kvstore.kernels.gpu.pages import Tiles
from kvstore.kernels.shapes import Coding
from kvstore.limits import MiB

HEADS, KV_HEADS = 32, 8
NEAR = {torch.bfloat16: 2e-2, torch.float32: 2e-6}  # two orders of attention's sums


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the problems: KV that is moved, and what tokens see."""

    bytes: int = 128 * MiB
    layers: int = 4
    block_tokens: tuple[int, ...] = (16, 64, 256)  # strips of 8, 32 and 128 KiB
    page_tokens: int = 16
    dims: tuple[int, ...] = (128, 64)
    decode: tuple[int, Span] = (8, Span(1, 16_383))  # sequences, each with one span
    prefill: tuple[int, Span] = (1, Span(4096, 4096))
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Task:
    """A program and the class of its shape. `act` launches it, once, and gives what it makes;
    before that is looked at, `clear` is zeroed. Two launches make the same to `near`, where that is
    None to the bit."""

    program: str
    shape: str
    act: Callable[[Launch], tuple[torch.Tensor, ...]]
    clear: tuple[torch.Tensor, ...] = ()
    near: float | None = None

    def made(self, launch: Launch) -> tuple[torch.Tensor, ...]:
        for one in self.clear:
            one.zero_()
        return self.act(launch)

    def same(self, one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
        pairs = list(zip(one, other, strict=True))
        if self.near is None:
            return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
        return all(float((a.float() - b.float()).abs().max()) <= self.near for a, b in pairs)


def tasks(sizes: Sizes, device: torch.device) -> Iterator[Task]:
    """One after the other, so that no more than two have memory of the device. A task may read what
    the one before it has made."""
    for tokens, word in itertools.product(sizes.block_tokens, (8, 2)):
        yield from _tiles(sizes, device, tokens, word)
    for tokens in sizes.block_tokens:
        yield from _strips(sizes, device, tokens)
    for codec in ("fp8", "int8"):
        yield from _groups(sizes, device, codec)
    for dim in sizes.dims:
        yield from _attention(sizes, device, dim, sizes.page_tokens, *sizes.decode)
    for dim in sizes.dims:
        yield next(_attention(sizes, device, dim, sizes.page_tokens, *sizes.prefill))
    yield next(_attention(sizes, device, sizes.dims[0], 1, *sizes.decode))


def _problem(sizes: Sizes, device: torch.device, tokens: int, coding: Coding | None) -> Problem:
    page_tokens = min(tokens, sizes.page_tokens)
    return Problem(Moved(sizes.bytes, tokens, page_tokens, sizes.layers), device, coding)


def _tiles(sizes: Sizes, device: torch.device, tokens: int, word: int) -> Iterator[Task]:
    problem = _problem(sizes, device, tokens, None)
    size = len(problem.arena)
    # An arena that begins between two words of 8 bytes makes all words as narrow.
    arena = torch.zeros(size + 8, dtype=torch.uint8, device=device)[word % 8 :][:size]
    geometry, blocks, pages, table, *span = problem.asked
    tiles = Tiles(arena, geometry, blocks, pages, table, tuple(span))
    for program, act, made in (
        ("gather_tile", tiles.gather, arena),
        ("scatter_tile", tiles.scatter, problem.engine),
    ):
        yield Task(program, tiles.shape, partial(_acted, act, (made,)), (made,))


def _strips(sizes: Sizes, device: torch.device, tokens: int) -> Iterator[Task]:
    problem = _problem(sizes, device, tokens, None)
    batch, tables = _batch(problem)
    for program, made in (
        ("gather_strip", (problem.arena,)),
        ("scatter_strip", (problem.engine, batch.good)),
        ("verify_strip", (batch.good,)),
        ("enter_strip", (tables,)),
    ):
        act = partial(_acted, getattr(batch, program), made)
        yield Task(program, batch.shape(program), act, made)


def _groups(sizes: Sizes, device: torch.device, codec: str) -> Iterator[Task]:
    tokens = max(GROUP_TOKENS, sizes.block_tokens[len(sizes.block_tokens) // 2])
    coding = Coding(codec, "bfloat16", GROUP_TOKENS)
    problem = _problem(sizes, device, tokens, coding)
    batch, _ = _batch(problem)
    batch.good.fill_(True)
    for program, made in (("encode_group", problem.arena), ("decode_group", problem.engine)):
        act = partial(_acted, getattr(batch, program), (made,))
        yield Task(program, batch.shape(program), act, (made,))


def _batch(problem: Problem) -> tuple[Batch, torch.Tensor]:
    """And the slots' tables."""
    geometry, blocks, pages, table, *span = problem.asked
    batch = Batch(problem.arena, geometry, blocks, pages, table, tuple(span))
    slots = problem.arena.view(len(blocks.tokens), -1)
    return batch, slots[:, : 8 * geometry.strips]


def _attention(
    sizes: Sizes, device: torch.device, dim: int, page_tokens: int, sequences: int, span: Span
) -> Iterator[Task]:
    each = -(-span.end // page_tokens)
    order = np.random.default_rng(0).permutation(sequences * each).astype(np.int32)
    tables = torch.from_numpy(order.reshape(sequences, each)).to(device)
    shape = (sequences * each, KV_HEADS, page_tokens, 2, dim)
    layer = torch.randn(shape, device=device).to(sizes.dtype)
    q = torch.randn((sequences * span.tokens, HEADS, dim), device=device).to(sizes.dtype)
    step = Step.of([span] * sequences, tables, page_tokens, Heads(HEADS, KV_HEADS, dim))
    name, near = step.shape(q.element_size()), NEAR[sizes.dtype]

    def attend(launch: Launch) -> tuple[torch.Tensor, ...]:
        return (step.attended(q, layer, launch, default("join_parts")),)

    def join(launch: Launch) -> tuple[torch.Tensor, ...]:
        return (step.attended(q, layer, default("attend"), launch),)

    yield Task("attend", name, attend, near=near)
    yield Task("join_parts", name, join, near=near)


def _acted(
    act: Callable[[Launch], None], made: tuple[torch.Tensor, ...], launch: Launch
) -> tuple[torch.Tensor, ...]:
    act(launch)
    return made
