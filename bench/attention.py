"""How close decode attention over pages comes to the time that its bytes alone take on a GPU.

Llama-8B geometry in bfloat16: one token each of some sequences, whose K and V lie in pages in no
order. What is timed is one layer of a step, whose spans the device knows, right behind another, as
layers are, by the device's own clock. It is held against `Tensor.copy_` of half as many bytes
within the device in the same rounds, which reads and writes, together, as many as attention reads.
What the device is told of a step, once for all layers, is printed beside, and so are whole decode
steps of an engine (`decode_steps`).
Takes a CUDA GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from bench import decode_steps
from bench.decode_steps import StepSizes
from bench.guest import NotInstalled
from bench.kernels import behind_another
from bench.report import Goal, Report, Row
from bench.rounds import Way, measure, timed
from kvstore.engine.device import Device

RUNS = 60
GOAL = 1.2
HEADS, KV_HEADS, DIM = 32, 8, 128
ITEM = 2  # bytes, of bfloat16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sequences, and the tokens that each has."""

    batches: tuple[tuple[int, int], ...] = ((64, 4096), (8, 32_768), (1, 131_072))
    page_tokens: int = 16
    dtype: torch.dtype = torch.bfloat16
    steps: StepSizes = field(default_factory=StepSizes)


def run(runs: int, say: Callable[[str], None], sizes: Sizes | None = None) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    device = Device.named("cuda")
    return measured(runs, say, sizes or Sizes(), device, behind_another)


def measured(
    runs: int,
    say: Callable[[str], None],
    sizes: Sizes,
    device: Device,
    by_clock: Callable[[Callable[[], object]], Way],
) -> Report:
    rows = []
    for batch, context in sizes.batches:
        say(f"{batch} sequences of {context} tokens")
        problem = _Problem(batch, context, sizes, device.place)
        ways = {
            "attend": by_clock(problem.attend),
            "copy": by_clock(problem.copy),
            "told": timed(problem.told),
        }
        rounds = measure(ways, runs, say)
        rows.append(
            Row(
                name=f"{batch} x {context}",
                sizes={"batch": batch, "context_tokens": context, "bytes": problem.bytes},
                runs=rounds.count,
                value=1e3 * rounds.median("attend"),
                limit=1e3 * rounds.median("copy"),
                ratio=rounds.ratio("attend", "copy"),
                spread=rounds.spread("attend", "copy"),
                also={
                    "gb_per_second": problem.bytes / rounds.median("attend") / 1e9,
                    "told_ms": 1e3 * rounds.median("told"),
                },
            )
        )
    rows += decode_steps.rows(runs, say, sizes.steps, device)
    return Report(
        name="attention",
        unit="ms",
        against="as many bytes read and written by a copy within the device",
        ratio_is="attention time / copy time",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


class _Problem:
    """Sequences whose pages lie between each other's."""

    def __init__(self, batch: int, context: int, sizes: Sizes, device: torch.device) -> None:
        from kvstore.kernels.gpu.attention import Heads, Span, Step  # late: Triton needs a GPU

        each = -(-context // sizes.page_tokens)
        shape = (batch * each, KV_HEADS, sizes.page_tokens, 2, DIM)
        order = np.random.default_rng(0).permutation(batch * each).astype(np.int32)
        self._layer = torch.randn(shape, device=device).to(sizes.dtype)
        self._q = torch.randn((batch, HEADS, DIM), device=device).to(sizes.dtype)
        tables = torch.from_numpy(order.reshape(batch, each)).to(device)
        spans = [Span(1, context - 1)] * batch
        self.told = partial(Step.of, spans, tables, sizes.page_tokens, Heads(HEADS, KV_HEADS, DIM))
        self._step = self.told()
        self.bytes = 2 * batch * context * KV_HEADS * DIM * self._layer.element_size()
        half = torch.empty(self.bytes // 2, dtype=torch.uint8, device=device)
        self._half, self._copied = half.fill_(7), torch.empty_like(half)

    def attend(self) -> torch.Tensor:
        return self._step.attend(self._q, self._layer)

    def copy(self) -> torch.Tensor:
        return self._copied.copy_(self._half)
