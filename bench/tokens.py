"""How many of an engine's greedy tokens on a GPU are those that `transformers` takes there.

A Llama of random weights is computed by an engine, whose kernels attend over pages and whose decode
steps are recorded, and by `transformers`' own code and cache on the same device: prompts of many
lengths, in chunks, side by side. In float32, with TF32 off as torch has it, all tokens must be the
same. In bfloat16 two ways of adding up round differently, so the share of equal ones is told. Where
a token differs the engine goes on behind the one of `transformers`: a difference counts once, and
does not make those that follow differ. Takes a CUDA GPU.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bench.engine import VOCAB, Say, Shape
from bench.guest import NotInstalled
from bench.report import Goal, Report, Row
from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.device import Device
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Request

RUNS = 16  # prompts
GOAL = 1.0
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model, and at most so many tokens of a prompt. Wider heads would take the compiler longer
    by far: products of float32 are all written out."""

    shape: Shape = field(default_factory=lambda: Shape(8, 256, 8, 2, 64, 704))
    prompt_tokens_max: int = 1500
    new_tokens: int = 64
    dtypes: tuple[str, ...] = DTYPES


def run(runs: int, say: Say) -> Report:
    if not torch.cuda.is_available():
        raise NotInstalled("a CUDA GPU is needed, and torch sees none here")
    return measured(runs, say, Sizes(), Device.named("cuda"))


def measured(runs: int, say: Say, sizes: Sizes, device: Device) -> Report:
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch:
        folder = sizes.shape.make(Path(scratch))
        rows = [_row(folder, dtype, runs, say, sizes, device) for dtype in sizes.dtypes]
    return Report(
        name="tokens",
        unit="tokens",
        against=f"all that transformers takes on {device.place}",
        ratio_is="equal tokens / all",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(rows),
    )


def _row(folder: Path, dtype: str, runs: int, say: Say, sizes: Sizes, device: Device) -> Row:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}))
    say(f"{dtype}: transformers")
    reference, prompts = Reference(folder, device.place), _prompts(runs, sizes.prompt_tokens_max)
    wanted = {one: reference.tokens(one, sizes.new_tokens) for one in prompts}
    say(f"{dtype}: the engine")
    settings = EngineSettings(
        pages=runs * -(-(sizes.prompt_tokens_max + sizes.new_tokens) // 64), max_running=runs
    )
    core = EngineCore.load(folder, settings, device=device)
    total, unequal = runs * sizes.new_tokens, differing(core, wanted)
    return Row(
        name=f"greedy tokens in {dtype}",
        sizes={"prompts": runs, "new_tokens": sizes.new_tokens, "vocab": VOCAB},
        runs=runs,
        value=total - unequal,
        limit=total,
        ratio=(total - unequal) / total,
        counted=dtype == "float32",
        also={
            "recorded": core.graphs is not None,
            "float32_matmul": torch.get_float32_matmul_precision(),
        },
    )


def _prompts(count: int, tokens_max: int) -> list[tuple[int, ...]]:
    """Of lengths from 1 on, each a part longer than the one before, and no two alike."""
    dice = np.random.default_rng(2)
    lengths = np.geomspace(1, tokens_max, count).astype(int) + (np.arange(count) > 0)
    return [tuple(dice.integers(3, VOCAB, length).tolist()) for length in lengths.tolist()]


def differing(core: EngineCore, wanted: Mapping[tuple[int, ...], Sequence[int]]) -> int:
    """Of the tokens that are wanted behind these prompts, those that the engine would not take
    behind what is wanted before them."""
    found, seen = 0, dict.fromkeys(wanted, 0)
    while left := [one for one in wanted if seen[one] < len(wanted[one])]:
        for number, one in enumerate(left):
            known = (*one, *wanted[one][: seen[one]])
            core.add(Request(f"{number}", known, len(wanted[one]) - seen[one], ignore_eos=True))
        made = dict[str, tuple[int, ...]]()
        while not core.idle:
            ended = [event for event in core.step() if isinstance(event, FinishEvent)]
            made |= {event.request_id: event.output for event in ended}
        for number, one in enumerate(left):
            pairs = zip(made[f"{number}"], wanted[one][seen[one] :], strict=True)
            same = next((at for at, (mine, its) in enumerate(pairs) if mine != its), None)
            found += same is not None
            seen[one] += len(wanted[one]) if same is None else same + 1
    return found
