"""`moonpool plan`: what a trace has in it, and the most that reuse could bring on some hardware."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from kvstore.cli.options import Commands, command
from kvstore.core.hardware import FABRICS, GPUS, Gpu
from kvstore.core.model_shape import SHAPES, ModelShape
from kvstore.core.priors import kv_room, prefill_prior
from kvstore.errors import ConfigError
from kvstore.planner import trace
from kvstore.planner.ceiling import Ceiling, ceiling
from kvstore.planner.load import Load, Quantiles, Summary

T = TypeVar("T")

_TEACHING = """\
Read a trace of requests and say what is in it: how many, how long, how much of
their prompts was in an earlier one, and what a pool could save of their prefill
at the very most. Nothing is simulated: no request waits, and no cache is full.

Formats are Mooncake's (JSON lines with hash_ids of 512 tokens), Qwen-Bailian's
(16 tokens) and Azure's (CSV, which says nothing of what prompts share). What a
prefill costs is worked out from the model's shape and the GPU's data sheet; it
is meant to be right within a factor of two.
"""


def add(commands: Commands) -> None:
    plan = command(
        commands,
        "plan",
        "what a trace has in it, and the most that reuse could bring",
        "moonpool plan conversation_trace.jsonl --model llama-3-70b --gpu h100 --tensor-parallel 4",
    )
    plan.description = _TEACHING
    plan.add_argument("trace", type=Path, metavar="FILE", help="the trace")
    plan.add_argument(
        "--format",
        choices=[trace.AUTO, *trace.FORMATS],
        default=trace.AUTO,
        help="of the file (default: told by its first line)",
    )
    plan.add_argument(
        "--model", default="llama-3-8b", metavar="NAME", help=f"one of {', '.join(_SHAPES)}"
    )
    plan.add_argument("--gpu", default="h100", metavar="NAME", help=f"one of {', '.join(_GPUS)}")
    plan.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="GPUs of one engine (default 1)"
    )
    plan.add_argument("--json", action="store_true", help="one JSON object")
    plan.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    shape, gpu = _named("--model", args.model, _SHAPES), _named("--gpu", args.gpu, _GPUS)
    degree = args.tensor_parallel
    cost = prefill_prior(shape, gpu, degree)
    kv_room(shape, gpu, degree)  # a model that does not fit is told of before the trace is read
    load = trace.read(args.trace, args.format)
    summary, most = load.describe(), ceiling(load, shape, cost, FABRICS)
    if args.json:
        print(json.dumps({"load": asdict(summary), "ceiling": asdict(most)}))
        return 0
    _tell_load(load, summary)
    _tell_ceiling(most, shape, gpu, degree, load)
    return 0


def _tell_load(load: Load, summary: Summary) -> None:
    times = f"{summary.duration_s:,.0f} s, {summary.rate:.2f} a second"
    print(f"requests   {summary.requests:,} in {times}")
    print(f"prompts    {_tokens(summary.input_tokens)}")
    print(f"answers    {_tokens(summary.output_tokens)}")
    where = f"in an earlier one, in whole blocks of {load.block_tokens}"
    print(f"reuse      {summary.hit_rate_max:.1%} of prompt tokens were {where}")


def _tell_ceiling(most: Ceiling, shape: ModelShape, gpu: Gpu, degree: int, load: Load) -> None:
    print(f"\nprefill of {shape.name} on {degree} x {gpu.name}, by its data sheet")
    print(f"  nothing reused      {most.prefill_s:>12,.0f} s{_engines(most.engines)}")
    print(f"  all that can be     {most.prefill_least_s:>12,.0f} s{_engines(most.engines_least)}")
    if most.break_even is None:
        print("\nNo prompt begins as another did: a pool has nothing to give here.")
        return
    share = most.reusing / len(load)
    print(f"\nfetching, for the {share:.1%} of prompts that have something to fetch")
    print(f"  half of them come sooner than computed from {most.break_even / 1e9:.2f} GB/s on")
    print(f"  {'link':<16} {'fetching is sooner':>20} {'prefill saved at most':>24}")
    for one in most.fetches:
        print(f"  {one.fabric:<16} {one.pays_share:>20.1%} {one.saved_share:>24.1%}")


def _engines(count: float) -> str:
    return f"   {count:.2f} engines busy on average" if count else ""


def _tokens(of: Quantiles) -> str:
    return f"{of.mean:,.0f} tokens on average, {of.p50:,.0f} at p50, {of.p99:,.0f} at p99"


def _named(option: str, name: str, known: dict[str, T]) -> T:
    if name.lower() not in known:
        raise ConfigError(f"{option} {name}: is one of {', '.join(known)}")
    return known[name.lower()]


def _short(name: str) -> str:
    return name.lower().removeprefix("meta-")


_SHAPES: dict[str, ModelShape] = {_short(one.name): one for one in SHAPES}
_GPUS: dict[str, Gpu] = {one.name.lower().partition("-")[0]: one for one in GPUS}
