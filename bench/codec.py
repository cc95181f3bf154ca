"""What a codec does to what a model says next, and what it costs to code and decode.

A made model (random weights, standard deviation 0.1, nothing tied, so that its outputs depend on
its KV) answers prompts twice on a real pool: computed, and with all of the prompt's KV but the last
token's from the pool, kept under each codec. Told is how far the logarithm of the probability of
the token that it would have chosen moves. Random weights make broad distributions, over which small
errors turn the choice more easily than those of a trained model: it compares the codecs.

Coding and decoding are timed beside the plain move of the same memory, at the geometry of Llama 8B
in bfloat16. What counts is that codec none changes no token.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.engine import Prompts, Say, Shape, check_published, prefill, torch_threads
from bench.pool import running_node, touched
from bench.report import Goal, Report, Row
from bench.rounds import Rounds, measure, timed
from kvstore.client import Client, KVGroup, KVSpec
from kvstore.codec import CODECS, NONE
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.kernels import strips
from kvstore.kernels.shapes import Pages
from kvstore.kernels.strips import Blocks
from kvstore.layout import TABLE_OFFSET, SlotLayout
from kvstore.transfer.kernel_terms import geometry, span

RUNS = 10  # of the moves; each prompt is answered once
GOAL = 1.0  # of prompts, under the codec that changes nothing

SHAPE = Shape(layers=6, hidden=256, heads=8, kv_heads=4, head_dim=64, intermediate=704)


@dataclass(frozen=True, slots=True)
class Sizes:
    shape: Shape = SHAPE
    prompts: int = 48
    prompt_tokens: int = 456  # 7 blocks and a tail
    moved_layers: int = 8
    moved_blocks: int = 16


def run(runs: int, say: Say, sizes: Sizes | None = None) -> Report:
    sizes = sizes or Sizes()
    answers = _answers(say, sizes)
    ways = {}
    for codec in CODECS:
        mover = _Mover(codec, sizes)
        ways |= {f"store {codec}": timed(mover.store), f"load {codec}": timed(mover.load)}
    rounds = measure(ways, runs, say)
    return Report(
        name="codec",
        unit="nats",
        against="the same prompt computed",
        ratio_is="share of prompts whose next token is the one computed",
        goal=GOAL,
        sense=Goal.AT_LEAST,
        rows=tuple(_row(codec, answers, rounds, sizes) for codec in CODECS),
    )


# -- what the model says ------------------------------------------------------------------------


class _Heard:
    """A model whose last logits are kept."""

    def __init__(self, model: Model) -> None:
        self._model, self.config, self.device = model, model.config, model.device
        self.logits = torch.empty(0)

    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        found = self._model.forward(*args, **options)
        if len(found):
            self.logits = found[-1].float()
        return found

    @property
    def said(self) -> torch.Tensor:
        """Logarithms of the next token's probabilities, (vocabulary,) in nats."""
        return torch.log_softmax(self.logits, -1)


def _answers(say: Say, sizes: Sizes) -> dict[str, list[tuple[float, bool]]]:
    """For each codec and prompt: how far the chosen token's moved, and whether it stays chosen."""
    found: dict[str, list[tuple[float, bool]]] = {}
    with tempfile.TemporaryDirectory(prefix="moonpool-bench-") as scratch, torch_threads(1):
        folder = sizes.shape.make(Path(scratch))
        heard = _Heard(Model.load(folder))
        core = EngineCore(heard, EngineSettings(pages=40))  # type: ignore[arg-type]
        with running_node("512MiB") as directory:
            for codec in CODECS:
                say(f"answers with {codec}")
                with Client.at(directory, spec_of(folder, codec=codec)) as client:
                    pool = Pool(client, core.cache)
                    core.hooks = pool
                    prompts = Prompts(sizes.prompt_tokens, seed=11)
                    found[codec] = [
                        _answer(core, heard, pool, prompts.next()) for _ in range(sizes.prompts)
                    ]
    return found


def _answer(
    core: EngineCore, heard: _Heard, pool: Pool, prompt: tuple[int, ...]
) -> tuple[float, bool]:
    uses, said = [PoolUse(), PoolUse()], []
    for use in uses:
        pool.expect("bench", use)
        prefill(core, prompt)
        said.append(heard.said)
    blocks = -(-len(prompt) // core.cache.page_tokens)
    check_published(pool, uses[0].published_blocks, blocks)
    if uses[1].pool_tokens < len(prompt):
        raise RuntimeError("a prompt was computed that should have been loaded")
    token = int(said[0].argmax())
    return abs(float(said[1][token] - said[0][token])), int(said[1].argmax()) == token


# -- what it costs ------------------------------------------------------------------------------


class _Mover:
    """One memory in bfloat16, pages of a block each, and slots to move it to and from."""

    def __init__(self, codec: str, sizes: Sizes) -> None:
        layout, blocks = _llama_8b(codec, sizes.moved_layers), sizes.moved_blocks
        dice = np.random.default_rng(3)
        run, tokens = layout.run_bytes, layout.block_tokens
        page = layout.kv_heads * tokens * 2 * run
        self.kept = touched((layout.layers, blocks * page))
        numbers = dice.standard_normal(self.kept.size // 2).astype(np.float32)
        halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        self.kept.reshape(-1)[:] = halves.view(np.uint8)
        layers = self.kept.ctypes.data + np.arange(layout.layers) * self.kept.shape[1]
        pages = Pages(
            layers.astype(np.uint64), page, tokens * 2 * run, 2 * run, run, tokens, blocks
        )
        slots = np.arange(blocks, dtype=np.int64) * layout.slot_bytes
        self._arena = touched((blocks * layout.slot_bytes,))
        counts, starts = np.full(blocks, tokens, np.int32), np.arange(blocks) * tokens
        where = Blocks(slots + layout.head_bytes, slots + TABLE_OFFSET, counts, starts)
        table = dice.permutation(blocks)
        self._sides = (geometry(layout), where, pages, table, *span(layout.whole))

    def store(self) -> None:
        strips.gather(self._arena, *self._sides)

    def load(self) -> None:
        if not strips.scatter(self._arena, *self._sides).all():
            raise RuntimeError("what was just stored does not verify")


def _llama_8b(codec: str, layers: int) -> SlotLayout:
    group = KVGroup(tuple(range(layers)), 8, 128, 64)
    return SlotLayout.of(KVSpec("llama-8b", "1", "bfloat16", (group,), codec=codec), 0)


def _row(
    codec: str, answers: dict[str, list[tuple[float, bool]]], rounds: Rounds, sizes: Sizes
) -> Row:
    moved = np.array([one for one, _ in answers[codec]])
    same = float(np.mean([same for _, same in answers[codec]]))
    layout, size = _llama_8b(codec, 32), _Mover(codec, sizes).kept.nbytes
    return Row(
        name=codec,
        sizes={
            **asdict(sizes.shape),
            "prompt_tokens": sizes.prompt_tokens,
            "prompts": sizes.prompts,
            "moved_bytes": size,
        },
        runs=rounds.count,
        value=float(moved.mean()),
        ratio=same,
        counted=codec == NONE,
        also={
            "logprob_moved_max": float(moved.max()),
            "llama_8b_bytes_per_token": layout.payload_bytes / 64,
            **{
                f"{way}_gb_per_second": size / rounds.median(f"{way} {codec}") / 1e9
                for way in ("store", "load")
            },
            **{
                f"{way}_seconds_against_none": rounds.ratio(f"{way} {codec}", f"{way} {NONE}")
                for way in ("store", "load")
            },
        },
    )
