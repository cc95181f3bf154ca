"""Decode steps of an engine on a GPU, as graphs and with each kernel told anew, for `attention`.

A model of Llama 8B's shape with random weights, whose sequences decode side by side. What is timed
is a whole step, to its tokens on the host, by the host's clock, since the host's time is what
graphs save. Each way has an engine and pages of its own; they step in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.random_model import BLOCK_TOKENS, LLAMA_8B, random_model
from bench.report import Row
from bench.rounds import WARM_ROUNDS, measure, timed
from kvstore.engine.config import ModelConfig
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.device import Device
from kvstore.engine.model import Model
from kvstore.engine.sequence import Request


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sequences that decode side by side, and the tokens of each one's prompt."""

    batches: tuple[int, ...] = (1, 8)
    prompt_tokens: int = 1024
    config: ModelConfig = LLAMA_8B


def rows(runs: int, say: Callable[[str], None], sizes: StepSizes, device: Device) -> list[Row]:
    """None where the device cannot record steps; the engine's log says why."""
    model, found = random_model(sizes.config, device), []
    for batch in sizes.batches:
        say(f"decode steps of {batch} sequences")
        recorded, anew = (_decoding(model, batch, runs, sizes) for _ in range(2))
        if recorded.graphs is None:
            say("this device records no steps")
            return []
        anew.graphs = None
        rounds = measure({"graph": timed(recorded.step), "anew": timed(anew.step)}, runs, say)
        found.append(
            Row(
                name=f"a decode step of {batch} as a graph",
                sizes={"batch": batch, "prompt_tokens": sizes.prompt_tokens},
                runs=rounds.count,
                value=1e3 * rounds.median("graph"),
                limit=1e3 * rounds.median("anew"),
                ratio=rounds.ratio("graph", "anew"),
                spread=rounds.spread("graph", "anew"),
                counted=False,
            )
        )
    return found


def _decoding(model: Model, batch: int, runs: int, sizes: StepSizes) -> EngineCore:
    """An engine whose sequences have their prompts computed, and decode for all of the rounds."""
    new = 1 + WARM_ROUNDS + runs + 1
    pages = batch * -(-(sizes.prompt_tokens + new) // BLOCK_TOKENS)
    settings = EngineSettings(
        pages, BLOCK_TOKENS, max_batch_tokens=batch * sizes.prompt_tokens, max_running=batch
    )
    core = EngineCore(model, settings)
    for number in range(batch):
        prompt = range(number, number + sizes.prompt_tokens)
        core.add(Request(f"{number}", tuple(prompt), new, ignore_eos=True))
    core.step()
    return core
